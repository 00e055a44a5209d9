"""Line up what the ranks logged, step by step, so that they can be compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmctl.diagnosis.columns import Columns
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.statistics import Array

FIRST_STEPS = 3  # compilation and cold caches
PARTS = ("data_time_s", "forward_s", "backward_s", "update_s", "communication_s")


@dataclass(frozen=True)
class RankTimes:
    """Times of ranks that do the same work.

    Attributes:
        ranks: their numbers, in the order of the rows below.
        steps: the steps that all of them logged, the first few left out.
        parts: seconds by part, each of shape (ranks, steps).
    """

    ranks: list[int]
    steps: NDArray[np.int64]
    parts: dict[str, Array]

    def total(self, *names: str) -> Array:
        """Return the sum of those of the named parts that were logged, shape (ranks, steps)."""
        known = [self.parts[name] for name in names if name in self.parts]
        return np.sum(known, axis=0) if known else np.zeros((len(self.ranks), len(self.steps)))

    def splits(self) -> list[tuple[Array, Array]]:
        """Return (own work, time in which a rank may be waiting for others), under each reading of the log.

        Gradients are often exchanged during the backward pass, which then holds the waiting of the fast ranks; so the
        first reading counts `backward_s` as waiting, the second one as work.
        """
        readings = []
        if "forward_s" in self.parts or "data_time_s" in self.parts:
            readings.append(
                (self.total("data_time_s", "forward_s", "update_s"), self.total("backward_s", "communication_s"))
            )
        if "communication_s" in self.parts and ("backward_s" in self.parts or "forward_s" in self.parts):
            own = self.total("data_time_s", "forward_s", "backward_s", "update_s")
            readings.append((own, self.parts["communication_s"]))
        elif "communication_s" in self.parts and "step_time_s" in self.parts:
            readings.append((self.parts["step_time_s"] - self.parts["communication_s"], self.parts["communication_s"]))
        return [(np.maximum(own, 1e-9), waiting) for own, waiting in readings]


def rank_times(evidence: Evidence) -> list[RankTimes]:
    """Return the ranks' times, one group for each pipeline stage."""
    groups: dict[int, list[int]] = {}
    for rank, columns in sorted(evidence.ranks.items()):
        stage = columns.series("pp_rank").finite()
        groups.setdefault(int(stage.values[-1]) if len(stage) else 0, []).append(rank)
    aligned = (_align(ranks, [evidence.ranks[rank] for rank in ranks]) for ranks in groups.values())
    return [group for group in aligned if group is not None]


def _align(ranks: list[int], columns: list[Columns]) -> RankTimes | None:
    names = [name for name in (*PARTS, "step_time_s") if all(name in one for one in columns)]
    if not names:
        return None
    steps = columns[0].series(names[0]).finite().steps
    for one in columns:
        for name in names:
            these = one.series(name).finite().steps
            if not np.array_equal(these, steps):
                steps = np.intersect1d(steps, these, assume_unique=True)
    steps = steps[FIRST_STEPS:]
    if not len(steps):
        return None
    return RankTimes(ranks, steps, {name: np.array([_at(one, name, steps) for one in columns]) for name in names})


def _at(columns: Columns, name: str, steps: NDArray[np.int64]) -> Array:
    series = columns.series(name).finite()
    return series.values[np.searchsorted(series.steps, steps)]
