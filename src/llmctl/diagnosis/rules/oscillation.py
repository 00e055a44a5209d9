"""The loss swings up and down instead of falling.

Signal: the smoothed training loss turns around again and again, each time by much more than its noise; or
neighbouring steps alternate (up, down, up, down) around the curve.

Look-alikes: the noise of small batches is not correlated from step to step, and smoothing removes it; one
rise and fall is a change of the data or a spike. A swinging loss scale (fp16) is told by `loss_scale_collapse`.
Swings at a learning rate that has decayed come from the order of the data, and are reported as that.

Cause: a learning rate that is too high, or that is reached too fast.

Fix: lengthen the warm-up, then lower the peak; larger batches help where noise drives the swings.

Source: Cohen et al. 2021, edge of stability (arXiv 2103.00065).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.columns import Series
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.signals import has_warmup, lower_lr, noise_after_smoothing, peak_lr, smooth
from llmctl.diagnosis.statistics import Array, lag_correlation


@dataclass
class Rule:
    """The loss swings up and down instead of falling."""

    needs: ClassVar[tuple[str, ...]] = ("loss", "steps")

    swing: Annotated[float, Opt("Least height of a swing as a share of the loss.", min=0)] = 0.08
    sigmas: Annotated[float, Opt("Least height of a swing in standard deviations of the smoothed loss.", min=0)] = 6.0
    turns: Annotated[int, Opt("Least number of turns.", min=2)] = 4
    alternation: Annotated[
        float, Opt("Correlation of a change with the one before below which steps alternate.", min=-1, max=0)
    ] = -0.8

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report swings of the smoothed loss, or alternating steps."""
        if evidence.is_reinforcement:
            return []
        loss = evidence.series("loss")
        finding = self._swings(evidence, loss) or self._alternates(evidence, loss)
        return [finding] if finding else []

    def _swings(self, evidence: Evidence, loss: Series) -> Finding | None:
        smoothed = smooth(loss, share=0.01)
        noise = noise_after_smoothing(loss, share=0.01)
        turns = turning_points(smoothed.values, lambda level: max(self.swing * level, self.sigmas * noise, 0.05))
        if len(turns) < self.turns:
            return None
        heights = np.abs(np.diff(smoothed.values[turns]))
        text = (
            f"the smoothed loss turns around {len(turns)} times, by {np.median(heights):.3g} each time (noise "
            f"{noise:.2g}), between {smoothed.values[turns].min():.4g} and {smoothed.values[turns].max():.4g}"
        )
        values = {"num_turns": float(len(turns)), "height": float(np.median(heights)), "noise": float(noise)}
        return self._finding(evidence, int(smoothed.steps[turns[0]]), text, values)

    def _alternates(self, evidence: Evidence, loss: Series) -> Finding | None:
        # The later half: what the start does is for the warm-up. Steps of white noise correlate by −1/2.
        late = loss.tail(0.5)
        steps = np.diff(late.values)
        correlation = lag_correlation(steps)
        height = float(np.std(steps)) / 2
        certain = correlation < -0.5 - 3 / np.sqrt(max(len(steps), 1))
        if correlation > self.alternation or not certain or height < self.swing / 4 * late.median():
            return None
        text = (
            f"neighbouring steps alternate (correlation of changes {correlation:.2f}) by {height:.3g} at a loss "
            f"of {late.median():.4g}"
        )
        return self._finding(evidence, int(late.steps[0]), text, {"correlation": correlation, "height": height})

    def _finding(self, evidence: Evidence, step: int, text: str, values: dict[str, float]) -> Finding:
        peak = peak_lr(evidence)
        lr = evidence.series("lr")
        low = peak and float(np.median(lr.tail(0.5).values)) < 0.1 * peak
        lower = lower_lr(evidence)
        if low:
            cause = "the learning rate is low already: the order of the data makes the loss swing"
            fix = "shuffle across sources, or mix them within each batch"
        elif has_warmup(evidence) is False:
            cause, fix = (
                "the learning rate is too high from the first step on",
                f"add --warmup-fraction 0.05; then {lower}",
            )
        else:
            cause, fix = "updates overshoot at this learning rate", f"{lower}, or raise --global-batch-size"
        return Finding("oscillation", Severity.WARNING, step, text, cause, fix, values=values)


def turning_points(values: Array, least_height: Callable[[float], float]) -> list[int]:
    """Return the positions where a curve turns after moving by at least `least_height(level)` (a zigzag).

    The fall from the start is a move, too: its end is the first turn, if the curve rises from there.
    """
    turns: list[int] = []
    extreme, direction = 0, -1
    for position in range(1, len(values)):
        moved = direction * (values[position] - values[extreme])
        if moved > 0:
            extreme = position
        elif -moved >= least_height(abs(values[extreme])):
            turns.append(extreme)
            extreme, direction = position, -direction
    return turns
