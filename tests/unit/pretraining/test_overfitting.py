"""The overfit watch: its score by hand, its draws, and a run that it ends."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from llmctl.cli.app import run as llmctl
from llmctl.config.load import build
from llmctl.pretraining.config import PretrainConfig
from llmctl.pretraining.overfitting import OverfitWatch


def _watch(**changes) -> OverfitWatch:
    watch = OverfitWatch.__new__(OverfitWatch)
    watch.config = build(PretrainConfig, {"overfit_limit": 0.1, "overfit_patience": 2, **changes})
    return watch


def test_the_score_is_six_tenths_of_perplexity_and_four_tenths_of_diversity():
    watch, state = _watch(), {}
    for step, relative, diversity, score in (
        (10, 0.8, 0.9, 0.0),
        (20, 0.5, 0.6, 0.0),  # better, though less diverse: the new best
        (30, 0.55, 0.6, 0.6 * 0.1),
        (40, 0.6, 0.45, 0.6 * 0.2 + 0.4 * 0.25),
        (50, 0.6, None, 0.6 * 0.2),
    ):
        verdict = watch._judge(state, step, relative, diversity, None if diversity is None else 1.0)
        state["overfit"] = verdict["memory"]
        assert verdict["parts"]["score"] == pytest.approx(score), step
    assert verdict["stop"] and verdict["memory"]["best_step"] == 20


def test_one_bad_validation_does_not_end_the_run():
    watch, state = _watch(), {}
    for relative in (0.5, 0.7, 0.5, 0.7):
        verdict = watch._judge(state, 1, relative, 0.5, 1.0)
        state["overfit"] = verdict["memory"]
        assert not verdict["stop"]


def test_samples_that_go_round_in_circles_count():
    watch, state = _watch(), {}
    for step, coherence in ((1, 0.9), (2, 0.2), (3, 0.2)):
        verdict = watch._judge(state, step, 0.5 if step == 1 else 0.501, 0.5, coherence)
        state["overfit"] = verdict["memory"]
    assert verdict["parts"]["score"] < 0.1 and verdict["stop"]


@pytest.mark.slow
def test_a_small_corpus_learnt_by_heart_is_stopped(tmp_path: Path) -> None:
    words = ["stone", "river", "cloud", "ember", "signal", "harbor", "lantern", "meadow", "copper", "violet"]
    texts = [" ".join(words[(n * 7 + k * k * (n + 3)) % 10] for k in range(60)) for n in range(40)]
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    small = ["--workers", "1"]
    assert llmctl(["tokenize", str(tmp_path / "raw.jsonl"), str(tmp_path / "tok"), "--vocab-size", "280", *small]) == 0
    assert llmctl(["shard", str(tmp_path / "tok"), str(tmp_path / "shards"), *small]) == 0
    shape = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "ffn_hidden_size": 128}
    flags = [part for name, value in shape.items() for part in ("--set", f"model.{name}={value}")]
    flags += ["--steps", "600", "--seq-len", "64", "--global-batch-size", "8", "--lr", "5e-3", "--precision", "fp32"]
    flags += ["--set", "validation_fraction=0.4", "--validate-every", "20", "--device", "cpu", "--threads", "1"]
    flags += ["--no-tensorboard", "--overfit-watch", "--redraw-validation-every", "40", "--validation-tokens", "1500"]
    assert llmctl(["pretrain", str(tmp_path / "shards"), str(tmp_path / "run"), *flags]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "validation.jsonl").read_text().splitlines()]
    watched = [row for row in rows if row.get("set") == "overfit"]
    assert watched[-1]["step"] < 600 and watched[-1]["score"] >= 0.1
    assert [row["score"] >= 0.1 for row in watched[-3:]] == [True] * 3
    levels = [row for row in rows if row.get("set") == "level-5"]
    assert len(levels) == len(watched) and all(math.isfinite(row["loss"]) for row in levels)
    easy = [row["unigram_loss"] for row in rows if row.get("set") == "level-1"]
    assert max(easy) < min(row["unigram_loss"] for row in levels)  # levels are by difficulty, in every draw
    assert len({row["unigram_loss"] for row in levels}) > 1  # drawn anew
