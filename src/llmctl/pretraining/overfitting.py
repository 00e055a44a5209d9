"""Watch for overfitting: perplexity at five levels of difficulty on sets that are drawn anew, and diversity of samples.

score = 0.6 · max(0, perplexity / best − 1) + 0.4 · max(0, 1 − diversity / best), as far as both are known; the best
state is that of the lowest perplexity. Perplexity is taken relative to the unigram model's on the same draw, so that an
easy draw does not look like progress. The run ends when the score has passed its limit several times in a row, or
samples go round in circles as often.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmctl import console
from llmctl.pretraining.config import PretrainConfig
from llmctl.pretraining.data import Batch, PretrainingData
from llmctl.training.distributed import World
from llmctl.training.diversity import distinct, repeated_share
from llmctl.training.engines.base import Engine, Loss
from llmctl.training.run import TrainingRun

LEVELS = 5
PERPLEXITY_WEIGHT, DIVERSITY_WEIGHT = 0.6, 0.4
# Samples: one from the beginning of each of so many held-out documents.
SAMPLES, PROMPT_TOKENS, NEW_TOKENS = 16, 8, 48
# Sizes of the n-grams whose variety is averaged.
GRAMS = (1, 2, 3)


@dataclass
class _Level:
    """Held-out documents of one level in one draw: batches of this replica, tokens, unigram loss (nats a token)."""

    batches: list[Batch]
    tokens: int
    unigram: float


class OverfitWatch:
    """Judges a run at each validation; its memory is in `run.state` and so in every checkpoint."""

    def __init__(self, data: PretrainingData, engine: Engine, config: PretrainConfig, world: World) -> None:
        self.data, self.engine, self.config, self.world = data, engine, config, world
        self._surprise = _unigram_surprise(data)
        self._levels = np.array_split(data.held_out[np.argsort(self._surprise, kind="stable")], LEVELS)
        self._by_document = dict(zip(data.held_out.tolist(), self._surprise.tolist(), strict=True))
        self._drawn: tuple[int, list[_Level]] | None = None
        layout = world.layout
        self._can_sample = layout.tp == layout.pp == 1 and config.zero_stage < 3
        if not self._can_sample and world.is_main:
            console.info("overfit watch: samples need a whole model in a process; perplexity alone is watched")

    def check(self, run: TrainingRun, step: int, loss: Loss) -> bool:
        """Evaluate, record, and tell whether to stop; every process gets the same answer."""
        number = step // self.config.redraw_validation_every if self.config.redraw_validation_every else 0
        levels = self._draw(number)
        losses = [self.engine.evaluate(level.batches, loss).loss if level.batches else math.nan for level in levels]
        known = [(value - level.unigram) for value, level in zip(losses, levels, strict=True) if level.batches]
        relative = math.exp(min(50.0, sum(known) / len(known))) if known else math.nan
        diversity, coherence = self._sample() if self._can_sample else (None, None)
        verdict = self.world.broadcast(self._judge(run.state, step, relative, diversity, coherence))
        run.state["overfit"] = verdict["memory"]
        for number, (value, level) in enumerate(zip(losses, levels, strict=True), 1):
            if level.batches:
                run.validated(step, value, tokens=level.tokens, set=f"level-{number}", unigram_loss=level.unigram)
        run.note_validation(step, "overfit", verdict["parts"])
        if verdict["stop"] and self.world.is_main:
            console.warning(
                f"pretrain: stops at step {step}: overfit score {verdict['parts']['score']:.3g} (perplexity part "
                f"{verdict['parts']['perplexity_part']:.3g}, diversity part {verdict['parts']['diversity_part']:.3g}), "
                f"{self.config.overfit_patience} validations in a row; the best was at step "
                f"{verdict['memory']['best_step']}",
                "more or more varied data, a smaller model, or --set model.dropout=0.1",
            )
        return bool(verdict["stop"])

    def _judge(
        self, state: dict[str, Any], step: int, relative: float, diversity: float | None, coherence: float | None
    ) -> dict[str, Any]:
        memory = dict(state.get("overfit") or {"bad": 0, "best_step": step})
        if relative <= memory.get("perplexity", math.inf):
            # The best state is that of the best perplexity: a model that knows nothing is as diverse as chance.
            memory |= {"perplexity": relative, "best_step": step, "diversity": diversity, "coherence": coherence}
        perplexity_part = PERPLEXITY_WEIGHT * max(0.0, relative / memory.get("perplexity", relative) - 1)
        diversity_part = 0.0
        if diversity is not None and memory.get("diversity"):
            diversity_part = DIVERSITY_WEIGHT * max(0.0, 1 - diversity / memory["diversity"])
        score = perplexity_part + diversity_part
        circles = coherence is not None and coherence < 0.5 * (memory.get("coherence") or 0.0)
        bad = score >= self.config.overfit_limit or circles
        memory["bad"] = memory["bad"] + 1 if bad else 0
        parts = {
            "score": score,
            "perplexity_part": perplexity_part,
            "diversity_part": diversity_part,
            "relative_perplexity": relative,
            **({"diversity": diversity} if diversity is not None else {}),
            **({"coherence": coherence} if coherence is not None else {}),
        }
        return {"memory": memory, "parts": parts, "stop": memory["bad"] >= self.config.overfit_patience}

    def _draw(self, number: int) -> list[_Level]:
        """Return the sets of a draw: each level's documents in an order of (seed, draw, level), up to its tokens."""
        if self._drawn is not None and self._drawn[0] == number:
            return self._drawn[1]
        drawn = []
        for level, members in enumerate(self._levels):
            order = np.random.default_rng((self.config.seed, number, level)).permutation(len(members))
            limit = self.config.validation_tokens // LEVELS if self.config.validation_tokens else 0
            lengths = self.data.documents.lengths[members[order]]
            ends = np.cumsum(lengths)
            count = max(1, int(np.searchsorted(ends, limit, side="right"))) if limit else len(members)
            chosen = members[order][:count]
            if not len(chosen):
                drawn.append(_Level([], 0, math.nan))
                continue
            batches, tokens, _ = self.data.batches_of(chosen)
            sums = sum(self._by_document[int(item)] * int(self.data.documents.lengths[item]) for item in chosen)
            drawn.append(_Level(batches, tokens, sums / max(1, int(self.data.documents.lengths[chosen].sum()))))
        self._drawn = (number, drawn)
        return drawn

    def _sample(self) -> tuple[float, float]:
        """Return (diversity, coherence) of samples that go on from held-out documents, with a fixed random stream."""
        from llmctl.model.generation import generate

        members = self.data.held_out[:SAMPLES]
        prompts = [self.data.documents.tokens(int(item), 0, PROMPT_TOKENS).tolist() for item in members]
        limit = min(NEW_TOKENS, self.config.seq_len - PROMPT_TOKENS)
        made = generate(
            self.engine.model,  # type: ignore[arg-type]
            [prompt for prompt in prompts if prompt],
            max_new_tokens=max(1, limit),
            stop_ids=[],
            seed=self.config.seed,
        )
        rows = [sample.ids for sample in made]
        shares = [share for size in GRAMS if (share := distinct(rows, size)) is not None]
        return (sum(shares) / len(shares) if shares else 0.0), 1.0 - repeated_share(rows)


def _unigram_surprise(data: PretrainingData) -> np.ndarray:
    """Return for each held-out document the mean surprise of its tokens (nats) under their frequencies there."""
    documents = data.documents
    counts = np.zeros(documents.vocab_size, np.int64)
    for item in data.held_out:
        counts += np.bincount(documents.tokens(int(item)), minlength=documents.vocab_size)
    surprise = -np.log(np.maximum(counts, 1) / max(1, counts.sum()))
    return np.array([float(surprise[documents.tokens(int(item))].mean()) for item in data.held_out])
