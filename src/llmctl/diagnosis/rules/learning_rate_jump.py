"""The learning rate jumps at a restart, or is negative.

Signal: at a step where the run was taken up again the learning rate differs by more than a third from the step before;
or any learning rate is below zero.

Look-alikes: warm-up, decay, and schedules in steps change the learning rate too, but not at a restart; an alarm
that lowers the rate by a fifth stays below the threshold.

Cause: the schedule's state was not restored, or a schedule that is shorter than the run.

Fix: make the learning rate a function of the step alone; set the schedule's length to the run's.

Source: Megatron-LM issues 1138 and 963 (learning rate after a resume); nanochat 775 (negative past the horizon).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity


@dataclass
class Rule:
    """The learning rate jumps at a restart, or is negative."""

    needs: ClassVar[tuple[str, ...]] = ("lr",)

    jump: Annotated[float, Opt("Least change at a restart as a share of the rate before.", min=0)] = 0.33

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report a learning rate that is negative or jumps at a restart."""
        lr = evidence.series("lr")
        negative = np.nonzero(lr.values < 0)[0]
        if len(negative):
            step = int(lr.steps[negative[0]])
            return [
                Finding(
                    rule="learning_rate_jump",
                    severity=Severity.CRITICAL,
                    step=step,
                    evidence=f"the learning rate is {lr.values[negative[0]]:.3g} at step {step}: every update climbs",
                    cause="the run is longer than its schedule",
                    fix="set the schedule's length to the number of steps, and keep --min-lr-fraction at 0 or above",
                )
            ]
        findings = []
        for restart in evidence.restarts:
            before, after = lr.between(restart - 5, restart - 1), lr.between(restart, restart + 4)
            if not len(before) or not len(after) or before.values[-1] <= 0:
                continue
            ratio = float(after.values[0] / before.values[-1])
            # What the schedule does from step to step is no jump.
            usual = abs(float(after.values[-1] - after.values[0])) / float(before.values[-1])
            if abs(ratio - 1) > self.jump + 2 * usual:
                findings.append(
                    Finding(
                        rule="learning_rate_jump",
                        severity=Severity.WARNING,
                        step=restart,
                        evidence=f"the learning rate is {before.values[-1]:.3g} before the restart at step {restart} "
                        f"and {after.values[0]:.3g} after it",
                        cause="the place in the schedule was not restored, or the configuration is another",
                        fix="resume with the same configuration; the learning rate must follow from the step alone",
                        values={"before": float(before.values[-1]), "after": float(after.values[0])},
                    )
                )
        return findings
