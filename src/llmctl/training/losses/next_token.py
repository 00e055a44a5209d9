"""Next-token prediction: cross-entropy over the positions whose label counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmctl.training.engines.base import LossOutput

if TYPE_CHECKING:
    import torch

IGNORE_INDEX = -100


class NextTokenLoss:
    """Summed negative log-likelihood in nats; the weight is the number of labels that are not −100.

    The batch holds `input_ids` and `labels` [batch, positions] (labels already shifted: the label of position i is
    the token after it), and may hold `position_ids`, `document_ids`, `attention_mask` and `dropout_keys`.
    """

    def weight(self, batch: dict[str, torch.Tensor]) -> float:
        """Return the number of positions with a label."""
        return float((batch["labels"] != IGNORE_INDEX).sum())

    def __call__(self, model: Any, batch: dict[str, torch.Tensor]) -> LossOutput:
        """Compute the loss; the logits of the whole micro-batch never exist at once."""
        hidden = model(
            batch["input_ids"],
            position_ids=batch.get("position_ids"),
            document_ids=batch.get("document_ids"),
            attention_mask=batch.get("attention_mask"),
            dropout_keys=batch.get("dropout_keys"),
        )
        return LossOutput(model.negative_log_likelihood(hidden, batch["labels"]))
