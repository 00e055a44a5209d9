"""The run starts at its full learning rate, and the first updates do harm.

Signal: the learning rate is at its peak from the first step, and within the first part of the run the smoothed
loss rises well above the lowest value it had reached.

Look-alikes: a run without warm-up that comes to no harm (fine-tuning at a small rate, SGD) is not
reported. A rise with a warm-up is `learning_rate_too_high`. A run that was taken up again later has no first steps in
its log and is not judged.

Cause: Adam's second moment rests on a few steps at first, so its updates are at their largest when they are
least to be trusted.

Fix: warm the learning rate up over the first 5 % of the steps (at least 100).

Source: Liu et al. 2020, RAdam (arXiv 1908.03265); Ma and Yarats 2021 (arXiv 1910.04209: 2/(1 − beta2) steps).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.rules.learning_rate_too_high import find_rise
from llmctl.diagnosis.signals import has_warmup, peak_lr


@dataclass
class Rule:
    """The run starts at its full learning rate, and the first updates do harm."""

    needs: ClassVar[tuple[str, ...]] = ("loss", "lr")

    share: Annotated[float, Opt("Least rise of the smoothed loss as a share of its lowest value.", min=0)] = 0.1
    sigmas: Annotated[float, Opt("Least rise in standard deviations of the smoothed loss.", min=0)] = 6.0
    early: Annotated[float, Opt("The first share of the steps, in which the rise must begin.", min=0, max=1)] = 0.2

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report an early rise of the loss in a run without warm-up."""
        if evidence.is_reinforcement or has_warmup(evidence) is not False:
            return []
        rise = find_rise(evidence, share=self.share, sigmas=self.sigmas)
        loss = evidence.series("loss")
        if rise is None or np.searchsorted(loss.steps, rise.bottom_step) > self.early * len(loss):
            return []
        steps = max(100, int(0.05 * int(loss.steps[-1])))
        return [
            Finding(
                rule="warmup_missing",
                severity=Severity.WARNING,
                step=int(loss.steps[0]),
                evidence=f"the learning rate is at its peak of {peak_lr(evidence):.3g} from the first step; the loss "
                f"is {rise.bottom:.4g} at step {rise.bottom_step}, then rises to {rise.top:.4g}",
                cause="no warm-up: the first updates are the largest and the least to be trusted",
                fix=f"warm the learning rate up: --warmup-fraction 0.05 (at least {steps} steps); if the loss still "
                "rises, lower --lr too",
                values={"bottom": rise.bottom, "top": rise.top},
            )
        ]
