"""Small corpora for the tests of dedup, and one run over them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from llmctl.artifacts.manifest import Manifest
from llmctl.config.common import RunOptions
from llmctl.config.load import build
from llmctl.dedup.config import DedupConfig
from llmctl.dedup.stage import run


@dataclass
class Result:
    """What one run wrote."""

    manifest: Manifest
    kept: list[dict[str, Any]]
    removed: list[dict[str, Any]]
    pairs: list[dict[str, Any]]
    clusters: list[dict[str, Any]]

    @property
    def kept_ids(self) -> list[str]:
        return [row["id"] for row in self.kept]

    @property
    def kept_texts(self) -> list[str]:
        return [row["text"] for row in self.kept]

    def reason(self, name: str) -> str:
        (row,) = [row for row in self.removed if row["id"] == name]
        return row["reason"]

    def pair(self, name: str) -> tuple[str, str, float]:
        (row,) = [row for row in self.pairs if row["removed_id"] == name]
        return row["survivor_id"], row["method"], row["similarity"]


def read_rows(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def write_corpus(folder: Path, records: list[dict[str, Any]], name: str = "docs.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def dedup(source: Path, output: Path, workers: int = 1, **config: Any) -> Result:
    manifest = run(source, output, build(DedupConfig, config), RunOptions(workers=workers))
    assert manifest is not None
    records = manifest.statistics["records"]
    result = Result(
        manifest,
        read_rows(output / "data"),
        read_rows(output / "removed"),
        pq.read_table(output / "pairs.parquet").to_pylist(),
        pq.read_table(output / "clusters.parquet").to_pylist(),
    )
    assert records["in"] == records["kept"] + records["removed"] + records["invalid"]
    assert (records["kept"], records["removed"]) == (len(result.kept), len(result.removed))
    for row in manifest.statistics["by_file"]:
        assert row["in"] == row["kept"] + row["removed"] + row["invalid"]
    kept = {(row["id"], row["source"]) for row in result.kept}
    assert {pair["survivor_id"] for pair in result.pairs} <= {name for name, _ in kept}
    return result


def dedup_texts(tmp_path: Path, texts: list[str], **config: Any) -> Result:
    """Deduplicate texts with the ids ``d0``, ``d1``, …"""
    source = write_corpus(tmp_path / "in", [{"id": f"d{i}", "text": text} for i, text in enumerate(texts)])
    return dedup(source, tmp_path / "out", **config)


def words(count: int, seed: int = 0, vocabulary: int = 5000) -> list[str]:
    rng = np.random.default_rng(seed)
    return [f"w{number}" for number in rng.integers(0, vocabulary, count)]


def with_changes(tokens: list[str], count: int, seed: int = 1) -> list[str]:
    """Replace `count` tokens, far from one another, by new ones."""
    changed = list(tokens)
    for number, place in enumerate(np.linspace(3, len(tokens) - 4, count).astype(int)):
        changed[place] = f"new{seed}x{number}"
    return changed


def shingles(text: str, size: int = 5) -> set[tuple[str, ...]]:
    tokens = re.findall(r"\w+", text.lower())
    return {tuple(tokens[i : i + size]) for i in range(max(1, len(tokens) - size + 1))}


def char_shingles(text: str, size: int = 5) -> set[str]:
    chars = re.sub(r"\s+", "", text)
    return {chars[i : i + size] for i in range(max(1, len(chars) - size + 1))}


def jaccard(one: set, two: set) -> float:
    return len(one & two) / len(one | two)
