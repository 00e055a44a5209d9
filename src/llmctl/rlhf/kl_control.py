"""Adapt the KL coefficient towards a target (Ziegler et al. 2019, §2.2)."""

from __future__ import annotations

# The error that one update may answer to.
_MAX_ERROR = 0.2


def adapted_kl_coef(kl_coef: float, kl: float, *, target: float, answers: int, horizon: int) -> float:
    """Return the coefficient of the next update.

    Args:
        kl: measured mean KL of an answer, in nats.
        target: wanted mean KL of an answer.
        answers: how many the update saw.
        horizon: over how many answers the coefficient adapts.
    """
    error = min(max(kl / target - 1.0, -_MAX_ERROR), _MAX_ERROR)
    return kl_coef * (1.0 + error * answers / horizon)
