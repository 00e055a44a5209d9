"""The validation loss stands still while the training loss goes on falling.

Signal: over the last half of the evaluations the validation loss falls by less than half a per cent (and less
than its noise lets one claim), the training loss by more than five per cent, and the validation loss is by now
well above the training loss.

Look-alikes: both flatten (the schedule ends, or `plateau`); the validation loss falls more slowly than the training
loss, but falls; a validation loss that rises is `validation_turning_up`; a training loss below the validation
loss by a constant is the difference of two texts.

Cause: overfitting begins: what the model still learns is the training text itself. Repeated documents do the same.

Fix: dropout 0.1, more or deduplicated text, fewer passes; stop here if there is no more text.

Source: Hernandez et al. 2022 (arXiv 2205.10487: repeated data harms); Muennighoff et al. 2023 (arXiv 2305.16264).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.columns import Series
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.rules.validation_turning_up import training_change
from llmctl.diagnosis.signals import smooth
from llmctl.diagnosis.statistics import noise_of


@dataclass
class Rule:
    """The validation loss stands still while the training loss goes on falling."""

    needs: ClassVar[tuple[str, ...]] = ("validation", "loss")

    least_fall: Annotated[float, Opt("A fall of the validation loss below this share is none.", min=0)] = 0.005
    training_fall: Annotated[float, Opt("The training loss still falls if it falls by this share.", min=0)] = 0.05
    gap: Annotated[float, Opt("Least distance of validation from training loss, as a share.", min=0)] = 0.05
    min_evaluations: Annotated[int, Opt("Fewest evaluations to judge.", min=4)] = 6

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report every validation set whose loss stands still."""
        if evidence.is_reinforcement:
            return []
        found = (self._judge(evidence, name, series) for name, series in sorted(evidence.validation_loss().items()))
        return [finding for finding in found if finding]

    def _judge(self, evidence: Evidence, name: str, series: Series) -> Finding | None:
        if len(series) < self.min_evaluations:
            return None
        half = len(series) // 2
        late = series.values[half:]
        part = max(1, len(late) // 3)
        first, last = float(np.median(late[:part])), float(np.median(late[-part:]))
        error = 2 * noise_of(series.values) / np.sqrt(part)
        if abs(first - last) > self.least_fall * first or error > 2 * self.least_fall * first:
            return None
        start, end = int(series.steps[half]), int(series.steps[-1])
        change = training_change(evidence, start, end)
        now = smooth(evidence.series("loss"), share=0.05).values[-1]
        if change is None or change > -self.training_fall or last < now * (1 + self.gap):
            return None
        label = "the validation loss" if len(evidence.validation) == 1 else f"the loss on `{name}`"
        return Finding(
            rule="validation_stalled",
            severity=Severity.WARNING,
            step=start,
            evidence=f"{label} stays at {first:.4g} from step {start} to step {end} ({last:.4g}), while the training "
            f"loss falls by {-100 * change:.0f} % to {now:.4g}",
            cause="overfitting begins, or the training text repeats itself",
            fix="add dropout 0.1, deduplicate the text (llmctl dedup) or add to it; or stop at this point",
            values={"first": first, "last": last, "training_change": change},
        )
