"""From raw scores to what PPO maximises: clipping, the penalty for answers that do not stop, the mixed objective."""

from __future__ import annotations

import torch

# R = 0.7·R_RM + 0.2·R_KL + 0.1·R_length; R_KL = −KL in nats, so 0.2 is the KL coefficient of the mixed objective.
MIXED_SCORE, MIXED_KL, MIXED_LENGTH = 0.7, 0.2, 0.1


def length_reward(lengths: torch.Tensor, target_length: int) -> torch.Tensor:
    """Return 0 up to the target, then −(length − target)/target, at least −1; [batch]."""
    return -((lengths.float() - target_length) / target_length).clamp(0.0, 1.0)


def mixed_objective(scores: torch.Tensor, lengths: torch.Tensor, target_length: int) -> tuple[torch.Tensor, float]:
    """Return the scores and the KL coefficient of ``--objective mixed``.

    Its optimum is π_ref·exp((0.7·R_RM + 0.1·R_length)/0.2), which is that of a plain KL penalty of 0.2/0.7 = 0.286
    on R_RM, but for the length.
    """
    return MIXED_SCORE * scores + MIXED_LENGTH * length_reward(lengths, target_length).to(scores.dtype), MIXED_KL


def shaped_scores(
    scores: torch.Tensor, stopped: torch.Tensor, *, clip: float, missing_eos_penalty: float
) -> torch.Tensor:
    """Return scores clipped to ±`clip` (0 does not clip), less the penalty where the answer did not end by itself.

    The penalty is subtracted, not multiplied: multiplying would reward cut-off answers whose score is negative.
    """
    if clip > 0:
        scores = scores.clamp(-clip, clip)
    return scores - missing_eos_penalty * (~stopped).to(scores.dtype)
