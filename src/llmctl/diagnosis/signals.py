"""Readings of a run that several rules share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmctl.diagnosis.columns import Series
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.statistics import block_medians, noise_of, rolling_median, trailing_medians, trend_of

MAX_SMOOTHED = 2000

# The parts of a step, and what to call them.
STEP_PARTS = {
    "data_time_s": "waiting for data",
    "forward_s": "forward",
    "backward_s": "backward",
    "communication_s": "communication",
    "update_s": "update",
}


def smooth(series: Series, share: float = 0.02, least: int = 5) -> Series:
    """Return a curve's rolling median over `share` of its points (at least `least`, odd).

    Of a long run only `MAX_SMOOTHED` points are kept, each the median of a block.
    """
    if len(series) > 2 * MAX_SMOOTHED:
        steps, values = block_medians(series.steps.astype(np.float64), series.values, MAX_SMOOTHED)
        series = Series(steps.astype(np.int64), values)
    width = max(least, int(len(series) * share)) | 1
    return Series(series.steps, rolling_median(series.values, min(width, max(1, len(series) | 1))))


def noise_after_smoothing(series: Series, share: float = 0.02, least: int = 5) -> float:
    """Return the standard deviation of a smoothed curve's own error (a median's is 1.25 of a mean's)."""
    width = max(least, int(len(series) * share)) | 1
    return 1.2533 * noise_of(series.values) / np.sqrt(width)


def growth_before(series: Series, step: int, window: int = 20) -> float:
    """Return how many times larger a curve was in the last points before `step` than in the calm before them.

    The calm is the median of what came before the last `window` points; infinity counts. 1 if nothing can be told.
    """
    before = series.where((series.steps <= step) & ~np.isnan(series.values))
    if len(before) < 4:
        return 1.0
    window = min(window, len(before) // 2)
    calm = float(np.median(before.values[:-window]))
    peak = float(np.max(before.values[-window:]))
    return peak / calm if calm > 0 else 1.0


@dataclass(frozen=True)
class Spike:
    """One sudden rise: at `step` the value stood `sigmas` above the median before it, for `width` points."""

    step: int
    position: int
    sigmas: float
    value: float
    before: float
    width: int
    recovered: bool


def find_spikes(series: Series, *, sigmas: float, factor: float, window: int) -> list[Spike]:
    """Find sudden rises above the values just before, in logarithms where all values are positive.

    Logarithms make the long upper tail of small batches symmetric. A rise ends when the curve is back within
    half of the way.

    Args:
        series: finite values.
        sigmas: least height in robust standard deviations of the window before.
        factor: least height as a ratio to the median of the window before.
        window: points that make up "before".
    """
    if len(series) <= window or np.any(series.values <= 0):
        return []
    values = np.log(series.values)
    medians, deviations = trailing_medians(values, window)
    # A constant window (a toy, or a rounded log) must not turn rounding into sigmas.
    deviations = np.maximum(deviations, 0.005)
    high = np.nan_to_num((values - medians) / deviations, nan=0.0)
    hit = (high >= sigmas) & (values - medians >= np.log(factor))
    spikes: list[Spike] = []
    position = 0
    while position < len(values):
        if not hit[position]:
            position += 1
            continue
        middle = medians[position] + (values[position] - medians[position]) / 2
        after = np.nonzero(values[position:] <= middle)[0]
        width = int(after[0]) if len(after) else len(values) - position
        peak = position + int(np.argmax(values[position : position + width]))
        spikes.append(
            Spike(
                step=int(series.steps[position]),
                position=position,
                sigmas=float(high[position]),
                value=float(series.values[peak]),
                before=float(np.exp(medians[position])),
                width=width,
                recovered=bool(len(after)),
            )
        )
        position += width + window // 2
    return spikes


def growing_part(evidence: Evidence) -> tuple[str, float] | None:
    """Return the part of the step whose time grew most over the run, and its share of the step's whole growth.

    None if the parts were not logged or none of them grew.
    """
    whole = evidence.step_time()
    if len(whole) < 3:
        return None
    grown = trend_of(whole.steps, whole.values).change
    if grown <= 0:
        return None
    shares = {}
    for name in STEP_PARTS:
        part = evidence.steady(name)
        if len(part) >= 3:
            shares[name] = trend_of(part.steps, part.values).change / grown
    if not shares:
        return None
    name = max(shares, key=lambda key: shares[key])
    return (name, shares[name]) if shares[name] >= 0.4 else None


def tokens_per_step(evidence: Evidence) -> Series:
    """Return the tokens of each step, from the running count in `tokens`; empty if it was not logged."""
    total = evidence.series("tokens")
    if len(total) < 2:
        return total
    gained = np.diff(total.values) / np.diff(total.steps)
    return Series(total.steps[1:], gained)


def throughput(evidence: Evidence) -> Series:
    """Return the rate of the run: tokens per second, or else steps per second where steps are equal.

    Empty if steps differ by design (responses that grow, a batch or sequence ramp) and no token rate was logged.
    """
    rate = evidence.steady("tokens_per_s")
    if len(rate):
        return rate.where(rate.values > 0)
    times = evidence.step_time()
    lengths = evidence.series("response_length")
    if len(lengths) and abs(trend_of(lengths.steps, lengths.values).relative_change) > 0.1:
        return Series(times.steps[:0], times.values[:0])
    tokens = tokens_per_step(evidence)
    if len(tokens) and np.ptp(tokens.values) > 0.02 * np.median(tokens.values):
        return Series(times.steps[:0], times.values[:0])
    return Series(times.steps, 1.0 / times.values)


def peak_lr(evidence: Evidence) -> float | None:
    """Return the highest learning rate that was logged."""
    lr = evidence.series("lr")
    return float(np.max(lr.values)) if len(lr) else None


def lower_lr(evidence: Evidence) -> str:
    """Return the advice to lower the learning rate, with a value: a third of the peak, and for Adam at most 3e-3.

    A peak that is off by orders of magnitude is not put right by thirds: 3e-3 is about the most that small models
    bear under Adam (Wortsman et al. 2023, arXiv 2309.14322, figure 1).
    """
    peak = peak_lr(evidence)
    if not peak or peak < 0:
        return "lower the learning rate"
    proposed = peak / 3 if str(evidence.setting("optimizer")).lower() == "sgd" else min(peak / 3, 3e-3)
    return f"lower the learning rate: --lr {proposed:.1g}"


def lr_at(evidence: Evidence, step: int) -> float | None:
    """Return the learning rate at a step (the last one logged up to it)."""
    lr = evidence.series("lr")
    before = lr.values[lr.steps <= step]
    return float(before[-1]) if len(before) else None


def has_warmup(evidence: Evidence) -> bool | None:
    """Tell whether the learning rate rose from a low value; None if it was not logged from the start."""
    lr = evidence.series("lr")
    if len(lr) < 3 or lr.steps[0] > max(1, (lr.steps[1] - lr.steps[0])):
        return None
    return bool(lr.values[0] < 0.9 * np.max(lr.values))
