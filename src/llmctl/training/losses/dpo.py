"""Direct preference optimisation (Rafailov et al. 2023, eq. 7), with label smoothing (cDPO) and the IPO variant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from llmctl.training.engines.base import LossOutput
from llmctl.training.response import response_logprobs

if TYPE_CHECKING:
    import torch


def preference_losses(
    margins: torch.Tensor, beta: float, label_smoothing: float = 0.0, variant: Literal["sigmoid", "ipo"] = "sigmoid"
) -> torch.Tensor:
    """Return the loss of each pair.

    Args:
        margins: (log π − log π_ref) of the chosen answer less that of the rejected one, [pairs], in nats.
        beta: strength of the pull to the reference.
        label_smoothing: probability that a pair is the wrong way round.
        variant: ``sigmoid`` is DPO; ``ipo`` is (margin − 1/2β)² (Azar et al. 2023, eq. 17).
    """
    from torch.nn import functional as F

    if variant == "ipo":
        return (margins - 1.0 / (2.0 * beta)).square()
    wanted = -F.logsigmoid(beta * margins)
    return (1.0 - label_smoothing) * wanted - label_smoothing * F.logsigmoid(-beta * margins)


class DpoLoss:
    """Summed over pairs; the weight is their number. A pair without any answer token does not count.

    The batch holds `input_ids` [2·pairs, positions] (all chosen, then all rejected answers), `mask`
    [2·pairs, positions − 1], and `reference_logprobs` [2·pairs], the summed log-probability under the reference.
    """

    def __init__(
        self, beta: float, label_smoothing: float = 0.0, variant: Literal["sigmoid", "ipo"] = "sigmoid"
    ) -> None:
        self.beta, self.label_smoothing, self.variant = beta, label_smoothing, variant

    def weight(self, batch: dict[str, torch.Tensor]) -> float:
        """Return the number of pairs."""
        return float(batch["mask"].any(1).view(2, -1).any(0).sum())

    def __call__(self, model: Any, batch: dict[str, torch.Tensor]) -> LossOutput:
        """Compute the loss, and the sums of `accuracy`, `margin`, `chosen_reward` and `rejected_reward`."""
        import torch

        logprobs, _ = response_logprobs(model, batch["input_ids"], batch["mask"])
        totals = logprobs.sum(1)
        if self.variant == "ipo":
            # IPO compares means over tokens, or long answers would reach its target at once.
            lengths = batch["mask"].sum(1).clamp_min(1)
            moved = totals / lengths - batch["reference_logprobs"] / lengths
        else:
            moved = totals - batch["reference_logprobs"]
        chosen, rejected = moved.chunk(2)
        margins = chosen - rejected
        present = batch["mask"].any(1).view(2, -1).any(0)
        losses = preference_losses(margins, self.beta, self.label_smoothing, self.variant) * present
        with torch.no_grad():
            metrics = {
                "accuracy": (margins > 0).to(losses.dtype).sum(),
                "margin": self.beta * margins.sum(),
                "chosen_reward": self.beta * chosen.sum(),
                "rejected_reward": self.beta * rejected.sum(),
            }
        return LossOutput(losses.sum(), metrics)
