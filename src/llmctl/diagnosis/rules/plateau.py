"""The loss fell and now stands still, although the learning rate is high.

Signal: over the last two thirds of the run the training loss falls by less than the noise allows to tell from
nothing, and by less than half a per cent, while the learning rate stays above half of its peak.

Look-alikes: a loss that flattens because the learning rate decays is a schedule that ends; a loss near zero is a
memorised corpus; a slow power law still falls by more than half a per cent. A loss that never fell is
`not_learning`.

Cause: the learning rate is too high to settle, the model is too small for the data, or the data has been seen.

Fix: let the learning rate decay; if the loss does not fall then, a larger model or new data.

Source: Wen et al. 2024 (arXiv 2410.05192: the loss of the stable phase hides progress that the decay reveals).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.signals import peak_lr
from llmctl.diagnosis.statistics import noise_of, trend_of


@dataclass
class Rule:
    """The loss fell and now stands still, although the learning rate is high."""

    needs: ClassVar[tuple[str, ...]] = ("loss", "lr")

    least_fall: Annotated[float, Opt("A fall over the last two thirds below this share is none.", min=0)] = 0.005
    min_steps: Annotated[int, Opt("Fewest logged steps to judge.", min=30)] = 200

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report a training loss that stands still at a high learning rate."""
        loss = evidence.series("loss")
        if evidence.is_reinforcement or len(loss) < self.min_steps:
            return []
        late = loss.tail(2 / 3)
        lr = evidence.series("lr").between(float(late.steps[0]), float(late.steps[-1]))
        peak = peak_lr(evidence)
        if not peak or not len(lr) or np.min(lr.values) < 0.5 * peak or late.median() < 0.1:
            return []
        third = len(late) // 3
        first, last = float(np.median(late.values[:third])), float(np.median(late.values[-third:]))
        error = 1.2533 * noise_of(late.values) * np.sqrt(2 / third)
        begin = float(np.median(loss.values[: max(3, len(loss) // 50)]))
        trend = trend_of(late.steps, late.values)
        fell = begin - first > 0.05 * begin
        if not fell or abs(first - last) + 2 * error > self.least_fall * first or abs(trend.z) > 3.3:
            return []
        return [
            Finding(
                rule="plateau",
                severity=Severity.WARNING,
                step=int(late.steps[0]),
                evidence=f"from step {late.steps[0]} on the loss stays at {first:.4g} (at the end {last:.4g}, error "
                f"{error:.2g}) at a learning rate of {lr.median():.3g}",
                cause="the learning rate is too high to settle, the model too small, or the data has been seen",
                fix="let the learning rate decay from here; if the loss does not fall, take a larger model or new data",
                values={"first": first, "last": last},
            )
        ]
