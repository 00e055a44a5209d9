"""Measure what a run forgets: the perplexity on held-out pretraining documents, before, during and after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llmctl import console
from llmctl.training.engines.base import Engine, Loss
from llmctl.training.run import Batch, TrainingRun

SET = "pretraining"


class Forgetting:
    """The held-out pretraining documents of a run; losses are kept in the run's state, by step.

    Args:
        batches: this replica's micro-batches of the documents.
        num_bytes: UTF-8 bytes of their text.
        limit: rise of the perplexity, as a share, above which there is a warning.
    """

    def __init__(self, batches: Sequence[Batch], num_bytes: int, limit: float) -> None:
        self.batches, self.num_bytes, self.limit = batches, num_bytes, limit

    def measure(self, run: TrainingRun, engine: Engine, loss: Loss, step: int) -> None:
        """Record the loss on the documents as a validation set of its own."""
        report = engine.evaluate(self.batches, loss)
        run.validated(step, report.loss, tokens=report.weight, num_bytes=self.num_bytes, set=SET)
        # Keys of JSON are strings; they are after a resume.
        run.state.setdefault(SET, {})[str(step)] = report.loss

    def statistics(self, state: dict[str, Any], exported_step: int) -> dict[str, Any]:
        """Return perplexities before and after, of the weights that are exported, and the rise as a share."""
        losses = state.get(SET, {})
        before, after = losses.get("0"), losses.get(str(exported_step))
        rise = None if before is None or after is None else round(math.expm1(min(after - before, 700.0)), 4)
        return {"perplexity": {"before": _perplexity(before), "after": _perplexity(after)}, "rise": rise}

    def say(self, state: dict[str, Any], exported_step: int, *, mixed: bool) -> None:
        """Tell a person what was forgotten; warn if it is much."""
        found = self.statistics(state, exported_step)
        before, after, rise = found["perplexity"]["before"], found["perplexity"]["after"], found["rise"]
        if rise is None:
            return
        told = f"perplexity on held-out pretraining documents: {before:g} before, {after:g} after ({rise:+.1%})"
        if rise <= self.limit:
            console.info(f"sft: {told}")
            return
        hint = "a larger --mix-pretrain" if mixed else "--mix-pretrain 0.10"
        console.warning(
            f"the model forgets: {told}, more than --max-forgetting {self.limit:g} allows",
            f"{hint}, a lower --lr, fewer epochs, or --lora-rank 16",
        )


def _perplexity(loss: float | None) -> float | None:
    # Sums over processes differ in the last digits with their number; equal runs have equal manifests.
    return None if loss is None else round(math.exp(min(loss, 700.0)), 3)
