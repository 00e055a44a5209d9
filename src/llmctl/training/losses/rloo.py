"""REINFORCE with a leave-one-out baseline (Ahmadian et al. 2024, §3.2): an answer is one action.

The advantage of an answer is its reward less the mean reward of the other answers to the prompt: unbiased, without a
value model. The KL to the reference is part of the reward, so the optimum is π_ref·exp(score/kl_coef). The ratio of the
whole answer is clipped as in PPO, which matters where more than one optimizer step is made from the same answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmctl.training.engines.base import LossOutput
from llmctl.training.losses.ppo import clipped_objective
from llmctl.training.response import response_logprobs

if TYPE_CHECKING:
    import torch


class RlooLoss:
    """Summed over answers; the weight is their number.

    The batch holds `input_ids` [batch, positions], [batch, positions − 1] each: `mask` (bool) and `old_logprobs`, and
    `advantages` [batch].
    """

    def __init__(self, clip_ratio: float = 0.2, temperature: float = 1.0) -> None:
        self.clip_ratio, self.temperature = clip_ratio, temperature
        self.largest_deviation = 0.0

    def weight(self, batch: dict[str, torch.Tensor]) -> float:
        """Return the number of answers that have tokens."""
        return float(batch["mask"].any(1).sum())

    def __call__(self, model: Any, batch: dict[str, torch.Tensor]) -> LossOutput:
        """Compute the loss, and the sums of `clip_fraction`, `approx_kl` and `entropy`."""
        import torch

        mask = batch["mask"]
        logprobs, entropy = response_logprobs(model, batch["input_ids"], mask, self.temperature, with_entropy=True)
        assert entropy is not None
        advantages = batch["advantages"].to(logprobs.dtype)
        losses, ratio = clipped_objective(logprobs.sum(1), batch["old_logprobs"].sum(1), advantages, self.clip_ratio)
        present = mask.any(1).to(losses.dtype)
        with torch.no_grad():
            deviation = (ratio - 1.0).abs() * present
            self.largest_deviation = max(self.largest_deviation, float(deviation.max()) if deviation.numel() else 0.0)
            mean = mask / mask.sum(1, keepdim=True).clamp_min(1)
            metrics = {
                "clip_fraction": (deviation > self.clip_ratio).to(losses.dtype).sum(),
                "approx_kl": (0.5 * (logprobs - batch["old_logprobs"]).square() * mean).sum(),
                "entropy": (entropy * mean).sum(),
            }
        return LossOutput((losses * present).sum(), metrics)
