"""Memory grows from step to step.

Signal: memory grows by more than a twentieth over the run, each third of the run is higher than the one before,
and the last third still grows at more than six tenths of the average pace.

Look-alikes: a peak counter that climbs more and more slowly (caches, fragments, the longest sequence so far)
is healthy; so are jumps up and down with the length of the sequences.

Cause: something keeps what each step makes: losses that are added up with their graph, lists of tensors,
a cache without a bound; or the allocator's fragments.

Fix: keep numbers, not tensors (`loss.item()`), bound caches; against fragments
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.

Source: PyTorch, "My model reports out of memory" (accumulating history across the training loop).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.columns import Series
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.statistics import trend_of


@dataclass
class Rule:
    """Memory grows from step to step."""

    needs: ClassVar[tuple[str, ...]] = ("memory_bytes|ranks", "steps")

    growth: Annotated[float, Opt("Least growth over the run as a share of the memory at its start.", min=0)] = 0.05
    late_pace: Annotated[
        float, Opt("Least pace in the last third as a share of the whole run's; a leak keeps its pace.", min=0)
    ] = 0.6
    min_steps: Annotated[int, Opt("Fewest steps, after the first ones, to judge.", min=9)] = 30
    z: Annotated[float, Opt("Least Kendall statistic in standard deviations.", min=0)] = 3.3

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report growing memory, of the run or of single ranks."""
        memory = evidence.steady("memory_bytes")
        finding = self._judge(evidence, memory, None)
        if finding:
            return [finding]
        found = []
        for rank, columns in sorted(evidence.ranks.items()):
            series = columns.series("memory_bytes").finite()
            finding = self._judge(evidence, Series(series.steps[5:], series.values[5:]), rank)
            if finding:
                found.append(finding)
        # All ranks growing alike is one fault of the program, not one of each rank.
        return found[:1] if len(found) > len(evidence.ranks) // 2 else found

    def _judge(self, evidence: Evidence, memory: Series, rank: int | None) -> Finding | None:
        if len(memory) < self.min_steps:
            return None
        trend = trend_of(memory.steps, memory.values, 40)
        thirds = [float(np.median(part)) for part in np.array_split(memory.values, 3)]
        last = memory.tail(1 / 3)
        late = trend_of(last.steps, last.values, 40)
        if trend.relative_change < self.growth or trend.z < self.z or not thirds[0] < thirds[1] < thirds[2]:
            return None
        if late.slope < self.late_pace * trend.slope or late.z < 2:
            return None
        per_step = trend.slope
        total = evidence.number("memory_limit_bytes")
        left = (
            f"; at this pace it is full at step {int(memory.steps[-1] + (total - trend.end) / per_step)}"
            if total
            else ""
        )
        return Finding(
            rule="memory_growth",
            severity=Severity.WARNING,
            step=int(memory.steps[0]),
            rank=rank,
            evidence=f"memory grows from {trend.start / 1e9:.3g} to {trend.end / 1e9:.3g} GB, {per_step / 1e6:.3g} MB "
            f"a step, and still does at the end{left}",
            cause="something keeps what each step makes (a tensor with its graph, an unbounded cache or list)",
            fix="keep numbers instead of tensors, bound caches; compare two memory snapshots some hundred steps apart",
            values={"start_bytes": trend.start, "end_bytes": trend.end, "bytes_per_step": per_step},
        )
