"""The value function's part of PPO: squared error to the returns, clipped around the old values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmctl.training.engines.base import LossOutput

if TYPE_CHECKING:
    import torch


def clipped_value_error(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, clip_range: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ½·max((V − R)², (clip(V, V_old ± clip_range) − R)²) per token, and where the clipped error was larger.

    A `clip_range` of 0 does not clip.
    """
    import torch

    plain = (values - returns).square()
    if clip_range <= 0:
        return 0.5 * plain, torch.zeros_like(plain, dtype=torch.bool)
    near = old_values + (values - old_values).clamp(-clip_range, clip_range)
    clipped = (near - returns).square()
    return 0.5 * torch.maximum(plain, clipped), clipped > plain


class ValueLoss:
    """Summed over response tokens; the weight is their number.

    The batch holds `input_ids` [batch, positions], and [batch, positions − 1] each: `mask` (bool), `old_values` and
    `returns`. The value of a token is the number at the position before it: what is known when it is chosen.
    """

    def __init__(self, clip_range: float = 0.2) -> None:
        self.clip_range = clip_range

    def weight(self, batch: dict[str, torch.Tensor]) -> float:
        """Return the number of response tokens."""
        return float(batch["mask"].sum())

    def __call__(self, model: Any, batch: dict[str, torch.Tensor]) -> LossOutput:
        """Compute the loss and the sum of `value_clip_fraction`; `model` is a `ScalarModel`."""
        mask = batch["mask"]
        values = model(batch["input_ids"])[:, :-1]
        losses, clipped = clipped_value_error(values, batch["old_values"], batch["returns"], self.clip_range)
        return LossOutput(
            losses.masked_fill(~mask, 0.0).sum(), {"value_clip_fraction": (clipped & mask).to(losses.dtype).sum()}
        )
