"""The columns of a log as arrays: for each name the steps at which it was logged, and the values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmctl.diagnosis.statistics import Array
from llmctl.report.logs import number_of


@dataclass(frozen=True)
class Series:
    """One logged quantity: rising `steps` (int64) and `values` (float64), both of shape (n,)."""

    steps: NDArray[np.int64]
    values: Array

    def __len__(self) -> int:
        return len(self.steps)

    def finite(self) -> Series:
        """Return the points whose value is a number."""
        return self.where(np.isfinite(self.values))

    def where(self, mask: NDArray[np.bool_]) -> Series:
        """Return the points of a mask."""
        return Series(self.steps[mask], self.values[mask])

    def between(self, first: float, last: float) -> Series:
        """Return the points with first ≤ step ≤ last."""
        return self.where((self.steps >= first) & (self.steps <= last))

    def tail(self, share: float) -> Series:
        """Return the last `share` of the points (at least one)."""
        start = min(len(self) - 1, int(len(self) * (1 - share))) if len(self) else 0
        return Series(self.steps[start:], self.values[start:])

    def head(self, count: int) -> Series:
        """Return the first `count` points."""
        return Series(self.steps[:count], self.values[:count])

    def median(self) -> float:
        """Return the median value; NaN for no points."""
        return float(np.median(self.values)) if len(self) else float("nan")


EMPTY = Series(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64))


@dataclass
class Columns:
    """The numeric columns of a log, by name."""

    by_name: dict[str, Series] = field(default_factory=dict)

    def series(self, name: str) -> Series:
        """Return a column, empty if it was not logged."""
        return self.by_name.get(name, EMPTY)

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    @property
    def names(self) -> list[str]:
        """Return the names of the columns, sorted."""
        return sorted(self.by_name)

    @property
    def num_steps(self) -> int:
        """Return the number of points of the longest column."""
        return max((len(series) for series in self.by_name.values()), default=0)

    @property
    def last_step(self) -> int | None:
        """Return the last logged step."""
        lasts = [int(series.steps[-1]) for series in self.by_name.values() if len(series)]
        return max(lasts, default=None)


def columns_of(rows: Iterable[Mapping[str, Any]], aliases: Mapping[str, str] | None = None) -> Columns:
    """Turn rows (each with an integer ``step``, rising) into columns.

    Args:
        rows: what one step logged. A null in a column that elsewhere has numbers is NaN: strict JSON cannot write it.
        aliases: {other tool's name: ours}; a column of ours is never replaced by an alias.
    """
    steps: dict[str, list[int]] = {}
    values: dict[str, list[float]] = {}
    for row in rows:
        step = row["step"]
        for key, value in row.items():
            if key == "step":
                continue
            if type(value) is float:
                number: float | None = value
            elif value is None:
                number = float("nan")
            else:
                number = number_of(value)
                if number is None:
                    continue
            if key not in steps:
                steps[key], values[key] = [], []
            steps[key].append(step)
            values[key].append(number)  # type: ignore[arg-type]
    by_name = {key: Series(np.array(steps[key], dtype=np.int64), np.array(values[key])) for key in steps}
    nothing = [key for key, series in by_name.items() if key != "loss" and not np.any(~np.isnan(series.values))]
    for key in nothing:
        del by_name[key]
    for other, ours in (aliases or {}).items():
        if other in by_name and ours not in by_name:
            by_name[ours] = by_name.pop(other)
    return Columns(by_name)
