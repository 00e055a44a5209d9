"""Turn a table of phases × sources into whole numbers of samples: the plan of a run, made before it starts.

A phase that starts at the share f of N steps owns the steps s (from 0) with f ≤ s/N, up to the start of the next: its
start, not its end. Within a phase the samples are divided by largest remainder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

from llmctl.errors import UserError
from llmctl.loading.config import MixtureConfig, MixturePhase

WhenExhausted = Literal["refuse", "repeat", "renormalize"]
# Up to about four epochs, repeated data was nearly as good as new (Muennighoff et al. 2023).
MANY_EPOCHS = 4
ALL = "all"


@dataclass(frozen=True)
class PlannedPhase:
    """The samples of one phase.

    Attributes:
        first_step, steps: its first step, from 1, and how many it has.
        counts: samples of each column.
    """

    start: float
    first_step: int
    steps: int
    weights: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class MixturePlan:
    """How many samples of each column every phase takes.

    Attributes:
        columns: groups or sources; `sources`: the sources of each.
        per_epoch: sequences of one epoch of each column.
    """

    columns: tuple[str, ...]
    sources: tuple[tuple[str, ...], ...]
    per_epoch: tuple[int, ...]
    global_batch_size: int
    phases: tuple[PlannedPhase, ...]

    @property
    def totals(self) -> tuple[int, ...]:
        """Return the samples of each column over the whole run."""
        return tuple(sum(counts) for counts in zip(*(phase.counts for phase in self.phases), strict=True))

    @property
    def epochs(self) -> tuple[float, ...]:
        """Return how often the run sees each column."""
        return tuple(total / size if size else 0.0 for total, size in zip(self.totals, self.per_epoch, strict=True))

    def to_mapping(self) -> dict[str, Any]:
        """Return the plan as plain values; equal runs have equal plans."""
        return {
            "global_batch_size": self.global_batch_size,
            "steps": sum(phase.steps for phase in self.phases),
            "columns": [
                {
                    "name": name,
                    "sources": list(self.sources[index]),
                    "sequences_per_epoch": self.per_epoch[index],
                    "samples": self.totals[index],
                    "epochs": round(self.epochs[index], 6),
                }
                for index, name in enumerate(self.columns)
            ],
            "phases": [
                {
                    "start": phase.start,
                    "first_step": phase.first_step,
                    "last_step": phase.first_step + phase.steps - 1,
                    "weights": dict(zip(self.columns, phase.weights, strict=True)),
                    "samples": dict(zip(self.columns, phase.counts, strict=True)),
                }
                for phase in self.phases
            ],
        }


def columns_of(config: MixtureConfig, sources: Sequence[str]) -> dict[str, list[str]]:
    """Return the sources of each column of the table; one column `all` without a table.

    Raises:
        UserError: a source that the table does not name, or a column without a source.
    """
    if not config.phases:
        return {ALL: list(sources)}
    found: dict[str, list[str]] = {name: [] for name in config.columns}
    forgotten = []
    for source in sources:
        column = _column(config, source)
        if column is None:
            forgotten.append(source)
        else:
            found[column].append(source)
    if forgotten:
        raise UserError(
            f"`mixture` says nothing of the source{'s' if len(forgotten) > 1 else ''} {', '.join(forgotten[:5])}"
            + (f" and {len(forgotten) - 5} more" if len(forgotten) > 5 else ""),
            "give them a weight, or put them into a group: --set 'mixture.groups.other=[\"*\"]'",
        )
    for name, members in found.items():
        if not members and any(phase.weights.get(name) for phase in config.phases):
            raise UserError(
                f"`mixture` gives a weight to {name}, and the shards have no such source",
                f"their sources are {', '.join(sources[:10])}; name the sources of a group in mixture.groups",
            )
    return found


def _column(config: MixtureConfig, source: str) -> str | None:
    for name, patterns in config.groups.items():
        if any(fnmatchcase(source, pattern) for pattern in patterns):
            return name
    return source if source in config.columns and source not in config.groups else None


def phase_steps(starts: Sequence[float], steps: int) -> list[range]:
    """Return the steps (from 1) of each phase: those s with start ≤ (s − 1)/steps < the next start."""
    firsts = [math.ceil(_exact(start) * steps) for start in starts] + [steps]
    return [range(first + 1, following + 1) for first, following in pairwise(firsts)]


def _exact(number: float) -> Fraction:
    return Fraction(repr(float(number)))  # 0.1 is a tenth, as it was written


def largest_remainder(total: int, weights: Sequence[Fraction]) -> list[int]:
    """Divide a total in proportion to weights, each share rounded down or up; ties go to the first."""
    whole = sum(weights)
    quotas = [weight * total / whole for weight in weights]
    counts = [math.floor(quota) for quota in quotas]
    order = sorted(range(len(weights)), key=lambda index: (counts[index] - quotas[index], index))
    for index in order[: total - sum(counts)]:
        counts[index] += 1
    return counts


def plan_mixture(
    config: MixtureConfig,
    sources: Mapping[str, Sequence[str]],
    per_epoch: Mapping[str, int],
    *,
    steps: int,
    global_batch_size: int,
    max_epochs: float = 0.0,
    when_exhausted: WhenExhausted = "refuse",
) -> MixturePlan:
    """Plan the samples of a run.

    Args:
        sources: of `columns_of`.
        per_epoch: sequences of one epoch of each column.
        max_epochs: how often a column may be seen; 0 sets no limit.
        when_exhausted: what to do with a column that is used up: refuse the plan, repeat it all the same, or give its
            place to the other columns of the phase in proportion to their weights.

    Raises:
        UserError: a column without tokens has a weight, or `max_epochs` is passed.
    """
    columns = list(sources)
    rows = config.phases or [MixturePhase(0.0, {ALL: 1.0})]
    left = {name: math.floor(_exact(max_epochs) * per_epoch[name]) for name in columns} if max_epochs else None
    phases = []
    for row, owned in zip(rows, phase_steps([row.start for row in rows], steps), strict=True):
        weights = {name: _exact(row.weights.get(name, 0.0)) for name in columns}
        for name, weight in weights.items():
            if weight and not per_epoch[name]:
                raise UserError(f"`mixture` gives a weight to {name}, which has no tokens to train on", "set it to 0")
        total = len(owned) * global_batch_size
        if left is not None and when_exhausted == "renormalize":
            counts = _renormalized(total, weights, left, max_epochs)
            left = {name: left[name] - counts[name] for name in columns}
        else:
            counts = dict(zip(columns, largest_remainder(total, list(weights.values())), strict=True))
        phases.append(
            PlannedPhase(
                row.start,
                owned.start,
                len(owned),
                tuple(float(row.weights.get(name, 0.0)) for name in columns),
                tuple(counts[name] for name in columns),
            )
        )
    plan = MixturePlan(
        tuple(columns),
        tuple(tuple(sources[name]) for name in columns),
        tuple(per_epoch[name] for name in columns),
        global_batch_size,
        tuple(phases),
    )
    if max_epochs and when_exhausted == "refuse":
        _refuse_repetition(plan, max_epochs)
    return plan


def _renormalized(
    total: int, weights: Mapping[str, Fraction], left: Mapping[str, int], max_epochs: float
) -> dict[str, int]:
    counts = dict.fromkeys(weights, 0)
    active = [name for name, weight in weights.items() if weight]
    while total:
        if not active:
            raise UserError(
                f"the sources of `mixture` are used up at {max_epochs:g} epochs, {total:,} samples before the end of a "
                "phase",
                "train for fewer steps, raise --max-epochs, or add data",
            )
        shares = dict(zip(active, largest_remainder(total, [weights[name] for name in active]), strict=True))
        short = [name for name in active if shares[name] > left[name]]
        if not short:
            counts.update(shares)
            break
        for name in short:
            counts[name] = left[name]
            total -= left[name]
            active.remove(name)
    return counts


def _refuse_repetition(plan: MixturePlan, max_epochs: float) -> None:
    for name, epochs, total, size in zip(plan.columns, plan.epochs, plan.totals, plan.per_epoch, strict=True):
        if total > math.floor(_exact(max_epochs) * size):
            what = "the documents" if plan.columns == (ALL,) else name
            raise UserError(
                f"the run sees {what} {epochs:.2f} times ({total:,} samples, {size:,} an epoch), and max_epochs is "
                f"{max_epochs:g}",
                "train for fewer steps, raise --max-epochs, or say --when-exhausted renormalize or repeat",
            )
