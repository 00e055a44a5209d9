"""The throughput falls steadily.

Signal: a Theil–Sen line through block medians of the tokens per second falls by more than a tenth over the run,
Kendall's test excludes chance, and each third of the run is slower than the one before.

Look-alikes: the slow first steps (compilation, cold caches) and the first steps after a restart are left out;
single slow steps (checkpoints, garbage collection) do not move medians and are `step_time_jitter`; one sudden drop is
`throughput_dropped`; steps that grow by design (batch or sequence ramp, responses that get longer) are judged
by tokens per second or not at all.

Cause: told by the part of the step that grows: data (storage), communication (a link or a late rank), computing
(throttling), or memory that grows along with it (swapping, fragmentation).

Fix: depends on that part; the finding tells.

Source: Theil 1950, Sen 1968; Mann 1945; garbage collection that grows with the heap: MegaScale (arXiv 2402.15627,
§6.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.columns import Series
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.signals import STEP_PARTS, growing_part, throughput
from llmctl.diagnosis.statistics import best_shift, block_medians, trend_of

# What to do about the part of the step that grows.
CAUSES = {
    "data_time_s": (
        "reading the data takes longer and longer: slow or full storage, or a reader that keeps what it has read",
        "copy the shards to a local disk, raise the number of reader processes, and look at the storage's load",
    ),
    "communication_s": (
        "communication takes longer and longer: a link that degrades, or one rank that arrives later and later",
        "look at the ranks' events for the rank that the others wait for; measure the links",
    ),
    "update_s": (
        "the optimizer's update takes longer and longer: its state is moved or swapped",
        "look for optimizer state in host memory that is being paged out",
    ),
    "forward_s": (
        "computing takes longer and longer: a processor that throttles, or one that is shared",
        "look at clocks and temperatures, and for other jobs on the host",
    ),
}
CAUSES["backward_s"] = CAUSES["forward_s"]


@dataclass
class Rule:
    """The throughput falls steadily."""

    needs: ClassVar[tuple[str, ...]] = ("tokens_per_s|step_time_s", "steps")

    fall: Annotated[float, Opt("Least fall over the run, as a share of the rate at its start.", min=0, max=1)] = 0.1
    z: Annotated[float, Opt("Least Kendall statistic in standard deviations (3.3 is one in a thousand).", min=0)] = 3.3
    min_steps: Annotated[int, Opt("Fewest steps, after the first ones, to judge.", min=9)] = 30
    blocks: Annotated[int, Opt("Blocks of steps whose medians are taken.", min=8)] = 20

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report a rate that falls over the whole run."""
        rate = throughput(evidence)
        if len(rate) < self.min_steps or is_one_drop(rate):
            return []
        trend = trend_of(rate.steps, rate.values, self.blocks)
        thirds = [float(np.median(part)) for part in np.array_split(rate.values, 3)]
        steady = thirds[0] > thirds[1] > thirds[2] and thirds[1] - thirds[2] > 0.2 * (thirds[0] - thirds[2])
        if trend.relative_change > -self.fall or trend.z > -self.z or not steady:
            return []
        cause, fix = explain_slowing(evidence)
        unit = "tokens/s" if "tokens_per_s" in evidence.metrics else "steps/s"
        return [
            Finding(
                rule="throughput_falling",
                severity=Severity.WARNING,
                step=int(rate.steps[0]),
                evidence=f"throughput falls from {trend.start:.4g} to {trend.end:.4g} {unit} "
                f"({100 * trend.relative_change:.0f} %) between steps {rate.steps[0]} and {rate.steps[-1]}"
                + growing_text(evidence),
                cause=cause,
                fix=fix,
                values={"start": trend.start, "end": trend.end, "relative_change": trend.relative_change, "z": trend.z},
            )
        ]


def is_one_drop(rate: Series) -> bool:
    """Tell whether one sudden change of level explains a falling rate better than a line does."""
    steps, values = block_medians(rate.steps.astype(np.float64), rate.values)
    shift = best_shift(values, max(3, len(values) // 12))
    if shift is None or shift.after >= shift.before:
        return False
    trend = trend_of(steps, values)
    line = trend.start + trend.slope * (steps - steps[0])
    level = np.where(np.arange(len(values)) < shift.position, shift.before, shift.after)
    return float(np.sum(np.abs(values - level))) < 0.8 * float(np.sum(np.abs(values - line)))


def growing_text(evidence: Evidence) -> str:
    """Return the part of the step that grows, as the end of a sentence."""
    part = growing_part(evidence)
    if part is None:
        return ""
    return f"; {STEP_PARTS[part[0]]} makes up {100 * min(part[1], 1):.0f} % of the added time"


def explain_slowing(evidence: Evidence) -> tuple[str, str]:
    """Return cause and fix of a run that becomes slower."""
    memory = evidence.steady("memory_bytes")
    part = growing_part(evidence)
    if part is not None and part[0] in ("data_time_s", "communication_s"):
        return CAUSES[part[0]]
    if len(memory) >= 16 and trend_of(memory.steps, memory.values).relative_change > 0.2:
        return (
            "memory grows along with the step time: garbage collection of a growing heap, fragmentation, or swapping",
            "find what keeps the memory (see `memory_growth`); switch automatic garbage collection off and collect "
            "at fixed steps on all ranks",
        )
    if part is not None:
        return CAUSES[part[0]]
    return (
        "steps take longer; the run did not log which part of them does",
        "look at the load of storage, network and processors; log data_time_s, communication_s and forward_s",
    )
