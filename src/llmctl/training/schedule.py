"""The learning rate as a pure function of (configuration, step): nothing to save, nothing to restore."""

from __future__ import annotations

import math

from llmctl.training.config import TrainingConfig


def warmup_steps(config: TrainingConfig) -> int:
    """Return the steps in which the learning rate rises, rounded up."""
    return math.ceil(config.warmup_fraction * config.steps)


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Return the learning rate of a step.

    Rises linearly over the first `warmup_fraction` of the steps and reaches the peak at the last of them; then as
    `lr_schedule` says: ``warmup-constant-cosine`` stays until `decay_start_fraction` and follows half a cosine to the
    floor at the last step.

    Args:
        step: counted from 1 (the first update) to `config.steps`.
    """
    peak, floor = config.peak_lr, config.peak_lr * config.min_lr_fraction
    warmup = warmup_steps(config)
    if step <= warmup:
        return peak * step / warmup
    if config.lr_schedule == "constant":
        return peak
    start = (
        warmup
        if config.lr_schedule == "cosine"
        else max(warmup, math.floor(config.decay_start_fraction * config.steps))
    )
    if step <= start:
        return peak
    progress = min(1.0, (step - start) / max(1, config.steps - start))
    if config.lr_schedule == "wsd":
        return peak + (floor - peak) * progress
    return floor + (peak - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))
