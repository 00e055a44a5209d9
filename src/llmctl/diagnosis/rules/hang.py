"""The run stood still and was ended: one process did not go on, and the others waited for it in a collective.

Signal: the folder `hang/` that a run keeps when it is ended for want of progress: for each process the stacks of its
threads and torch's record of its last collectives. The process to blame does not answer, or stands in no collective,
or has entered fewer of them than the others.

Look-alikes: a slow rank goes on (`slow_rank`); a process that died is told by the launcher.

Cause: a reader on a dead mount, a process that was stopped or starved, a collective that not all ranks call.

Fix: look at the stack of the process that is named; the same command goes on from the last checkpoint,
`--elastic` does so by itself.

Source: which rank, which collective: the flight recorder of PyTorch, and the hang analysis of MegaScale (arXiv
2402.15627, §5.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity


@dataclass
class Rule:
    """The run stood still and was ended."""

    needs: ClassVar[tuple[str, ...]] = ("hang",)

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report the processes that the others waited for."""
        from llmctl.training.hang import describe, to_blame

        stuck = evidence.hang
        blamed = to_blame(stuck)
        first = (blamed or stuck)[0]
        silent = bool(blamed) and first.silent
        return [
            Finding(
                rule="hang",
                severity=Severity.CRITICAL,
                step=first.step + 1,
                rank=first.rank if blamed else None,
                evidence=describe(stuck),
                cause="its process was stopped, starved of its processor, or its host is gone"
                if silent
                else "it stands in work that does not end, or not all ranks call the same collective",
                fix=f"look at hang/stack-{first.rank}.txt in the run's folder, and at that host; the same command goes "
                "on from the last checkpoint, and --elastic would have done so by itself",
                values={"waited_s": max(item.waited_s for item in stuck)},
            )
        ]
