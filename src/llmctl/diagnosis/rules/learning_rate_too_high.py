"""The learning rate is too high: the loss rises while the learning rate is near its peak.

Signal: the smoothed training loss rises well above the lowest value it had reached, while the learning rate is at
more than half of its peak, and either stays there to the end, or passes the loss of the start within the first fifth
of the run.

Look-alikes: a short spike in the middle that recovers (`loss_spike`); a rise at a learning rate that has
decayed (the data changed); a validation loss that rises while the training loss falls
(`validation_turning_up`); no warm-up at all (`warmup_missing`), which is named by itself as its fix is another.

Cause: the peak learning rate is beyond what model, batch and optimizer bear.

Fix: divide the peak by three (and again, if need be).

Source: Wortsman et al. 2023 (arXiv 2309.14322: instabilities of small models at high learning rates foretell those
of large ones).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.signals import has_warmup, lower_lr, lr_at, noise_after_smoothing, peak_lr, smooth


@dataclass
class Rise:
    """A rise of the smoothed loss above its lowest value so far."""

    bottom_step: int
    bottom: float
    top: float
    end: float
    noise: float


def find_rise(evidence: Evidence, *, share: float, sigmas: float) -> Rise | None:
    """Find the largest rise of the smoothed training loss above the lowest value before it.

    Args:
        evidence: the run.
        share: least rise as a share of the loss at the bottom.
        sigmas: least rise in standard deviations of the smoothed curve.
    """
    loss = evidence.series("loss")
    if len(loss) < 8:
        return None
    smoothed = smooth(loss, least=3 if len(loss) < 60 else 5)
    # The first loss is that of the initial weights: it may be the lowest there ever was.
    smoothed.values[0] = loss.values[0]
    lowest = np.minimum.accumulate(smoothed.values)
    rises = smoothed.values - lowest
    top = int(np.argmax(rises))
    bottom = int(np.argmin(smoothed.values[: top + 1]))
    noise = noise_after_smoothing(loss, least=3 if len(loss) < 60 else 5)
    # A loss of next to nothing (a memorised corpus) rises by large shares of nothing.
    least = max(share * smoothed.values[bottom], sigmas * noise, 0.05)
    if rises[top] < least:
        return None
    end = float(np.median(loss.values[-max(3, len(loss) // 20) :]))
    return Rise(int(smoothed.steps[bottom]), float(smoothed.values[bottom]), float(smoothed.values[top]), end, noise)


@dataclass
class Rule:
    """The learning rate is too high: the loss rises while the learning rate is near its peak."""

    needs: ClassVar[tuple[str, ...]] = ("loss",)

    share: Annotated[float, Opt("Least rise of the smoothed loss as a share of its lowest value.", min=0)] = 0.1
    sigmas: Annotated[float, Opt("Least rise in standard deviations of the smoothed loss.", min=0)] = 6.0
    early: Annotated[
        float, Opt("A rise in this first share of the steps counts although it comes down.", min=0, max=1)
    ] = 0.2

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report a rise that the learning rate explains."""
        if evidence.is_reinforcement:
            return []
        rise = find_rise(evidence, share=self.share, sigmas=self.sigmas)
        peak = peak_lr(evidence)
        if rise is None or (has_warmup(evidence) is False and self._is_early(evidence, rise)):
            return []
        rate = lr_at(evidence, rise.bottom_step)
        climbing = self._climbs(evidence, rise.bottom_step)
        if peak and rate is not None and rate < 0.5 * peak and not climbing:
            return []
        lasting = rise.end - rise.bottom >= 0.5 * (rise.top - rise.bottom)
        start = float(evidence.series("loss").values[0])
        worse = rise.end > start
        if not (lasting or worse or (rise.top > start and self._is_early(evidence, rise))):
            return []
        at = f" at a learning rate of {rate:.3g}" if rate is not None else ""
        course = f"ends at {rise.end:.4g}" + (f", above the {start:.4g} it began with" if worse else "")
        return [
            Finding(
                rule="learning_rate_too_high",
                severity=Severity.CRITICAL if lasting or rise.top > 2 * start else Severity.WARNING,
                step=rise.bottom_step,
                evidence=f"the loss is {rise.bottom:.4g} at step {rise.bottom_step}{at}, rises to {rise.top:.4g} "
                f"and {course}",
                cause="updates overshoot: the peak learning rate is too high for this model and batch",
                fix=lower_lr(evidence),
                values={"bottom": rise.bottom, "top": rise.top, "end": rise.end},
            )
        ]

    def _is_early(self, evidence: Evidence, rise: Rise) -> bool:
        loss = evidence.series("loss")
        return bool(np.searchsorted(loss.steps, rise.bottom_step) <= self.early * len(loss))

    def _climbs(self, evidence: Evidence, step: int) -> bool:
        later = evidence.series("lr")
        after = later.values[later.steps > step]
        now = lr_at(evidence, step)
        return bool(len(after) and now is not None and np.max(after) > 1.05 * now)
