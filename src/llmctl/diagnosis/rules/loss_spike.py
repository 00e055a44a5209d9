"""The loss jumps up out of a calm run.

Signal: a step whose loss stands many robust standard deviations above the median of the steps before it, and that
either lasts for several steps or comes with a jump of the gradient norm.

Look-alikes: one hard batch (a single step, the gradient norm stays calm) is no fault; nor is the noise of small
batches, which is measured on the run itself, in logarithms. A jump right after a restart points to a
checkpoint that lacks the optimizer's state or to other data. A jump that stays, with a calm gradient norm, is a
change of the data.

Cause: a batch of repeated or broken text, a learning rate near the edge of stability, Adam's second moment
lagging behind; restarts without the optimizer's state.

Fix: go back to the checkpoint before the spike and skip those batches; if spikes come again, lower the learning
rate, clip harder, or lower Adam's beta2 to 0.95.

Source: the threshold of 7 standard deviations is OLMo 2's spike score (arXiv 2501.00656, §3); skipping batches is
PaLM's cure (arXiv 2204.02311, §5.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.columns import Series
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.signals import Spike, find_spikes, lower_lr


@dataclass
class Rule:
    """The loss jumps up out of a calm run."""

    needs: ClassVar[tuple[str, ...]] = ("loss", "steps")

    sigmas: Annotated[float, Opt("Height of a spike in robust standard deviations of the steps before it.", min=1)] = 7
    factor: Annotated[float, Opt("Height of a spike as a ratio to the loss before it.", min=1)] = 1.1
    min_width: Annotated[int, Opt("Steps that a spike lasts if the gradient norm shows nothing.", min=1)] = 3
    norm_factor: Annotated[float, Opt("The gradient norm jumps if it is this many times its value before.", min=1)] = 4
    window: Annotated[int, Opt("Steps that make up what came before.", min=8)] = 30

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report the highest spike, and how many there are."""
        if evidence.is_reinforcement:
            return []
        loss = evidence.series("loss")
        window = int(min(self.window, max(10, len(loss) // 4)))
        found = find_spikes(loss, sigmas=self.sigmas, factor=self.factor, window=window)
        norm = evidence.series("grad_norm")
        spikes = [spike for spike in found if spike.width >= self.min_width or self._norm_jumps(norm, spike, window)]
        if not spikes:
            return []
        worst = max(spikes, key=lambda spike: (not spike.recovered, spike.value / spike.before))
        lasting = not worst.recovered and len(loss) - worst.position >= 2 * self.min_width
        cause, fix = self._explain(evidence, norm, worst, lasting, len(spikes), window)
        others = f"; {len(spikes) - 1} more like it" if len(spikes) > 1 else ""
        course = (
            f"comes down again after {worst.width} steps"
            if worst.recovered
            else f"does not come down in the {len(loss) - worst.position - 1} steps after it"
        )
        return [
            Finding(
                rule="loss_spike",
                severity=Severity.CRITICAL if lasting else Severity.WARNING,
                step=worst.step,
                evidence=f"the loss jumps from {worst.before:.4g} to {worst.value:.4g} ({worst.sigmas:.0f} standard "
                f"deviations of the {window} steps before) and {course}{others}",
                cause=cause,
                fix=fix,
                values={
                    "before": worst.before,
                    "value": worst.value,
                    "sigmas": worst.sigmas,
                    "width_steps": worst.width,
                    "num_spikes": len(spikes),
                },
            )
        ]

    def _norm_jumps(self, norm: Series, spike: Spike, window: int) -> bool:
        before = norm.values[(norm.steps < spike.step)][-window:]
        near = norm.between(spike.step - 1, spike.step + max(1, spike.width)).values
        if len(before) < 4 or not len(near):
            return False
        return bool(np.max(near) >= self.norm_factor * np.median(before))

    def _explain(
        self, evidence: Evidence, norm: Series, spike: Spike, lasting: bool, count: int, window: int
    ) -> tuple[str, str]:
        if any(0 <= spike.step - restart <= 3 for restart in evidence.restarts):
            return (
                "the run was taken up again at this step: the checkpoint lacks the optimizer's state or the place in "
                "the data, or another learning rate applies",
                "resume from a whole checkpoint with the same configuration",
            )
        jumps = self._norm_jumps(norm, spike, window)
        if lasting and len(norm) and not jumps:
            return (
                "the data changed: the loss stays at another level while the gradient norm is calm",
                "compare the sources of the batches before and after this step; mix sources instead of reading them "
                "one after the other",
            )
        lower = lower_lr(evidence)
        if lasting or count > 2:
            return (
                "the learning rate is at the edge of stability: "
                + ("the run does not recover" if lasting else "spikes come again and again"),
                f"go back to the checkpoint before step {spike.step}, {lower}, and clip at --max-grad-norm 1.0",
            )
        return (
            "a batch of repeated or broken text, or an update that was too large; the run recovers",
            "look at the documents of this step; if more spikes come, " + lower,
        )
