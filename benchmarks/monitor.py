"""Measure which share of injected crashes the gradient monitor averts.

    python benchmarks/monitor.py --seeds 20

A small model learns a language of two-step rules with SGD and momentum, without the usual clipping. At a random
step a few batches come with a loss that is far too large, as a broken batch or a faulty device gives. A run has crashed
when, 60 steps later, its loss is not finite or 0.5 nats above what it was before. Printed: crashes without the monitor,
and which share of those seeds each mode of the monitor saves.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import random
import tempfile
from pathlib import Path
from typing import Any

import torch

from llmctl.config.load import build
from llmctl.errors import LlmctlError
from llmctl.model.config import ModelConfig
from llmctl.model.transformer import Transformer
from llmctl.training.config import TrainingConfig
from llmctl.training.distributed import World
from llmctl.training.engines.base import LossOutput
from llmctl.training.engines.native import NativeEngine
from llmctl.training.losses.next_token import NextTokenLoss
from llmctl.training.run import Job, TrainingRun, fit

VOCABULARY, STEPS, AFTER = 31, 140, 60
SHAPE = ModelConfig(VOCABULARY, 2, 32, 4, 2, 0, 48)


class BrokenLoss(NextTokenLoss):
    """Next-token loss that is `factor` times too large in some steps."""

    def __init__(self, steps: range, factor: float) -> None:
        super().__init__()
        self.steps, self.factor = steps, factor

    def __call__(self, model: Any, batch: dict[str, torch.Tensor]) -> LossOutput:
        output = super().__call__(model, batch)
        broken = int(batch["step"][0]) in self.steps
        return LossOutput(output.total * (self.factor if broken else 1.0), output.metrics)


def batch_of(step: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Return the batch of a step: each token follows from the two before it, with some noise."""
    generator = torch.Generator().manual_seed(seed * 100_000 + step)
    ids = torch.randint(0, VOCABULARY, (8, 25), generator=generator)
    noise = torch.rand(ids.shape, generator=generator)
    for place in range(2, 25):
        follows = (3 * ids[:, place - 1] + ids[:, place - 2]) % VOCABULARY
        ids[:, place] = torch.where(noise[:, place] < 0.9, follows, ids[:, place])
    return [{"input_ids": ids[:, :-1], "labels": ids[:, 1:], "step": torch.full((8, 1), step)}]


def losses_of(seed: int, mode: str, limit: float, steps: range, factor: float) -> list[float]:
    """Train once and return the loss of every step that was made."""
    settings = {
        "gradient_monitor": mode,
        "gradient_limit": limit,
        "max_grad_norm": 0,
        "seed": seed,
        "lr": 0.1,
        "optimizer": "sgd",
    }
    config = build(
        TrainingConfig,
        {**settings, "steps": STEPS, "precision": "fp32", "tensorboard": False, "checkpoint_every": 0},
    )
    engine = NativeEngine(Transformer(SHAPE, seed=seed), config, World())
    seen: list[float] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        job = Job(Path(folder), "benchmark", config, {})
        with contextlib.suppress(LlmctlError), TrainingRun(job, {"model": engine}, label="run") as run:
            record = run.record

            def note(step: int, report: Any, *arguments: Any, **named: Any) -> None:
                seen.append(report.loss / (factor if step in steps else 1.0))
                record(step, report, *arguments, **named)

            run.record = note  # type: ignore[method-assign]
            fit(run, engine, BrokenLoss(steps, factor), lambda step: batch_of(step, seed))
    return seen


def crashed(losses: list[float], first: int) -> bool:
    """Tell whether a run has not recovered from what happened from `first` on."""
    before = sum(losses[first - 6 : first - 1]) / 5
    after = losses[first - 1 + AFTER - 5 : first - 1 + AFTER]
    return len(after) < 5 or not all(map(math.isfinite, after)) or sum(after) / 5 > before + 0.5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for factor in (30.0, 300.0, 1e6):
        rows: dict[str, list[bool]] = {"off": [], "absolute": [], "robust": []}
        for seed in range(options.seeds):
            first = random.Random(seed).randint(50, 70)
            steps = range(first, first + 3)
            for mode, outcomes in rows.items():
                outcomes.append(crashed(losses_of(seed, mode, 1e5, steps, factor), first))
        lost = sum(rows["off"])
        print(f"loss {factor:g} times too large in 3 steps: {lost} of {options.seeds} runs crash without the monitor")
        for mode in ("absolute", "robust"):
            saved = sum(off and not with_it for off, with_it in zip(rows["off"], rows[mode], strict=True))
            print(f"  {mode:9s} saves {saved} of {lost}" + (f" ({100 * saved / lost:.0f} %)" if lost else ""))


if __name__ == "__main__":
    main()
