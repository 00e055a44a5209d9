"""Turn values into positions on an axis, and choose its ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic map from `low`…`high` to `start`…`end` (pixels)."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of a value, kept within the axis."""
        low, high, value = (self._inner(self.low), self._inner(self.high), self._inner(value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def _inner(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value


def extent(values: Sequence[float], *, log: bool = False, zero: bool = False) -> tuple[float, float]:
    """Return the range of an axis for finite values, a little wider than they are.

    Args:
        values: what is shown.
        log: only positive values count.
        zero: the axis begins at zero (bars).
    """
    shown = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    if not shown:
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = min(shown), max(shown)
    if zero:
        low, high = min(0.0, low), max(0.0, high)
    if low == high:
        margin = abs(low) * 0.1 or 1.0
        return (low / 2, high * 2) if log else (low - (0 if zero else margin), high + margin)
    if log:
        return low / (high / low) ** 0.05, high * (high / low) ** 0.05
    margin = 0.05 * (high - low)
    return (low if zero and low == 0 else low - margin), (high if zero and high == 0 else high + margin)


def ticks(low: float, high: float, *, log: bool = False, most: int = 6) -> list[float]:
    """Return round values between `low` and `high`: multiples of 1, 2 or 5 times a power of ten; powers if `log`."""
    if log:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        if last - first >= 1:
            stride = max(1, (last - first) // most + 1)
            return [10.0**power for power in range(first, last + 1, stride)]
        return [value for value in ticks(low, high, most=most) if value > 0]
    if high <= low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_label(value: float) -> str:
    """Return a tick in few characters: ``1.2M``, ``300``, ``0.05``, ``1e-05``."""
    size = abs(value)
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if size >= limit:
            return f"{value / limit:.4g}{unit}"
    if size >= 10000:
        return f"{value / 1000:.4g}k"
    return f"{value:.4g}" if size >= 1e-3 or size == 0 else f"{value:.1e}"


def thin_out(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Return at most about `most` points of a curve, keeping each stretch's lowest and highest value.

    Points that are not finite are kept: they break the line where they stand.
    """
    if len(points) <= most:
        return list(points)
    stretch = math.ceil(2 * len(points) / most)
    kept: list[tuple[float, float]] = [points[0]]
    for begin in range(0, len(points), stretch):
        part = points[begin : begin + stretch]
        finite = [point for point in part if math.isfinite(point[1])]
        broken = next((point for point in part if not math.isfinite(point[1])), None)
        chosen = {min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1])} if finite else set()
        kept += sorted([*chosen, *([broken] if broken else [])])
    kept.append(points[-1])
    return list(dict.fromkeys(kept))
