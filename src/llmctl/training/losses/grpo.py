"""Group relative policy optimisation (Shao et al. 2024, eq. 3): the clipped ratio with one advantage per answer.

Answers to the same prompt are each other's baseline, so that there is no value model; the KL to the reference stands in
the loss. What the losses of tokens are averaged over is named: all tokens of the update (`dapo`), each answer's tokens
and then answers (`grpo`), or answers times the length limit (`dr_grpo`). None depends on how the update is cut into
micro-batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from llmctl.training.engines.base import LossOutput
from llmctl.training.losses.ppo import MAX_LOG_RATIO
from llmctl.training.response import response_logprobs

if TYPE_CHECKING:
    import torch


def kl_in_loss(
    logprobs: torch.Tensor, reference_logprobs: torch.Tensor, estimator: Literal["k2", "k3"]
) -> torch.Tensor:
    """Return the KL penalty of each token, never negative.

    With samples from the policy, ``k2`` = ½·(log π − log π_ref)² has the gradient of KL(π ‖ π_ref), and
    ``k3`` = r − 1 − log r, r = π_ref/π, that of KL(π_ref ‖ π).
    """
    log_ratio = (reference_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if estimator == "k2":
        return 0.5 * log_ratio.square()
    return log_ratio.exp() - 1.0 - log_ratio


class GrpoLoss:
    """Summed over tokens (`dapo`) or answers; the weight is their number.

    The batch holds `input_ids` [batch, positions], [batch, positions − 1] each: `mask` (bool), `old_logprobs` and
    `reference_logprobs`, and `advantages` [batch].

    Args:
        clip_low, clip_high: how far the ratio may fall and rise before it stops counting.
        max_new_tokens: the constant of `dr_grpo`.
    """

    def __init__(
        self,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        *,
        kl_coef: float = 0.0,
        kl_estimator: Literal["k2", "k3"] = "k2",
        loss_type: Literal["dapo", "grpo", "dr_grpo"] = "dapo",
        max_new_tokens: int = 1,
        temperature: float = 1.0,
    ) -> None:
        self.clip_low, self.clip_high, self.temperature = clip_low, clip_high, temperature
        self.kl_coef, self.kl_estimator = kl_coef, kl_estimator
        self.loss_type, self.max_new_tokens = loss_type, max_new_tokens
        self.largest_deviation = 0.0

    def weight(self, batch: dict[str, torch.Tensor]) -> float:
        """Return the number of response tokens, or of answers that have any."""
        return float(batch["mask"].sum() if self.loss_type == "dapo" else batch["mask"].any(1).sum())

    def __call__(self, model: Any, batch: dict[str, torch.Tensor]) -> LossOutput:
        """Compute the loss, and the sums of `clip_fraction`, `approx_kl`, `entropy` and `kl_loss`."""
        import torch

        mask = batch["mask"]
        logprobs, entropy = response_logprobs(model, batch["input_ids"], mask, self.temperature, with_entropy=True)
        assert entropy is not None
        ratio = (logprobs - batch["old_logprobs"]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        advantages = batch["advantages"].to(logprobs.dtype).unsqueeze(1)
        clipped = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        losses = torch.maximum(-advantages * ratio, -advantages * clipped)
        kl = kl_in_loss(logprobs, batch["reference_logprobs"], self.kl_estimator)
        if self.kl_coef:
            losses = losses + self.kl_coef * kl
        counted = mask.to(losses.dtype)
        per_answer = counted / counted.sum(1, keepdim=True).clamp_min(1.0)
        share = {"dapo": counted, "grpo": per_answer, "dr_grpo": counted / self.max_new_tokens}[self.loss_type]
        with torch.no_grad():
            deviation = (ratio - 1.0).abs() * counted
            self.largest_deviation = max(self.largest_deviation, float(deviation.max()) if deviation.numel() else 0.0)
            mean = counted if self.loss_type == "dapo" else per_answer
            outside = (ratio < 1.0 - self.clip_low) | (ratio > 1.0 + self.clip_high)
            metrics = {
                "clip_fraction": (outside.to(losses.dtype) * mean).sum(),
                "approx_kl": (0.5 * (logprobs - batch["old_logprobs"]).square() * mean).sum(),
                "entropy": (entropy * mean).sum(),
                "kl_loss": (kl * mean).sum(),
            }
        return LossOutput((losses * share).sum(), metrics)
