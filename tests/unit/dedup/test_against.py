"""New documents against an earlier corpus, by its index alone."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from corpora import dedup, read_rows, with_changes, words, write_corpus

from llmctl.config.common import RunOptions
from llmctl.config.load import build
from llmctl.dedup.config import DedupConfig
from llmctl.dedup.stage import run
from llmctl.errors import UserError

OLD = [words(200, seed=i) for i in range(6)]


def text(tokens):
    return " ".join(tokens)


@pytest.fixture
def clean(tmp_path):
    blocks = [text(words(30, seed=50 + i)) for i in range(10)]
    texts = [*map(text, OLD), text(OLD[0]), "", "\n\n".join(blocks)]
    source = write_corpus(tmp_path / "old", [{"id": f"old{i}", "text": value} for i, value in enumerate(texts)])
    dedup(source, tmp_path / "clean", read={"block_bytes": 3000})
    return tmp_path / "clean"


def dedup_against(tmp_path, texts, *against, **config):
    source = write_corpus(tmp_path / "new", [{"id": f"new{i}", "text": value} for i, value in enumerate(texts)])
    return run(source, tmp_path / "out", build(DedupConfig, config), RunOptions(workers=1), against)


def test_what_resembles_an_earlier_document_goes(tmp_path, clean):
    blocks = [text(words(30, seed=50 + i)) for i in range(10)]
    fresh = text(words(200, seed=99))
    longer = text([*with_changes(OLD[2], 1), "and", "more", "words"])
    texts = [text(OLD[1]), longer, fresh, fresh, "\n\n".join(blocks[::-1]), ""]
    manifest = dedup_against(tmp_path, texts, clean)
    assert [row["id"] for row in read_rows(tmp_path / "out" / "data")] == ["new2"]
    pairs = {row["removed_id"]: row for row in pq.read_table(tmp_path / "out" / "pairs.parquet").to_pylist()}
    found = {name: (row["survivor_id"], row["method"], row["survivor_file"]) for name, row in pairs.items()}
    assert found == {
        "new0": ("old1", "exact", "clean/docs.jsonl"),
        "new1": ("old2", "fuzzy", "clean/docs.jsonl"),
        "new3": ("new2", "exact", "docs.jsonl"),
        "new4": ("old8", "reordered", "clean/docs.jsonl"),
    }
    assert pairs["new0"]["survivor_row"] == 1
    assert manifest.statistics["records"] == {"in": 6, "kept": 1, "removed": 5, "invalid": 0}
    assert [entry["role"] for entry in manifest.inputs] == ["source", "against-0"]


def test_documents_removed_earlier_are_no_survivors(tmp_path, clean):
    # old0 and old6 are equal, one of them is gone: the one that is still there is named.
    dedup_against(tmp_path, [text(OLD[0])], clean)
    (pair,) = pq.read_table(tmp_path / "out" / "pairs.parquet").to_pylist()
    kept = {row["id"] for row in read_rows(clean / "data")}
    assert pair["survivor_id"] in kept


def test_text_of_the_earlier_corpus_is_not_read(tmp_path, clean):
    for path in (clean / "data").glob("*.parquet"):
        path.write_bytes(b"")
    assert dedup_against(tmp_path, [text(OLD[3])], clean).statistics["records"]["removed"] == 1


def test_several_earlier_corpora_and_all_in_one_give_the_same(tmp_path, clean):
    more = write_corpus(tmp_path / "more", [{"id": "m0", "text": text(words(100, seed=77))}])
    run(more, tmp_path / "clean2", DedupConfig(), RunOptions(workers=1), (clean,))
    dedup_against(
        tmp_path, [text(words(100, seed=77)), text(OLD[5]), text(words(9, seed=3))], clean, tmp_path / "clean2"
    )
    assert [row["id"] for row in read_rows(tmp_path / "out" / "data")] == ["new2"]


def test_large_buckets_hold_earlier_documents(tmp_path, clean):
    texts = [f"{text(OLD[4])} tail{i}" for i in range(30)]
    dedup_against(tmp_path, texts, clean, max_bucket=4)
    pairs = pq.read_table(tmp_path / "out" / "pairs.parquet").to_pylist()
    assert {pair["survivor_id"] for pair in pairs} == {"old4"}
    assert len(pairs) == 30


def test_other_shingles_are_refused(tmp_path, clean):
    with pytest.raises(UserError, match="ngram_size: 5 → 3"):
        dedup_against(tmp_path, ["x"], clean, ngram_size=3)


def test_another_threshold_is_welcome(tmp_path, clean):
    assert dedup_against(tmp_path, [text(with_changes(OLD[1], 12))], clean, threshold=0.5).statistics["records"] == {
        "in": 1,
        "kept": 0,
        "removed": 1,
        "invalid": 0,
    }


def test_without_an_index_there_is_a_hint(tmp_path):
    source = write_corpus(tmp_path / "old", [{"id": "a", "text": "b"}])
    dedup(source, tmp_path / "bare", keep_index=False)
    assert not (tmp_path / "bare" / "index").exists()
    with pytest.raises(UserError, match="no shingle index"):
        dedup_against(tmp_path, ["x"], tmp_path / "bare")
