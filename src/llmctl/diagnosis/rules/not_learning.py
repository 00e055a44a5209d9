"""The loss has not moved since the start.

Signal: the loss at the end equals the loss at the start, within a bound that the noise of the run allows to
claim.

Look-alikes: a run that is still warming up (its learning rate is rising at the end of the log) is not judged; a
noisy run that is too short to show a fall of two per cent is not judged; a loss that is next to nothing has
nothing left to learn. A loss that fell and then stands still is `plateau`.

Cause: a learning rate of (nearly) zero; gradients that are zero (frozen or detached parameters, no label in the
batches); updates that bf16 weights swallow; data without structure.

Fix: depends on the gradient norm and the learning rate, which the finding tells.

Source: the loss of a model that knows nothing is the logarithm of the vocabulary's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.signals import peak_lr
from llmctl.diagnosis.statistics import noise_of


@dataclass
class Rule:
    """The loss has not moved since the start."""

    needs: ClassVar[tuple[str, ...]] = ("loss",)

    least_fall: Annotated[float, Opt("A fall of less than this share is no learning.", min=0)] = 0.02
    min_steps: Annotated[int, Opt("Fewest logged steps to judge.", min=10)] = 40
    tiny_norm: Annotated[float, Opt("A gradient norm below this is none.", min=0)] = 1e-6

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report a loss that stands still from the first step on."""
        loss = evidence.series("loss")
        if evidence.is_reinforcement or len(loss) < self.min_steps:
            return []
        count = max(5, len(loss) // 10)
        start, end = float(np.median(loss.values[:count])), float(np.median(loss.values[-count:]))
        error = 1.2533 * noise_of(loss.values) * np.sqrt(2 / count)
        fall = start - end
        if start < 0.1 or fall + 2 * error > self.least_fall * start or fall < -self.least_fall * start - 2 * error:
            return []
        if self._warms_up(evidence):
            return []
        cause, fix = self._explain(evidence)
        return [
            Finding(
                rule="not_learning",
                severity=Severity.CRITICAL,
                step=int(loss.steps[0]),
                evidence=f"the loss is {start:.4g} at the start and {end:.4g} after {len(loss)} logged steps (noise "
                f"{noise_of(loss.values):.2g})" + self._context(evidence),
                cause=cause,
                fix=fix,
                values={"start": start, "end": end},
            )
        ]

    def _warms_up(self, evidence: Evidence) -> bool:
        lr = evidence.series("lr").values
        return bool(len(lr) >= 3 and lr[-1] > lr[len(lr) // 2] * 1.02 and lr[-1] >= 0.999 * np.max(lr))

    def _context(self, evidence: Evidence) -> str:
        parts = []
        if (peak := peak_lr(evidence)) is not None:
            parts.append(f"learning rate at most {peak:.3g}")
        if len(norm := evidence.series("grad_norm")):
            parts.append(f"gradient norm {norm.median():.3g}")
        return "; " + ", ".join(parts) if parts else ""

    def _explain(self, evidence: Evidence) -> tuple[str, str]:
        norm, peak = evidence.series("grad_norm"), peak_lr(evidence)
        if len(norm) and norm.median() <= self.tiny_norm:
            return (
                "the gradient is zero: parameters are frozen or detached, or no token of the batches has a label",
                "check what is trained (requires_grad) and the loss mask of the data",
            )
        if peak is not None and peak == 0:
            return "the learning rate is zero", "set --lr, and check --warmup-fraction"
        if peak is not None and peak < 1e-6:
            return (
                f"a learning rate of {peak:.2g} moves nothing",
                "raise it: 1e-5 for fine-tuning, 3e-4 for pretraining",
            )
        if str(evidence.setting("precision")) == "bf16" and peak is not None and peak <= 1e-5:
            return (
                "updates may be lost in bf16 weights, which keep 8 bits: a change below 1/256 of a weight vanishes",
                "keep fp32 master weights, or raise the learning rate",
            )
        return (
            "gradients flow and change nothing: the learning rate is too low, or so high that updates cancel out, or "
            "the text has no structure (shuffled, encoded, wrong tokenizer)",
            "look at a decoded batch; try --lr ten times higher, then ten times lower",
        )
