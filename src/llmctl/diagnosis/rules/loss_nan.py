"""The loss is not a number, or infinite.

Signal: the first step whose loss is NaN or infinite, and whether the loss ever comes back.

Look-alikes: with fp16 a dynamic loss scale makes the *gradient norm* infinite now and then and skips the step;
the loss stays finite, and nothing is reported. The causes are told apart by what came just before: the gradient
norm grew (explosion), the loss grew (divergence), the loss scale sank (fp16 range), only one rank is affected
(hardware, or that rank's data), it is the very first step (weights, labels), or all was calm (one batch, or
hardware).

Cause: exploding gradients, a learning rate that is too high, numbers beyond the range of fp16, a batch without
a single label, broken weights, faulty memory.

Fix: clip the gradient norm, lower the learning rate or lengthen the warm-up, train in bf16, look at the batch.
Take the run up again from the last checkpoint before the step.

Source: Pascanu et al. 2013 (clipping); Micikevicius et al. 2018 (loss scaling); Megatron-LM's rerun state machine
(run the step twice to tell data from hardware).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.columns import Series
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.signals import growth_before, lower_lr, lr_at

# A dynamic loss scale overflows on purpose now and then; three overflows in a row is no longer that.
OVERFLOWS_BEFORE_COLLAPSE = 3


@dataclass
class Rule:
    """The loss is not a number, or infinite."""

    needs: ClassVar[tuple[str, ...]] = ("loss",)

    growth: Annotated[
        float, Opt("The gradient norm has grown if it reached this many times its calm value just before.", min=1)
    ] = 10.0
    loss_growth: Annotated[
        float, Opt("The loss has grown if it reached this many times its calm value just before.", min=1)
    ] = 1.2

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report the first step without a finite loss."""
        loss = evidence.raw("loss")
        bad = ~np.isfinite(loss.values)
        if not bad.any():
            return []
        position = int(np.argmax(bad))
        step = int(loss.steps[position])
        num_bad = int(bad.sum())
        lasting = bool(bad[-1])
        rank = self._only_rank(evidence, step)
        cause, fix = self._explain(evidence, loss, position, rank)
        kind = "NaN" if np.isnan(loss.values[position]) else "infinite"
        after = (
            f"at step {step} and in none of the {len(loss) - position - 1} steps after it is it finite again"
            if lasting and num_bad == len(loss) - position
            else f"at step {step}, in {num_bad} of {len(loss)} steps in all"
        )
        return [
            Finding(
                rule="loss_nan",
                severity=Severity.CRITICAL if lasting or num_bad > 1 else Severity.WARNING,
                step=step,
                rank=rank,
                evidence=f"the loss is {kind} {after}{self._before(evidence, loss, position)}",
                cause=cause,
                fix=fix,
                values={"num_steps_not_finite": num_bad, "num_steps": len(loss)},
            )
        ]

    def _before(self, evidence: Evidence, loss: Series, position: int) -> str:
        if position == 0:
            return ""
        text = f"; before it was {loss.values[position - 1]:.4g}"
        norm = evidence.raw("grad_norm")
        until = norm.values[norm.steps <= loss.steps[position]]
        finite = until[np.isfinite(until)]
        if len(finite) >= 4:
            text += f", the gradient norm {np.median(finite):.3g} (median) and {finite[-1]:.3g} at last"
        return text

    def _explain(self, evidence: Evidence, loss: Series, position: int, rank: int | None) -> tuple[str, str]:
        step = int(loss.steps[position])
        lr = lr_at(evidence, step)
        slower = lower_lr(evidence)
        if rank is not None:
            return (
                f"only rank {rank} has it: its memory or processor, or the documents that it alone reads",
                "run the step again on another host, from the checkpoint before it; if it stays, look at the batch",
            )
        if position == 0:
            return (
                "the first step has no finite loss: broken weights, a token id beyond the vocabulary, "
                "or a batch without any label",
                "check the data with --dry-run, and the weights that the run starts from",
            )
        if _scale_collapsed(evidence, step):
            return (
                "the fp16 loss scale sank to its end: gradients are beyond the range of fp16 at any scale",
                "train in bf16 (--precision bf16), or " + slower,
            )
        if growth_before(evidence.raw("grad_norm"), step) >= self.growth:
            clip = evidence.number("max_grad_norm")
            first = "clip the gradient norm (--max-grad-norm 1.0), " if not clip else ""
            return (
                "exploding gradients: the gradient norm grew just before",
                f"{first}{slower}, and lengthen the warm-up",
            )
        if growth_before(loss, step) >= self.loss_growth:
            return "the run diverged: the loss rose before it was lost", f"{slower}, and lengthen the warm-up"
        if lr is not None and position <= 10:
            return (
                f"lost within {position} steps at a learning rate of {lr:.3g}: the first updates are too large",
                f"{slower}, and warm it up over at least 100 steps",
            )
        return (
            "sudden, out of a calm run: one batch (a document of odd bytes, no label in it), or faulty hardware",
            "run again from the checkpoint before the step: if it comes at the same step it is the data, else the "
            "hardware",
        )

    def _only_rank(self, evidence: Evidence, step: int) -> int | None:
        """Return the one rank whose own loss or norm is not finite first, if the others' still are."""
        firsts: dict[int, int] = {}
        for rank, columns in evidence.ranks.items():
            for name in ("loss", "grad_norm"):
                series = columns.series(name)
                bad = series.steps[~np.isfinite(series.values)]
                if len(bad):
                    firsts[rank] = min(int(bad[0]), firsts.get(rank, int(bad[0])))
        if not firsts or len(evidence.ranks) < 2:
            return None
        earliest = min(firsts.values())
        culprits = [rank for rank, first in firsts.items() if first == earliest]
        return culprits[0] if len(culprits) == 1 and earliest <= step else None


def _scale_collapsed(evidence: Evidence, step: int) -> bool:
    scale = evidence.series("loss_scale")
    before = scale.values[scale.steps <= step]
    return len(before) > OVERFLOWS_BEFORE_COLLAPSE and before[-1] <= before.max() / 2**OVERFLOWS_BEFORE_COLLAPSE
