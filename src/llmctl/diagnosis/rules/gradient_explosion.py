"""The gradient norm explodes.

Signal: the gradient norm (before clipping) ends far above its calm value and keeps rising, or it leaps to a
hundred times what it was before, or it becomes infinite and stays so while the loss is still finite.

Look-alikes: large norms in the first steps, which come down by themselves; single peaks of small batches of ten or
twenty times the median, which clipping takes care of; the slow growth by a factor of two or three over a
healthy long run; infinite norms with fp16, which the dynamic loss scale makes on purpose. None is reported.

Cause: no clipping, a learning rate that is too high, no warm-up, an initialisation that is too wide.

Fix: clip the gradient norm at 1.0; if it is clipped already, lower the learning rate or lengthen the warm-up.

Source: Pascanu et al. 2013, §3.2 (clipping). Peaks of up to a thousand times the usual norm precede loss spikes
in large runs: SPAM (arXiv 2501.06842).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.columns import Series
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.signals import lower_lr, smooth
from llmctl.diagnosis.statistics import trailing_medians


@dataclass
class Rule:
    """The gradient norm explodes."""

    needs: ClassVar[tuple[str, ...]] = ("grad_norm", "steps")

    growth: Annotated[
        float, Opt("The norm explodes if it ends at this many times its median in the first half.", min=2)
    ] = 10.0
    leap: Annotated[float, Opt("A leap is a norm of this many times the median of the steps before.", min=2)] = 100.0
    window: Annotated[int, Opt("Steps that make up what came before a leap.", min=4)] = 15

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report growth that lasts, leaps, or norms that stay infinite."""
        norm = evidence.series("grad_norm")
        found = self._infinite(evidence) or self._growing(evidence, norm) or self._leaping(evidence, norm)
        return [found] if found else []

    def _finding(
        self, evidence: Evidence, severity: Severity, step: int, text: str, values: dict[str, float]
    ) -> Finding:
        clip = evidence.number("max_grad_norm")
        lower = lower_lr(evidence)
        if clip:
            cause = f"updates are too large although the norm is clipped at {clip:g}: the learning rate, or no warm-up"
            fix = f"{lower}, and lengthen the warm-up"
        else:
            cause = "updates are too large, and nothing says that they are bounded"
            fix = f"clip the gradient norm: --max-grad-norm 1.0; if that does not do, {lower}"
        return Finding("gradient_explosion", severity, step, text, cause, fix, values=values)

    def _infinite(self, evidence: Evidence) -> Finding | None:
        raw = evidence.raw("grad_norm")
        scaled = len(evidence.series("loss_scale")) or evidence.setting("precision") == "fp16"
        bad = ~np.isfinite(raw.values)
        loss = evidence.raw("loss")
        if scaled or not bad.any() or not bad[-3:].all():
            return None
        step = int(raw.steps[len(bad) - int(np.argmin(bad[::-1]))]) if not bad.all() else int(raw.steps[0])
        if np.any(~np.isfinite(loss.values[loss.steps <= step])):
            return None  # then it is a consequence: `loss_nan` tells it
        text = f"the gradient norm is not finite from step {step} to the end, while the loss still is at first"
        return self._finding(evidence, Severity.CRITICAL, step, text, {"num_steps_not_finite": float(bad.sum())})

    def _growing(self, evidence: Evidence, norm: Series) -> Finding | None:
        if len(norm) < 20:
            return None
        smoothed = smooth(norm)
        half = len(norm) // 2
        calm = float(np.median(norm.values[:half]))
        quarter = len(norm) // 4
        late = float(np.median(norm.values[-max(5, len(norm) // 10) :]))
        middle = float(np.median(norm.values[half : half + quarter]))
        if calm <= 0 or late < self.growth * calm or late < middle:
            return None
        above = smoothed.steps[smoothed.values >= 3 * calm]
        later = above[above >= norm.steps[quarter]]
        step = int(later[0]) if len(later) else int(norm.steps[half])
        text = f"the gradient norm rises from {calm:.3g} (median of the first half) to {late:.3g} at the end"
        severe = Severity.CRITICAL if late >= self.leap * calm else Severity.WARNING
        return self._finding(evidence, severe, step, text, {"calm": calm, "late": late, "ratio": late / calm})

    def _leaping(self, evidence: Evidence, norm: Series) -> Finding | None:
        if len(norm) <= self.window:
            return None
        medians, _ = trailing_medians(norm.values, self.window)
        ratios = np.divide(norm.values, medians, out=np.zeros_like(medians), where=medians > 0)
        # Norms that were next to nothing (a memorised batch) make any later one look like a leap.
        ratios[medians < 0.01 * np.median(norm.values)] = 0.0
        leaps = np.nonzero(np.nan_to_num(ratios) >= self.leap)[0]
        if not len(leaps):
            return None
        worst = int(leaps[np.argmax(ratios[leaps])])
        text = (
            f"the gradient norm leaps to {norm.values[worst]:.3g} at step {norm.steps[worst]}, {ratios[worst]:.0f} "
            f"times the median of the {self.window} steps before; {len(leaps)} such leaps"
        )
        step = int(norm.steps[leaps[0]])
        values = {"value": float(norm.values[worst]), "ratio": float(ratios[worst]), "num_leaps": float(len(leaps))}
        return self._finding(evidence, Severity.WARNING, step, text, values)
