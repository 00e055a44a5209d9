"""The whole raw corpus through tokenize and shard: counts agree, and nothing changes a byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import contents, kill_when, llmctl, manifest, records_add_up, units_done

from llmctl.artifacts.shards import open_shards

pytestmark = pytest.mark.slow


def test_tokenize_and_shard_all_of_raw_full_grid(shared_data: Path, tmp_path: Path) -> None:
    raw = shared_data / "raw"
    command = ["tokenize", raw, "--vocab-size", "8192"]
    llmctl(*command[:2], tmp_path / "one", *command[2:], "--workers", 1)
    killed = [*command[:2], tmp_path / "killed", *command[2:]]
    for wanted in (1, 5):
        kill_when([*killed, "--workers", "2"], lambda wanted=wanted: units_done(tmp_path / "killed") >= wanted)
    llmctl(*killed, "--workers", 2)
    assert contents(tmp_path / "killed") == contents(tmp_path / "one")
    assert "is up to date" in llmctl(*killed).stderr
    records = records_add_up(tmp_path / "one")
    statistics = manifest(tmp_path / "one")["statistics"]
    assert statistics["documents"] == records["kept"] == sum(row["kept"] for row in statistics["by_source"])
    assert statistics["vocabulary"]["size"] == 8192

    for workers in (1, 2):
        llmctl("shard", tmp_path / "one", tmp_path / f"shards-{workers}", "--shard-size", "2MB", "--workers", workers)
    assert contents(tmp_path / "shards-1") == contents(tmp_path / "shards-2")
    llmctl("shard", "--verify", tmp_path / "shards-1")
    shards = open_shards(tmp_path / "shards-1")
    assert (len(shards), shards.num_tokens) == (statistics["documents"], statistics["tokens"])
    assert int(shards.lengths.sum()) == statistics["tokens"]
    assert int(shards.num_bytes.sum()) == statistics["text_bytes"]

    for name in ("megatron", "mds", "parquet"):
        llmctl("shard", tmp_path / "shards-1", tmp_path / name, "--format", name, "--shard-size", "2MB")
        llmctl("shard", tmp_path / name, tmp_path / f"{name}-back", "--shard-size", "2MB")
        for folder in ("data", "index"):
            assert contents(tmp_path / f"{name}-back" / folder) == contents(tmp_path / "shards-1" / folder)
