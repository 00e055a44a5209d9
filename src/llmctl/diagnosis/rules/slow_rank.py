"""One rank is slower than the others, and they wait for it.

Signal: a rank's own work (data, forward, backward, update) takes longer than the median of its peers, step after
step, and that rank spends the least time in communication, because the others are waiting there already.

Look-alikes: a slow link makes all ranks of a group wait alike while their own work is equal
(`communication_bound`); a rank that is slow in single steps only (garbage collection) is `step_time_jitter`; stages
of a pipeline differ by design and are compared with their peers of the same stage only.

Cause: a processor that throttles or is shared, a slow disk under that rank, more or longer sequences than
the others get.

Fix: look at that host (clocks, other jobs, disk); move the rank; give all ranks equal work.

Source: in a synchronous collective the late rank shows the shortest time inside it; a fifth of slow hosts found this
way: MegaScale (arXiv 2402.15627, §5.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.ranks import RankTimes, rank_times
from llmctl.diagnosis.statistics import Array


@dataclass
class Rule:
    """One rank is slower than the others, and they wait for it."""

    needs: ClassVar[tuple[str, ...]] = ("ranks",)

    ratio: Annotated[float, Opt("Own work of a slow rank, as a ratio to its peers' median.", min=1)] = 1.15
    share_of_steps: Annotated[float, Opt("Share of the steps in which the rank is the slowest.", min=0, max=1)] = 0.6
    share_of_step: Annotated[float, Opt("Least lateness as a share of the whole step.", min=0, max=1)] = 0.05
    min_steps: Annotated[int, Opt("Fewest common steps to judge.", min=3)] = 10

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report every rank that its peers wait for."""
        findings = []
        for group in rank_times(evidence):
            if len(group.ranks) >= 2 and len(group.steps) >= self.min_steps:
                findings += self._judge(group)
        return findings

    def _judge(self, group: RankTimes) -> list[Finding]:
        half = len(group.steps) // 2
        for own, waiting in group.splits():
            # A rank that became slow in the middle shows in the later half.
            for shift in (0, half) if len(group.steps) - half >= self.min_steps else (0,):
                found = self._slow_ranks(own[:, shift:], waiting[:, shift:])
                if found:
                    return [self._finding(group, own, waiting, shift, row, ratio) for row, ratio in found]
        return []

    def _slow_ranks(self, own: Array, waiting: Array) -> list[tuple[int, float]]:
        found = []
        whole = float(np.median(own + waiting))
        for row in range(len(own)):
            peers, others_wait = np.delete(own, row, axis=0), np.delete(waiting, row, axis=0)
            ratio = own[row] / np.median(peers, axis=0)
            late = float(np.median(own[row] - np.median(peers, axis=0)))
            if np.median(ratio) < self.ratio or np.mean(own[row] >= peers.max(axis=0)) < self.share_of_steps:
                continue
            # It matters only if the lateness is felt, and only if it is not this rank that waits.
            if late < self.share_of_step * whole or np.median(waiting[row]) > 1.05 * np.median(others_wait):
                continue
            found.append((row, float(np.median(ratio))))
        return found

    def _finding(self, group: RankTimes, own: Array, waiting: Array, shift: int, row: int, ratio: float) -> Finding:
        others = [position for position in range(len(group.ranks)) if position != row]
        mine, theirs = float(np.median(own[row, shift:])), float(np.median(own[others, shift:]))
        waits = ""
        if np.any(waiting):
            waits = (
                f"; with exchanging gradients it spends {np.median(waiting[row, shift:]):.3g} s, "
                f"the others {np.median(waiting[others, shift:]):.3g} s"
            )
        cause, fix = self._explain(group, row, others, shift)
        return Finding(
            rule="slow_rank",
            severity=Severity.WARNING,
            step=_since(group, own, row, others, ratio),
            rank=group.ranks[row],
            evidence=f"rank {group.ranks[row]} needs {mine:.3g} s a step for its own work, {ratio:.2f} times the "
            f"{theirs:.3g} s of its peers{waits}",
            cause=cause,
            fix=fix,
            values={"ratio": ratio, "own_s": mine, "peers_s": theirs},
        )

    def _explain(self, group: RankTimes, row: int, others: list[int], shift: int) -> tuple[str, str]:
        excess = {
            name: float(np.median(times[row, shift:]) - np.median(times[others, shift:]))
            for name, times in group.parts.items()
            if name in ("data_time_s", "forward_s", "backward_s", "update_s")
        }
        if excess and max(excess, key=lambda name: excess[name]) == "data_time_s":
            return (
                "its data come late: a slow disk or too few readers on that host",
                "look at that host's disk; copy the shards to it",
            )
        return (
            "its processor is slower: throttled, shared with another job, or given more work",
            "look at that host's clocks, temperature and load; move the rank to another host",
        )


def _since(group: RankTimes, own: Array, row: int, others: list[int], ratio: float) -> int:
    """Return the first step from which on most steps of the rank are slow."""
    slow = own[row] / np.median(own[others], axis=0) >= 1 + (ratio - 1) / 2
    for position in range(len(slow)):
        if slow[position] and slow[position : position + 8].mean() >= 0.75:
            return int(group.steps[position])
    return int(group.steps[0])
