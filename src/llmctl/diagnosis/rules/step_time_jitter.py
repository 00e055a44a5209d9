"""Some steps take far longer than the rest, and cost a good part of the time.

Signal: the time that slow steps (twice the median or more) take beyond the median, as a share of the whole time,
and whether they come at equal distances.

Look-alikes: the first steps and the first after a restart; pauses for checkpoints that cost less than a twentieth of
the time; steps that vary with the length of their sequences, which are judged per token.

Cause: at equal distances: checkpoints that are written while training waits, validation, or scheduled
garbage collection; otherwise Python's garbage collection, the storage, or other jobs on the host.

Fix: write checkpoints in the background or less often; switch automatic garbage collection off (gc.disable) and
collect every few hundred steps on all ranks at once; give the job the host for itself.

Source: torchtitan and MegaScale (arXiv 2402.15627, §6.3) collect garbage at fixed steps, because pauses of single
ranks add up over the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from llmctl.config.schema import Opt
from llmctl.diagnosis.columns import Series
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.signals import STEP_PARTS


@dataclass
class Rule:
    """Some steps take far longer than the rest, and cost a good part of the time."""

    needs: ClassVar[tuple[str, ...]] = ("step_time_s", "steps")

    slow: Annotated[float, Opt("A step is slow from this many times the median.", min=1.1)] = 2.0
    lost_share: Annotated[float, Opt("Least share of the time that slow steps cost beyond the median.", min=0)] = 0.08
    min_slow_steps: Annotated[int, Opt("Fewest slow steps.", min=1)] = 3

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report slow steps that cost a good part of the time."""
        times = self._per_token(evidence, evidence.step_time())
        if len(times) < 20:
            return []
        median = times.median()
        slow = times.values >= self.slow * median
        lost = float(np.sum(times.values[slow] - median))
        share = lost / float(np.sum(times.values))
        if share < self.lost_share or slow.sum() < self.min_slow_steps or slow.mean() > 0.25:
            return []
        steps = times.steps[slow]
        period = period_of(steps)
        cause, fix = self._explain(evidence, steps, period)
        rhythm = f", every {period} steps" if period else ""
        return [
            Finding(
                rule="step_time_jitter",
                severity=Severity.WARNING,
                step=int(steps[0]),
                evidence=f"{slow.sum()} of {len(times)} steps{rhythm} take "
                f"{np.median(times.values[slow]) / median:.1f} times the median of "
                f"{evidence.step_time().median():.3g} s, and cost {100 * share:.0f} % of the time",
                cause=cause,
                fix=fix,
                values={"share": share, "num_slow_steps": float(slow.sum()), "period_steps": float(period or 0)},
            )
        ]

    def _per_token(self, evidence: Evidence, times: Series) -> Series:
        rate = evidence.steady("tokens_per_s")
        if len(rate) < len(times) or not np.all(rate.values > 0):
            return times
        return Series(rate.steps, float(np.median(rate.values)) * times.median() / rate.values)

    def _explain(self, evidence: Evidence, steps: NDArray[np.int64], period: int | None) -> tuple[str, str]:
        part = self._slow_part(evidence, steps)
        if part == "data_time_s":
            return (
                "waiting for data: a new shard is opened or shuffled only when it is needed",
                "read the next shard ahead, with more reader processes",
            )
        if period is not None:
            interval = evidence.number("checkpoint_every") or evidence.number("save_steps")
            what = (
                "checkpoints" if interval and period % int(interval) == 0 else "checkpoints, validation or collection"
            )
            return (
                f"{what} at fixed steps, while training waits",
                "save and validate less often (--checkpoint-every), or write checkpoints in the background",
            )
        return (
            "pauses at no fixed distance: Python's garbage collection, storage, or other jobs on the host",
            "switch automatic garbage collection off and collect every few hundred steps on all ranks at once",
        )

    def _slow_part(self, evidence: Evidence, steps: NDArray[np.int64]) -> str | None:
        excess = {}
        for name in STEP_PARTS:
            part = evidence.steady(name)
            at = part.where(np.isin(part.steps, steps))
            if len(at):
                excess[name] = at.median() - part.median()
        return max(excess, key=lambda key: excess[key]) if excess else None


def period_of(steps: NDArray[np.int64]) -> int | None:
    """Return the distance at which steps come, if nearly all of them do; None otherwise."""
    if len(steps) < 4:
        return None
    gaps = np.diff(steps)
    common = int(np.median(gaps))
    if common < 2:
        return None
    # A missed one doubles the gap, so multiples count.
    fits = np.abs(gaps / common - np.round(gaps / common)) * common <= 1
    return common if np.mean(fits) >= 0.8 and np.mean(np.abs(gaps - common) <= 1) >= 0.6 else None
