"""The gradient norm is zero, or as good as zero, while there is still something to learn.

Signal: the gradient norm stays below a millionth of its usual value (or below 1e-8 throughout) for several steps up
to the end, and the loss is not small.

Look-alikes: the small gradients of a memorised corpus, whose loss is next to nothing; single steps without a label
in them.

Cause: parameters that are frozen or detached from the loss, batches without labels, a dead model (all
activations saturated after an update that was too large).

Fix: check what is trained and what is masked; if it began at a step in the middle, go back to the checkpoint
before and lower the learning rate.

Source: Glorot and Bengio 2010 (saturation).
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
    """The gradient norm is zero, or as good as zero, while there is still something to learn."""

    needs: ClassVar[tuple[str, ...]] = ("grad_norm", "loss")

    share: Annotated[float, Opt("A norm below this share of the median before is none.", min=0)] = 1e-6
    absolute: Annotated[float, Opt("A norm below this is none.", min=0)] = 1e-8
    min_steps: Annotated[int, Opt("Steps up to the end for which it must last.", min=2)] = 5

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report gradients that are gone up to the end of the log."""
        norm = evidence.series("grad_norm")
        loss = evidence.series("loss")
        if len(norm) < self.min_steps or not len(loss) or abs(float(np.median(loss.values[-5:]))) < 0.01:
            return []
        limit = max(self.absolute, self.share * float(np.max(norm.values)))
        gone = norm.values <= limit
        lasting = int(np.argmin(gone[::-1])) if not gone.all() else len(gone)
        if lasting < self.min_steps:
            return []
        step = int(norm.steps[len(gone) - lasting])
        from_start = lasting == len(gone)
        return [
            Finding(
                rule="gradient_vanished",
                severity=Severity.CRITICAL,
                step=step,
                evidence=f"the gradient norm is {norm.values[-1]:.2g} from step {step} to the end ({lasting} steps), "
                f"at a loss of {loss.values[-1]:.4g}",
                cause="parameters are frozen or detached from the loss, or no token has a label"
                if from_start
                else "the model died: its activations are saturated after an update that was too large",
                fix="check what is trained (requires_grad) and the loss mask"
                if from_start
                else f"go back to the checkpoint before step {step}, lower --lr, and clip at --max-grad-norm 1.0",
                values={"norm": float(norm.values[-1]), "num_steps": float(lasting)},
            )
        ]
