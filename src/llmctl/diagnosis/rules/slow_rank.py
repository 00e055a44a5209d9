"""One rank is slower than the others, and they wait for it.

Signal: a rank's own work (data, forward, backward, update) takes longer than the median of its peers, step after
step, and that rank spends the least time in communication, because the others are waiting there already.

Look-alikes: a slow link makes all ranks of a group wait alike while their own work is equal
(`communication_bound`); a rank that is slow in single steps only (garbage collection) is `step_time_jitter`; stages of a
pipeline differ by design and are compared with their peers of the same stage only.

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


@dataclass
class Rule:
    """One rank is slower than the others, and they wait for it."""

    needs: ClassVar[tuple[str, ...]] = ("ranks",)

    ratio: Annotated[float, Opt("Own work of a slow rank, as a ratio to its peers' median.", min=1)] = 1.15
    share_of_steps: Annotated[float, Opt("Share of the steps in which the rank is the slowest.", min=0, max=1)] = 0.6
    min_steps: Annotated[int, Opt("Fewest common steps to judge.", min=3)] = 10

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report every rank that its peers wait for."""
        findings = []
        for group in rank_times(evidence):
            if len(group.ranks) >= 2 and len(group.steps) >= self.min_steps:
                findings += self._judge(group)
        return findings

    def _judge(self, group: RankTimes) -> list[Finding]:
        shift = 0
        found = self._slow_ranks(group, slice(None))
        if not found:
            # A rank that became slow in the middle: the later half decides, and the first late step is looked for.
            half = len(group.steps) // 2
            if half >= self.min_steps:
                found, shift = self._slow_ranks(group, slice(half, None)), half
        findings = []
        for row, ratio in found:
            others = [position for position in range(len(group.ranks)) if position != row]
            waiting = ""
            if group.communication is not None:
                own = float(np.median(group.communication[row, shift:]))
                theirs = float(np.median(group.communication[others, shift:]))
                if own > 1.05 * theirs:
                    continue  # it waits longer than the others do: it is not the one they wait for
                waiting = f"; it spends {own:.3g} s in communication, the others {theirs:.3g} s"
            what, fix = self._explain(group, row, others, shift)
            findings.append(
                Finding(
                    rule="slow_rank",
                    severity=Severity.WARNING,
                    step=self._since(group, row, others, ratio),
                    rank=group.ranks[row],
                    evidence=f"rank {group.ranks[row]} needs {np.median(group.own[row, shift:]):.3g} s a step for its own "
                    f"work, {ratio:.2f} times the {np.median(group.own[others, shift:]):.3g} s of its peers{waiting}",
                    cause=what,
                    fix=fix,
                    values={"ratio": ratio},
                )
            )
        return findings

    def _slow_ranks(self, group: RankTimes, part: slice) -> list[tuple[int, float]]:
        own = group.own[:, part]
        found = []
        for row in range(len(group.ranks)):
            peers = np.delete(own, row, axis=0)
            ratio = own[row] / np.median(peers, axis=0)
            if np.median(ratio) >= self.ratio and np.mean(own[row] >= peers.max(axis=0)) >= self.share_of_steps:
                found.append((row, float(np.median(ratio))))
        return found

    def _since(self, group: RankTimes, row: int, others: list[int], ratio: float) -> int:
        ratios = group.own[row] / np.median(group.own[others], axis=0)
        slow = ratios >= 1 + (ratio - 1) / 2
        # The first step from which on most steps are slow.
        for position in range(len(slow)):
            window = slow[position : position + 8]
            if slow[position] and window.mean() >= 0.75:
                return int(group.steps[position])
        return int(group.steps[0])

    def _explain(self, group: RankTimes, row: int, others: list[int], shift: int) -> tuple[str, str]:
        excess = {
            name: float(np.median(times[row, shift:]) - np.median(times[others, shift:]))
            for name, times in group.parts.items()
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
