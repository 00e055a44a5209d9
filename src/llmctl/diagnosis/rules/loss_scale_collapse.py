"""The fp16 loss scale collapses.

Signal: the loss scale ends at less than a thousandth of its value after the first steps and stands at or near the
lowest value of the run, or it falls to 1 or below.

Look-alikes: the first steps, in which a scale that starts at 2^16 or higher finds its level; the saw-tooth
of a healthy scale, which is halved now and then and doubled after a thousand good steps.

Cause: gradients with values beyond the range of fp16 (65,504) at any scale: exploding gradients, or
activations that overflow; the optimizer skips nearly every step.

Fix: train in bf16; with fp16, lower the learning rate and look for the first layer that overflows.

Source: Micikevicius et al. 2018 (arXiv 1710.03740); DeepSpeed issues 5426 and 931 (the scale falls to its
minimum, then the run ends).
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
    """The fp16 loss scale collapses."""

    needs: ClassVar[tuple[str, ...]] = ("loss_scale",)

    collapse: Annotated[float, Opt("Share of the settled scale below which it has collapsed.", min=0, max=1)] = 0.001
    lowest: Annotated[float, Opt("A dynamic scale at or below this has collapsed.", min=0)] = 1.0

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report a loss scale that has sunk to its end."""
        scale = evidence.series("loss_scale")
        scale = scale.where(scale.values > 0)
        if len(scale) < 8 or np.ptp(scale.values) == 0:
            return []
        settled = float(np.max(scale.values[min(len(scale) // 4, 20) :]))
        top = float(np.max(scale.values))
        end = float(np.median(scale.values[-3:]))
        near_lowest = end <= 4 * float(np.min(scale.values))
        collapsed = end <= self.collapse * settled or (end <= self.lowest and top >= 16 * end)
        if not (collapsed and near_lowest):
            return []
        falls = np.nonzero(np.diff(scale.values) < 0)[0]
        # The last unbroken descent is the collapse.
        rises = np.nonzero(np.diff(scale.values) > 0)[0]
        first = falls[falls > rises[-1]] if len(rises) else falls
        step = int(scale.steps[(first[0] + 1) if len(first) else -1])
        return [
            Finding(
                rule="loss_scale_collapse",
                severity=Severity.CRITICAL,
                step=step,
                evidence=f"the loss scale falls from {top:g} to {end:g}; it was lowered {len(falls)} times",
                cause="gradients are beyond the range of fp16 at any scale, so nearly every step is skipped",
                fix="train in bf16 (--precision bf16); or lower --lr and find the layer that overflows first",
                values={"top": top, "end": end},
            )
        ]
