"""The validation loss turns up while the training loss goes on falling: overfitting.

Signal: the validation loss has passed its lowest value, at least the last two evaluations stand above it by more
than its noise and by more than one per cent, and the training loss is lower now than it was then.

Look-alikes: one bad evaluation that comes down again; a validation loss that flattens (`validation_stalled`);
training and validation rising together, which is divergence (`learning_rate_too_high`); a validation set that
rises while the training loss is flat, which is a change of the data, and is told as that.

Cause: the model learns its documents by heart: too many passes over too little text, too large a model, no
regularisation.

Fix: take the checkpoint at the lowest validation loss; train for fewer passes, on more text, with dropout 0.1 or a
higher weight decay.

Source: Prechelt 1998 (early stopping: stop when the generalisation loss passes a threshold); Muennighoff et al.
2023 (arXiv 2305.16264: beyond four passes repeated text is worth less and less).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.columns import Series
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.signals import smooth
from llmctl.diagnosis.statistics import noise_of


@dataclass
class Rule:
    """The validation loss turns up while the training loss goes on falling: overfitting."""

    needs: ClassVar[tuple[str, ...]] = ("validation",)

    share: Annotated[float, Opt("Least rise above the lowest validation loss, as a share of it.", min=0)] = 0.01
    sigmas: Annotated[float, Opt("Least rise in standard deviations of the validation loss's noise.", min=0)] = 3.0
    min_evaluations: Annotated[int, Opt("Fewest evaluations to judge.", min=3)] = 4

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report every validation set whose loss turns up."""
        findings = []
        for name, series in sorted(evidence.validation_loss().items()):
            finding = self._judge(evidence, name, series)
            if finding:
                findings.append(finding)
        return findings

    def _judge(self, evidence: Evidence, name: str, series: Series) -> Finding | None:
        if len(series) < self.min_evaluations:
            return None
        best = int(np.argmin(series.values))
        lowest = float(series.values[best])
        after = series.values[best + 1 :]
        if len(after) < 2:
            return None
        least = max(self.share * abs(lowest), self.sigmas * noise_of(series.values))
        last = float(np.median(after[-min(3, len(after)) :]))
        if last - lowest < least or np.any(after[-2:] - lowest < least):
            return None
        best_step, last_step = int(series.steps[best]), int(series.steps[-1])
        change = training_change(evidence, best_step, last_step)
        if change is not None and change > 0.02:
            return None
        falling = change is None or change < -0.01
        trained = "" if change is None else f", while the training loss changes by {100 * change:+.1f} % of its value"
        label = "the validation loss" if len(evidence.validation) == 1 else f"the loss on `{name}`"
        dropout = evidence.number("dropout")
        regularise = "raise the weight decay" if dropout else "add dropout 0.1"
        return Finding(
            rule="validation_turning_up",
            severity=Severity.WARNING,
            step=best_step,
            evidence=f"{label} is lowest at step {best_step} ({lowest:.4g}), and {last:.4g} at step {last_step}"
            + trained,
            cause="overfitting: the model learns its training text by heart"
            if falling
            else "the training text has moved away from the validation text (another source, or another order)",
            fix=f"take the checkpoint of step {best_step}; then fewer passes over the text, more text, or {regularise}"
            if falling
            else "mix the sources within each batch, and hold out text of each of them",
            values={"lowest": lowest, "last": last},
        )


def training_change(evidence: Evidence, first_step: int, last_step: int) -> float | None:
    """Return how the training loss changed between two steps, as a share; None if that was not logged."""
    loss = smooth(evidence.series("loss"), share=0.05)
    if len(loss) < 2:
        return None
    then = loss.values[max(0, int(np.searchsorted(loss.steps, first_step, side="right")) - 1)]
    now = loss.values[max(0, int(np.searchsorted(loss.steps, last_step, side="right")) - 1)]
    return float((now - then) / abs(then)) if then else None
