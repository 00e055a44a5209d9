"""Reward modelling from comparisons: Bradley–Terry over all pairs of a prompt (Ouyang et al. 2022, §3.4).

All answers to a prompt are one item: its pairs are averaged, so that a prompt with many answers does not count more
and is not seen again and again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmctl.training.engines.base import LossOutput

if TYPE_CHECKING:
    import torch


def pair_losses(scores: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    """Return −log σ(score of the better − score of the worse) per pair.

    Args:
        scores: [rows].
        pairs: int64 [pairs, 2], the rows of the better and of the worse answer.
    """
    from torch.nn import functional as F

    return -F.logsigmoid(scores[pairs[:, 0]] - scores[pairs[:, 1]])


class RewardLoss:
    """Summed over prompts, for each the mean over its pairs; the weight is the number of prompts.

    The batch holds `input_ids` [rows, positions] padded on the right, `lengths` [rows], `pairs` [pairs, 2] of rows,
    and `pair_weights` [pairs], one over the number of pairs of the prompt.
    """

    def weight(self, batch: dict[str, torch.Tensor]) -> float:
        """Return the number of prompts."""
        return float(batch["pair_weights"].sum().round())

    def __call__(self, model: Any, batch: dict[str, torch.Tensor]) -> LossOutput:
        """Compute the loss, and the sums of `accuracy` and `margin`; `model` is a `ScalarModel`."""
        from llmctl.model.scalar_head import score_last

        pairs, weights = batch["pairs"], batch["pair_weights"]
        scores = score_last(model, batch["input_ids"], batch["lengths"])
        margins = (scores[pairs[:, 0]] - scores[pairs[:, 1]]).detach()
        metrics = {
            "accuracy": ((margins > 0).to(scores.dtype) * weights).sum(),
            "margin": (margins * weights).sum(),
        }
        return LossOutput((pair_losses(scores, pairs) * weights).sum(), metrics)
