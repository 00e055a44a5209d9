"""Most of the step is communication, and no rank is late.

Signal: the share of the step's time in communication, on all ranks alike; the rank that communicates least still
spends that share there, so waiting for a late rank does not explain it. With the bytes logged, the bandwidth that was
achieved.

Look-alikes: a slow rank makes the *others* wait, and itself spends the least time in communication
(`slow_rank`); communication that overlaps with computing does not lengthen the step.

Cause: a slow link or port, a model too small for so many ranks, or tensor parallelism across hosts.

Fix: measure each link; keep tensor parallelism within a host; accumulate gradients over more micro-batches,
or use fewer ranks.

Source: a switch port at 100 Mbit/s: 78 % of the step in the all-reduce. The share alone is no diagnosis: at 25
Gbit/s the same job spends 1.4 % there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.columns import Series
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.ranks import PARTS, RankTimes, rank_times
from llmctl.diagnosis.statistics import best_shift


@dataclass
class Rule:
    """Most of the step is communication, and no rank is late."""

    needs: ClassVar[tuple[str, ...]] = ("communication_s|ranks", "steps")

    share: Annotated[float, Opt("Share of the step in communication from which it is a fault.", min=0, max=1)] = 0.5
    min_steps: Annotated[int, Opt("Fewest steps to judge.", min=3)] = 10

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report communication that takes most of the step on every rank."""
        groups = [group for group in rank_times(evidence) if "communication_s" in group.parts and len(group.ranks) > 1]
        shares = self._shares_of_ranks(groups) if groups else evidence.share_of_step("communication_s")
        if len(shares) < self.min_steps:
            return []
        shift = best_shift(shares.values, max(5, len(shares) // 12))
        late = shares.values[shift.position :] if shift and shift.after > 1.5 * shift.before else shares.values
        share = float(np.median(late))
        if share < self.share:
            return []
        since = len(shares) - len(late)
        step = int(shares.steps[since])
        before = f", up from {100 * float(np.median(shares.values[:since])):.0f} % before step {step}" if since else ""
        achieved = self._bandwidth(evidence, step)
        speed = f"; {achieved / 1e6:.3g} MB/s achieved" if achieved else ""
        alike = ", on every rank" if groups else ""
        return [
            Finding(
                rule="communication_bound",
                severity=Severity.CRITICAL if share >= 0.75 else Severity.WARNING,
                step=step,
                evidence=f"communication takes {100 * share:.0f} % of the step{alike}{before}{speed}",
                cause="a link or port that fell to a lower speed: the work of the ranks has not changed"
                if since
                else "the links are too slow for this model and number of ranks, or one of them is faulty",
                fix="measure each link against its rated speed; then more micro-batches a step "
                "(--global-batch-size), or fewer ranks",
                values={"share": share, **({"bytes_per_s": achieved} if achieved else {})},
            )
        ]

    def _shares_of_ranks(self, groups: list[RankTimes]) -> Series:
        """Return for each step the smallest share of any rank: what waiting for a late rank cannot explain."""
        steps = groups[0].steps
        for group in groups[1:]:
            steps = np.intersect1d(steps, group.steps)
        smallest = np.full(len(steps), np.inf)
        for group in groups:
            columns = np.searchsorted(group.steps, steps)
            talk = group.parts["communication_s"][:, columns]
            whole = group.parts.get("step_time_s", group.total(*PARTS))[:, columns]
            smallest = np.minimum(smallest, np.min(talk / np.maximum(whole, 1e-9), axis=0))
        return Series(steps, smallest)

    def _bandwidth(self, evidence: Evidence, step: int) -> float | None:
        sources = [evidence.metrics, *evidence.ranks.values()]
        for columns in sources:
            sent = columns.series("communication_bytes").finite()
            time = columns.series("communication_s").finite()
            common, left, right = np.intersect1d(sent.steps, time.steps, assume_unique=True, return_indices=True)
            keep = (common >= step) & (time.values[right] > 0)
            if keep.any():
                return float(np.median(sent.values[left][keep] / time.values[right][keep]))
        return None
