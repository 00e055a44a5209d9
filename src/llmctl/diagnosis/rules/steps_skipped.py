"""Updates are left out because the gradient is not finite.

Signal: the share of steps whose update was left out (logged as `skipped`, or a gradient norm that is not finite
while the loss is), or several of them in a row.

Look-alikes: with fp16 a dynamic loss scale skips single steps on purpose: only a row of them counts there
(`loss_scale_collapse` tells the rest); steps whose loss is lost too are `loss_nan`.

Cause: single batches with extreme gradients; an update that overflows; a loss with log(0) or a division by zero.

Fix: lower the learning rate; look at the batches of these steps.

Source: Micikevicius et al. 2018 (arXiv 1710.03740, skipped updates of loss scaling).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity

# A loss scale that starts at 2^24 needs at most this many halvings to find its level.
SETTLING_STEPS = 24


@dataclass
class Rule:
    """Updates are left out because the gradient is not finite."""

    needs: ClassVar[tuple[str, ...]] = ("grad_norm|skipped",)

    share: Annotated[float, Opt("Least share of the steps that were left out.", min=0, max=1)] = 0.02
    row: Annotated[int, Opt("Fewest steps in a row that were left out.", min=1)] = 3

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report updates that were left out while the loss was finite."""
        norm, loss, skipped = evidence.raw("grad_norm"), evidence.series("loss"), evidence.series("skipped")
        bad = norm.steps[~np.isfinite(norm.values)]
        bad = np.union1d(bad, skipped.steps[skipped.values > 0])
        if len(loss):
            bad = np.intersect1d(bad, loss.steps)
        total = max(len(norm), evidence.num_steps)
        if not len(bad) or not total:
            return []
        scaled = evidence.setting("precision") == "fp16" or "loss_scale" in evidence.metrics
        if scaled:
            bad = bad[bad > bad[0] + SETTLING_STEPS] if bad[0] <= 2 else bad  # a dynamic scale finds its level
        if not len(bad):
            return []
        longest = _longest_row(bad)
        limit = max(self.row, 8) if scaled else self.row
        often = len(bad) >= max(2, self.share * total) and not scaled
        if longest < limit and not often:
            return []
        return [
            Finding(
                rule="steps_skipped",
                severity=Severity.WARNING,
                step=int(bad[0]),
                evidence=f"{len(bad)} of {total} steps had a gradient that is not finite, up to {longest} in a row, at "
                "a finite loss",
                cause="gradients are beyond the range of fp16"
                if scaled
                else "some batches make extreme gradients, or the loss takes log(0) or divides by zero",
                fix="train in bf16 (--precision bf16)"
                if scaled
                else "lower --lr, and look at the batches of these steps",
                values={"num_skipped": float(len(bad)), "longest_row": float(longest)},
            )
        ]


def _longest_row(steps: np.ndarray) -> int:
    breaks = np.nonzero(np.diff(steps) > 1)[0]
    edges = np.concatenate([[-1], breaks, [len(steps) - 1]])
    return int(np.max(np.diff(edges)))
