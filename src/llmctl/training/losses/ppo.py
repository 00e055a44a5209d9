"""Proximal policy optimisation, the policy's part: the clipped ratio objective (Schulman et al. 2017, eq. 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmctl.training.engines.base import LossOutput
from llmctl.training.response import response_logprobs

if TYPE_CHECKING:
    import torch

# e²⁰: a ratio beyond this says nothing any more, and its product with an advantage could overflow.
MAX_LOG_RATIO = 20.0


def clipped_objective(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor, clip_ratio: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of each token, max(−A·r, −A·clip(r, 1 ± clip_ratio)), and its ratio r."""
    import torch

    ratio = (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    clipped = ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio)
    return torch.maximum(-advantages * ratio, -advantages * clipped), ratio


class PpoLoss:
    """Summed over response tokens; the weight is their number.

    The batch holds `input_ids` [batch, positions], and [batch, positions − 1] each: `mask` (bool), `old_logprobs` and
    `advantages`.

    Args:
        clip_ratio: how far the ratio may move before it stops counting.
        temperature: at which the responses were sampled.
    """

    def __init__(self, clip_ratio: float = 0.2, temperature: float = 1.0) -> None:
        self.clip_ratio, self.temperature = clip_ratio, temperature
        self.largest_deviation = 0.0

    def weight(self, batch: dict[str, torch.Tensor]) -> float:
        """Return the number of response tokens."""
        return float(batch["mask"].sum())

    def __call__(self, model: Any, batch: dict[str, torch.Tensor]) -> LossOutput:
        """Compute the loss, and the sums of `clip_fraction`, `approx_kl` and `entropy`."""
        import torch

        mask = batch["mask"]
        logprobs, entropy = response_logprobs(model, batch["input_ids"], mask, self.temperature, with_entropy=True)
        losses, ratio = clipped_objective(logprobs, batch["old_logprobs"], batch["advantages"], self.clip_ratio)
        with torch.no_grad():
            counted = mask.to(losses.dtype)
            deviation = (ratio - 1.0).abs() * counted
            self.largest_deviation = max(self.largest_deviation, float(deviation.max()) if deviation.numel() else 0.0)
            assert entropy is not None
            metrics = {
                "clip_fraction": ((deviation > self.clip_ratio).to(losses.dtype)).sum(),
                # Half the squared log-ratio: the estimator of N-details, never negative.
                "approx_kl": (0.5 * (logprobs - batch["old_logprobs"]).square() * counted).sum(),
                "entropy": entropy.sum(),
            }
        return LossOutput((losses * mask).sum(), metrics)
