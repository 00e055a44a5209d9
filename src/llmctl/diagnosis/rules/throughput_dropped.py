"""The throughput drops at one step and stays low.

Signal: the run is best cut into two levels of tokens per second; the second is lower by three tenths or more and
by several times the spread within each level, and it lasts to the end.

Look-alikes: a steady fall is `throughput_falling`; a pause (checkpoint, validation) after which the rate comes
back is no drop; a drop at a restart is told with the restart as its cause (other hosts, other batch).

Cause: told by the part of the step that grew at that step: a link or port that fell to a lower speed
(communication), a disk that filled (data), a processor that throttles or is shared (computing).

Fix: depends on that part; the finding tells.

Source: a port that fell back to 100 Mbit/s took one job from 1.2 to 3.5 s a step, 78 % of it in the all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.rules.throughput_falling import CAUSES, is_one_drop
from llmctl.diagnosis.signals import STEP_PARTS, throughput
from llmctl.diagnosis.statistics import best_shift, sigma_of


@dataclass
class Rule:
    """The throughput drops at one step and stays low."""

    needs: ClassVar[tuple[str, ...]] = ("tokens_per_s|step_time_s", "steps")

    drop: Annotated[float, Opt("Least drop as a share of the rate before.", min=0, max=1)] = 0.3
    sigmas: Annotated[float, Opt("Least drop in standard deviations within a level.", min=0)] = 4.0

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report the step at which the rate drops for good."""
        rate = throughput(evidence)
        if len(rate) < 16 or not is_one_drop(rate):
            return []
        shift = best_shift(rate.values, max(5, len(rate) // 12))
        if shift is None:
            return []
        before, after = rate.values[: shift.position], rate.values[shift.position :]
        spread = max(sigma_of(before), sigma_of(after))
        lost = shift.before - shift.after
        end = float(np.median(after[-max(3, len(after) // 4) :]))
        if lost < self.drop * shift.before or lost < self.sigmas * spread or shift.before - end < 0.5 * lost:
            return []
        step = int(rate.steps[shift.position])
        cause, fix, text = self._explain(evidence, step)
        unit = "tokens/s" if "tokens_per_s" in evidence.metrics else "steps/s"
        return [
            Finding(
                rule="throughput_dropped",
                severity=Severity.WARNING,
                step=step,
                evidence=f"throughput drops from {shift.before:.4g} to {shift.after:.4g} {unit} "
                f"(−{100 * lost / shift.before:.0f} %) at step {step} and stays there{text}",
                cause=cause,
                fix=fix,
                values={"before": shift.before, "after": shift.after},
            )
        ]

    def _explain(self, evidence: Evidence, step: int) -> tuple[str, str, str]:
        grown = {}
        for name in STEP_PARTS:
            part = evidence.steady(name)
            if len(part):
                before, after = part.where(part.steps < step), part.where(part.steps >= step)
                if len(before) and len(after):
                    grown[name] = after.median() - before.median()
        text = ""
        if grown and max(grown.values()) > 0:
            name = max(grown, key=lambda key: grown[key])
            text = f"; {STEP_PARTS[name]} takes {grown[name]:.3g} s more a step"
            times = evidence.step_time()
            whole = times.where(times.steps >= step).median() - times.where(times.steps < step).median()
            if grown[name] >= 0.4 * whole:
                cause, fix = CAUSES[name]
                return cause.replace("longer and longer", "longer from this step on"), fix, text
        if any(abs(step - restart) <= 3 for restart in evidence.restarts):
            return (
                "the run was taken up again here: on slower hosts, or with other settings",
                "compare run.json and config.yaml of both starts",
                text,
            )
        return (
            "something became slower at once: another job on the host, throttling, or a link at a lower speed",
            "look at the hosts' load and clocks and at the links' speed at that time",
            text,
        )
