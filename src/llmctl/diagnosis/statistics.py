"""Robust statistics of noisy curves: medians instead of means, so that one bad step does not decide."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# The median absolute deviation of a normal distribution is 0.6745 of its standard deviation.
MAD_TO_SIGMA = 1.4826
MAX_BLOCKS = 200
MAX_SHIFT_BLOCKS = 400


def sigma_of(values: Array) -> float:
    """Return the standard deviation as the median absolute deviation tells it; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    return float(MAD_TO_SIGMA * np.median(np.abs(values - np.median(values))))


def noise_of(values: Array) -> float:
    """Return the standard deviation of the noise around a smooth curve, from second differences.

    Second differences remove a local line; those of white noise have a variance of six times the noise's.
    """
    if len(values) < 4:
        return 0.0
    second = values[2:] - 2 * values[1:-1] + values[:-2]
    return sigma_of(second) / np.sqrt(6.0)


@dataclass(frozen=True)
class Trend:
    """A straight line through a curve.

    Attributes:
        slope: Theil–Sen, value per step.
        start, end: the line's value at the first and the last step.
        z: Kendall's statistic in standard deviations; beyond ±3.3 chance is below 0.1 %.
        num_points: independent points that the line was put through.
    """

    slope: float
    start: float
    end: float
    z: float
    num_points: int

    @property
    def change(self) -> float:
        """Return the change from the first to the last step."""
        return self.end - self.start

    @property
    def relative_change(self) -> float:
        """Return the change as a share of the value at the first step."""
        return self.change / abs(self.start) if self.start else 0.0


def block_medians(steps: Array, values: Array, max_blocks: int = MAX_BLOCKS) -> tuple[Array, Array]:
    """Return at most `max_blocks` (mean step, median value) of consecutive blocks of equal length."""
    count = len(values)
    if count <= max_blocks:
        return steps, values
    edges = np.linspace(0, count, max_blocks + 1).astype(np.int64)
    middles = np.add.reduceat(steps, edges[:-1]) / np.diff(edges)
    medians = np.array([np.median(values[low:high]) for low, high in pairwise(edges)])
    return middles, medians


def trend_of(steps: NDArray[Any], values: Array, max_blocks: int = MAX_BLOCKS) -> Trend:
    """Put a Theil–Sen line through block medians, with Kendall's test (Sen 1968; Mann 1945)."""
    x, y = block_medians(np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64), max_blocks)
    count = len(y)
    if count < 3:
        middle = float(np.median(y)) if count else 0.0
        return Trend(0.0, middle, middle, 0.0, count)
    upper = np.triu_indices(count, k=1)
    dx = x[upper[1]] - x[upper[0]]
    dy = y[upper[1]] - y[upper[0]]
    slope = float(np.median(dy[dx > 0] / dx[dx > 0]))
    intercept = float(np.median(y - slope * x))
    score = float(np.sum(np.sign(dy)))
    variance = count * (count - 1) * (2 * count + 5) / 18.0
    z = (score - np.sign(score)) / np.sqrt(variance)
    return Trend(slope, intercept + slope * x[0], intercept + slope * x[-1], float(z), count)


@dataclass(frozen=True)
class Shift:
    """One sudden change of level: where it is best placed, the levels, and how much of the spread it explains."""

    position: int
    before: float
    after: float
    explained: float


def best_shift(values: Array, margin: int) -> Shift | None:
    """Find the place that cuts a curve best into two levels (least absolute deviations).

    Args:
        values: the curve.
        margin: fewest points on each side.

    Returns:
        None if there are too few points. `Shift.explained` is 1 where both parts are flat.
    """
    count = len(values)
    if count < 2 * margin:
        return None
    total = float(np.sum(np.abs(values - np.median(values))))
    if total == 0:
        return None
    # Coarse, over blocks; then fine, with the levels that the coarse cut has found.
    size = max(1, count // MAX_SHIFT_BLOCKS)
    blocks = np.array([np.median(values[low : low + size]) for low in range(0, count, size)]) if size > 1 else values
    least = max(1, -(-margin // size))
    places = range(least, max(least + 1, len(blocks) - least + 1))
    coarse = min(places, key=lambda place: _split_cost(blocks, place))
    before, after = float(np.median(blocks[:coarse])), float(np.median(blocks[coarse:]))
    left = np.concatenate([[0.0], np.cumsum(np.abs(values - before))])
    right = np.concatenate([np.cumsum(np.abs(values - after)[::-1])[::-1], [0.0]])
    costs = (left + right)[margin : count - margin + 1]
    cut = margin + int(np.argmin(costs))
    before, after = float(np.median(values[:cut])), float(np.median(values[cut:]))
    return Shift(cut, before, after, 1.0 - float(costs[cut - margin]) / total)


def _split_cost(values: Array, cut: int) -> float:
    left, right = values[:cut], values[cut:]
    return float(np.sum(np.abs(left - np.median(left))) + np.sum(np.abs(right - np.median(right))))


def rolling_median(values: Array, width: int) -> Array:
    """Return the median of a centred window of `width` (odd) values; the ends use what there is."""
    count = len(values)
    half = max(0, width // 2)
    if half == 0 or count == 0:
        return values.astype(np.float64)
    out = np.empty(count)
    if count > 2 * half:
        windows = np.lib.stride_tricks.sliding_window_view(values, 2 * half + 1)
        for low in range(0, len(windows), 16384):
            part = np.median(windows[low : low + 16384], axis=1)
            out[half + low : half + low + len(part)] = part
    for place in [*range(min(half, count)), *range(max(half, count - half), count)]:
        out[place] = np.median(values[max(0, place - half) : place + half + 1])
    return out


def trailing_medians(values: Array, width: int) -> tuple[Array, Array]:
    """Return for each position the median and the robust deviation of the `width` values before it.

    The first `width` positions have too little behind them and are NaN.
    """
    count = len(values)
    medians = np.full(count, np.nan)
    sigmas = np.full(count, np.nan)
    if count <= width:
        return medians, sigmas
    windows = np.lib.stride_tricks.sliding_window_view(values, width)[:-1]
    for low in range(0, len(windows), 16384):
        part = windows[low : low + 16384]
        middle = np.median(part, axis=1)
        medians[width + low : width + low + len(part)] = middle
        deviations = np.median(np.abs(part - middle[:, None]), axis=1)
        sigmas[width + low : width + low + len(part)] = MAD_TO_SIGMA * deviations
    return medians, sigmas


def mean_and_error(values: Array, num_blocks: int = 10) -> tuple[float, float]:
    """Return the mean and its standard error from block means, so that correlated steps do not feign certainty."""
    count = len(values)
    if count < 2:
        return (float(values[0]) if count else 0.0), float("inf")
    blocks = min(num_blocks, count)
    means = np.array([float(np.mean(part)) for part in np.array_split(values, blocks)])
    return float(np.mean(values)), float(np.std(means, ddof=1) / np.sqrt(blocks))


def lag_correlation(values: Array, lag: int = 1) -> float:
    """Return the autocorrelation at a lag; 0 for a constant."""
    centred = values - np.mean(values)
    scale = float(np.sum(centred**2))
    if scale == 0 or len(values) <= lag:
        return 0.0
    return float(np.sum(centred[lag:] * centred[:-lag]) / scale)
