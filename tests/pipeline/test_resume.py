"""A kill at any moment loses no finished work, and workers and hash seeds change nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from processes import contents, kill_when, llmctl, losses, steps_logged, units_done

from conftest import TINY_MODEL, TINY_TRAINING

SMALL_BLOCKS = ["--set", "read.block_bytes=30KB"]


@pytest.fixture(scope="module")
def clean(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished `documents` artifact in several parts."""
    folder = tmp_path_factory.mktemp("clean") / "clean"
    llmctl("filter", raw, folder, "--preset", "c4", *SMALL_BLOCKS)
    return folder


@pytest.fixture(scope="module")
def shards(clean: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small shards to train on."""
    root = tmp_path_factory.mktemp("shards")
    llmctl("tokenize", clean, root / "tokens", "--vocab-size", 600)
    llmctl("shard", root / "tokens", root / "shards")
    return root / "shards"


def _command(stage: str, raw: Path, clean: Path, output: Path) -> list[str | Path]:
    return {
        "filter": ["filter", raw, output, "--preset", "gopher", *SMALL_BLOCKS],
        "dedup": ["dedup", raw, output, *SMALL_BLOCKS],
        "tokenize": ["tokenize", clean, output, "--vocab-size", "600"],
        "shard": ["shard", clean.parent / "tokens-for-shard", output],
    }[stage]


@pytest.mark.parametrize("stage", ["filter", "dedup", "tokenize"])
def test_killed_and_run_again_gives_the_same_bytes(stage: str, raw: Path, clean: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    llmctl(*_command(stage, raw, clean, whole), "--workers", 1)
    output = tmp_path / "killed"
    command = _command(stage, raw, clean, output)
    for seed in range(3):
        wanted = random.Random(seed).randrange(1, 5) + units_done(output)
        kill_when([*command, "--workers", 1 + seed % 2], lambda wanted=wanted: units_done(output) >= wanted)
    llmctl(*command, "--workers", 2)
    assert contents(output) == contents(whole)


@pytest.mark.parametrize("stage", ["filter", "dedup", "tokenize"])
def test_workers_and_hash_seeds_change_nothing(stage: str, raw: Path, clean: Path, tmp_path: Path) -> None:
    found = []
    for workers, seed in ((1, "0"), (2, "1"), (2, "0")):
        output = tmp_path / f"{workers}-{seed}"
        llmctl(*_command(stage, raw, clean, output), "--workers", workers, env={"PYTHONHASHSEED": seed})
        found.append(contents(output))
    assert found[0] == found[1] == found[2]


def _pretrain(shards: Path, output: Path) -> list[str | Path]:
    training = ["--steps", "30", "--lr", "0.01", "--checkpoint-every", "5", *TINY_TRAINING, *TINY_MODEL]
    return ["pretrain", shards, output, *training]


def test_killed_pretraining_ends_with_the_same_losses_and_weights(shards: Path, tmp_path: Path) -> None:
    llmctl(*_pretrain(shards, tmp_path / "whole"))
    output = tmp_path / "killed"
    for wanted in (7, 18):
        kill_when(_pretrain(shards, output), lambda wanted=wanted: steps_logged(output) >= wanted)
        assert not (output / "manifest.json").exists()
    llmctl(*_pretrain(shards, output))
    assert losses(output) == losses(tmp_path / "whole")
    weights = [path for path in contents(output / "model") if path.endswith(".safetensors")]
    assert weights
    assert contents(output / "model") == contents(tmp_path / "whole" / "model")
