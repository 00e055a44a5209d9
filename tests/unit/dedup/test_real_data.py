"""Recall and precision on real near-duplicates whose exact similarities are known."""

from __future__ import annotations

import io
import json

import pyarrow.parquet as pq
import pytest
import zstandard
from corpora import char_shingles, dedup, jaccard, shingles


def texts_by_id(path) -> dict[str, str]:
    with open(path, "rb") as raw:
        lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(raw), encoding="utf-8")
        return {record["id"]: record["text"] for record in map(json.loads, lines)}


@pytest.mark.parametrize("threshold", [0.9, 0.8, 0.7])
@pytest.mark.parametrize("group", ["words", "zh"])
def test_labelled_near_duplicates(shared_data, tmp_path, group, threshold):
    folder = shared_data / "neardup" / group
    texts = texts_by_id(folder / "docs.jsonl.zst")
    result = dedup(folder / "docs.jsonl.zst", tmp_path / "out", threshold=threshold)
    kept = set(result.kept_ids)

    labelled = pq.read_table(folder / "pairs.parquet").to_pylist()
    alike = [(row["id_a"], row["id_b"]) for row in labelled if row["jaccard"] >= threshold]
    assert len(alike) > 100
    both_left = [pair for pair in alike if set(pair) <= kept]
    assert len(both_left) <= 0.01 * len(alike)

    sets_of = shingles if group == "words" else char_shingles
    assert len(result.pairs) == len(texts) - len(kept)
    for pair in result.pairs:
        assert pair["survivor_id"] in kept
        assert pair["removed_id"] not in kept
        assert jaccard(sets_of(texts[pair["removed_id"]]), sets_of(texts[pair["survivor_id"]])) >= threshold
