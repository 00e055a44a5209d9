"""Line up what the ranks logged, step by step, so that they can be compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmctl.diagnosis.columns import Columns
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.statistics import Array

OWN_PARTS = ("data_time_s", "forward_s", "backward_s", "update_s")
FIRST_STEPS = 3  # compilation and cold caches


@dataclass(frozen=True)
class RankTimes:
    """Times of ranks that do the same work.

    Attributes:
        ranks: their numbers, in the order of the rows below.
        steps: the steps that all of them logged, the first few left out.
        own: seconds of each rank's own work, shape (ranks, steps).
        communication: seconds in communication, same shape; None if it was not logged.
        parts: the parts of `own`, each of that shape.
    """

    ranks: list[int]
    steps: NDArray[np.int64]
    own: Array
    communication: Array | None
    parts: dict[str, Array]


def rank_times(evidence: Evidence) -> list[RankTimes]:
    """Return the ranks' times, one group for each pipeline stage."""
    groups: dict[int, list[int]] = {}
    for rank, columns in sorted(evidence.ranks.items()):
        stage = columns.series("pp_rank").finite()
        groups.setdefault(int(stage.values[-1]) if len(stage) else 0, []).append(rank)
    aligned = (_align(ranks, [evidence.ranks[rank] for rank in ranks]) for ranks in groups.values())
    return [group for group in aligned if group is not None]


def _align(ranks: list[int], columns: list[Columns]) -> RankTimes | None:
    shared = [name for name in OWN_PARTS if all(name in one for one in columns)]
    talks = all("communication_s" in one for one in columns)
    whole = all("step_time_s" in one for one in columns)
    names = [*shared, *(["communication_s"] if talks else []), *(["step_time_s"] if whole else [])]
    if not shared and not (whole and talks):
        return None
    steps: NDArray[np.int64] | None = None
    for one in columns:
        for name in names:
            these = one.series(name).finite().steps
            steps = these if steps is None else np.intersect1d(steps, these, assume_unique=True)
    if steps is None or len(steps) <= FIRST_STEPS:
        return None
    steps = steps[FIRST_STEPS:]
    table = {name: np.array([_at(one, name, steps) for one in columns]) for name in names}
    parts = {name: table[name] for name in shared}
    communication = table.get("communication_s")
    if "forward_s" in parts or "backward_s" in parts or communication is None:
        own = np.sum(list(parts.values()), axis=0)
    else:
        own = table["step_time_s"] - communication
    return RankTimes(ranks, steps, np.maximum(own, 1e-9), communication, parts)


def _at(columns: Columns, name: str, steps: NDArray[np.int64]) -> Array:
    series = columns.series(name).finite()
    return series.values[np.searchsorted(series.steps, steps)]
