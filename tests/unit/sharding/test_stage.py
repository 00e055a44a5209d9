"""`run` of shard and the reader: no token lost, equal bytes, random access, and TensorFlow's format."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmctl.artifacts.shards import open_shards
from llmctl.config.common import RunOptions
from llmctl.errors import RunFailed, UserError
from llmctl.sharding import records, stage
from llmctl.sharding.config import ShardConfig


def run(source, output, workers=1, **config):
    return stage.run(source, output, ShardConfig(**config), RunOptions(workers=workers))


def content(folder):
    """Return {id: (source, ids, bytes)} through the reader."""
    shards = open_shards(folder)
    found = {}
    for number in range(len(shards)):
        features = shards.features(number)
        ids = shards.tokens(number)
        assert features["input_ids"] == ids.tobytes()
        assert len(ids) == shards.lengths[number] == features["num_tokens"][0]
        assert features["source"].decode() == shards.sources[shards.source_ids[number]]
        assert features["num_bytes"] == [shards.num_bytes[number]]
        assert features["dtype"].decode() == shards.dtype.name
        found[features["id"].decode()] = (features["source"].decode(), ids.tolist(), int(shards.num_bytes[number]))
    return found


def expected(parts):
    return {name: (source, [*ids, 0], size) for part in parts for name, source, _, ids, size in part}


def test_documents_come_back(make_tokens, documents, tmp_path):
    manifest = run(make_tokens(documents), tmp_path / "out", shard_size=3000)
    assert content(tmp_path / "out") == expected(documents)
    statistics = manifest.statistics
    assert statistics["documents"] == statistics["records"]["kept"] == 90
    assert statistics["tokens"] == sum(row["tokens"] for row in statistics["shards"])
    assert statistics["tokens"] == sum(len(ids) + 1 for part in documents for _, _, _, ids, _ in part)
    for row in statistics["shards"]:
        path = tmp_path / "out" / row["path"]
        assert row["bytes"] == path.stat().st_size <= 3000
    numbered = [row["path"].rsplit("-", 3) for row in statistics["shards"]]
    count = Counter(name for name, *_ in numbered)
    assert count.keys() == {"data/source-0-x", "data/source-1-x", "data/source-2-x"}
    assert all(of == "of" and total == f"{count[name]:05d}.tfrecord" for name, _, of, total in numbered)


def test_the_order_is_kept_unless_shuffled(make_tokens, documents, tmp_path):
    tokens = make_tokens(documents)
    run(tokens, tmp_path / "kept")
    in_order = [
        name for source in range(3) for part in documents for name, label, *_ in part if label == f"source {source}/x"
    ]
    assert list(content(tmp_path / "kept")) == in_order
    run(tokens, tmp_path / "one", shuffle=True)
    run(tokens, tmp_path / "two", shuffle=True, seed=1)
    one, two = list(content(tmp_path / "one")), list(content(tmp_path / "two"))
    assert sorted(one) == sorted(two) == sorted(in_order)
    assert in_order != one != two
    assert content(tmp_path / "one") == expected(documents)


def test_workers_do_not_change_the_bytes(make_tokens, documents, tmp_path):
    tokens = make_tokens(documents)
    one = run(tokens, tmp_path / "one", shard_size=2000, shuffle=True)
    two = run(tokens, tmp_path / "two", workers=2, shard_size=2000, shuffle=True)
    assert one.to_mapping() == two.to_mapping()


def test_a_stopped_run_goes_on(make_tokens, documents, tmp_path, monkeypatch):
    tokens = make_tokens(documents)
    clean = run(tokens, tmp_path / "clean", shard_size=2000)
    calls = []

    def failing(unit, context):
        calls.append(unit.name)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return records.write_shard(unit, context)

    monkeypatch.setattr(stage, "write_shard", failing)
    with pytest.raises(KeyboardInterrupt):
        run(tokens, tmp_path / "out", shard_size=2000)
    with pytest.raises(UserError, match="not finished"):
        open_shards(tmp_path / "out")
    assert run(tokens, tmp_path / "out", shard_size=2000).to_mapping() == clean.to_mapping()
    assert len(calls) == len(clean.statistics["shards"]) + 1  # only the stopped one is done again
    assert not (tmp_path / "out" / "_state").exists()


def test_a_document_longer_than_a_shard_has_its_own(make_tokens, tmp_path):
    parts = [[("a", "s", "en", [1] * 10, 1), ("long", "s", "en", [2] * 5000, 1), ("b", "s", "en", [3] * 10, 1)]]
    manifest = run(make_tokens(parts), tmp_path / "out", shard_size=1000)
    assert [row["documents"] for row in manifest.statistics["shards"]] == [2, 1]
    assert content(tmp_path / "out") == expected(parts)


def test_sources_whose_names_collide_stay_apart(make_tokens, tmp_path):
    names = ["A B", "a-b", "a/b", "…", "？", "", "../../etc"]
    parts = [[(str(n), name, None, [n + 1], 1) for n, name in enumerate(names)]]
    manifest = run(make_tokens(parts), tmp_path / "out")
    assert len({row["path"] for row in manifest.statistics["shards"]}) == len(names)
    assert all("/" not in row["path"].removeprefix("data/") for row in manifest.statistics["shards"])
    assert content(tmp_path / "out") == expected(parts)


def test_wide_ids(make_tokens, tmp_path):
    parts = [[("a", "s", None, [70_000, 2**31 + 5], 9)]]
    run(make_tokens(parts, dtype="uint32", vocab_size=2**32), tmp_path / "out")
    assert content(tmp_path / "out") == expected(parts)


def test_pieces_of_a_document_are_views(make_tokens, tmp_path):
    parts = [[("a", "s", None, list(range(1, 100)), 9), ("b", "s", None, [], 0)]]
    run(make_tokens(parts), tmp_path / "out")
    shards = open_shards(tmp_path / "out")
    whole = shards.tokens(0)
    assert whole.tolist() == [*range(1, 100), 0]
    assert shards.tokens(0, 10, 13).tolist() == [11, 12, 13]
    assert shards.tokens(0, 95).tolist() == [96, 97, 98, 99, 0]
    assert shards.tokens(0, 98, 1000).tolist() == [99, 0]
    assert shards.tokens(0, 50, 20).tolist() == []
    assert shards.tokens(1).tolist() == [0]
    assert np.shares_memory(whole, shards.tokens(0, 5, 9))
    assert not whole.flags.writeable
    with pytest.raises(IndexError):
        shards.tokens(2)
    copy = pickle.loads(pickle.dumps(shards))
    assert copy.tokens(0).tolist() == whole.tolist()


def test_no_documents_at_all(make_tokens, tmp_path):
    manifest = run(make_tokens([[]]), tmp_path / "out")
    assert manifest.statistics["shards"] == []
    shards = open_shards(tmp_path / "out")
    assert len(shards) == shards.num_tokens == 0


ID_LISTS = st.lists(st.integers(1, 59_999), max_size=40)


@settings(deadline=None, max_examples=25)
@given(
    parts=st.lists(
        st.lists(st.tuples(st.sampled_from(["x", "y", "z z"]), st.sampled_from([None, "en"]), ID_LISTS), max_size=12),
        min_size=1,
        max_size=3,
    ),
    shard_size=st.integers(1000, 3000),
    shuffle=st.booleans(),
)
def test_any_documents_come_back(write_tokens, parts, shard_size, shuffle):
    named = [
        [(f"{p}/{n}", source, lang, ids, len(ids)) for n, (source, lang, ids) in enumerate(part)]
        for p, part in enumerate(parts)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        tokens = write_tokens(Path(scratch) / "tokens", named)
        manifest = run(tokens, Path(scratch) / "out", shard_size=shard_size, shuffle=shuffle)
        assert content(Path(scratch) / "out") == expected(named)
        assert manifest.statistics["tokens"] == sum(len(ids) + 1 for part in named for _, _, _, ids, _ in part)


# -- what is refused ------------------------------------------------------------------------------------------------


def test_texts_are_sent_to_tokenize(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.jsonl").write_text('{"text": "x"}\n')
    for path in (tmp_path / "raw", tmp_path / "raw" / "a.jsonl"):
        with pytest.raises(UserError, match="no token ids") as failure:
            run(path, tmp_path / "out")
        assert "llmctl tokenize" in failure.value.hint


def test_tokens_that_do_not_end_documents_are_refused(make_tokens, documents, tmp_path):
    tokens = make_tokens(documents)
    path = tokens / "data" / "part-00001-00000.tokens"
    data = np.fromfile(path, "<u2")
    data[data == 0] = 7
    data.tofile(path)
    with pytest.raises(RunFailed, match="does not end with the end-of-text token"):
        run(tokens, tmp_path / "out")


def test_verify_reads_the_input_again(make_tokens, documents, tmp_path):
    tokens = make_tokens(documents)
    path = tokens / "data" / "part-00001-00000.tokens"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"part-00001-00000\.tokens differs"):
        stage.run(tokens, tmp_path / "out", ShardConfig(), RunOptions(workers=1, verify=True))


def test_sums_that_differ_are_refused(make_tokens, documents, tmp_path):
    tokens = make_tokens(documents)
    manifest = json.loads((tokens / "manifest.json").read_text())
    manifest["statistics"]["tokens"] += 1
    (tokens / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunFailed, match="the input says"):
        run(tokens, tmp_path / "out")


@pytest.mark.parametrize(
    ("shard_size", "words"), [(1000, "takes longer than reading them"), (200_000_000, "only 3 shards")]
)
def test_warnings_about_sizes(make_tokens, documents, tmp_path, capsys, shard_size, words):
    run(make_tokens(documents), tmp_path / "out", shard_size=shard_size)
    assert words in capsys.readouterr().err


# -- damage seen by the reader --------------------------------------------------------------------------------------


@pytest.fixture
def shards(make_tokens, documents, tmp_path):
    run(make_tokens(documents), tmp_path / "out")
    return tmp_path / "out"


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def test_a_flipped_byte_is_told_with_file_record_and_offset(shards):
    opened = open_shards(shards)
    number = 7
    file, record = opened.locate(number)
    flip(shards / file.path, int(opened._token_offsets[number]))
    opened = open_shards(shards)
    opened.tokens(number - 1)
    with pytest.raises(RunFailed) as failure:
        opened.tokens(number)
    assert f"{file.path}, record {record} at byte {int(opened._record_offsets[number]):,}" in failure.value.problem
    assert len(open_shards(shards, verify=False).tokens(number)) == opened.lengths[number]


def test_a_cut_file_is_told_on_opening(shards):
    path = next(iter(sorted(shards.glob("data/*"))))
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(UserError, match=path.name):
        open_shards(shards)


def test_a_file_that_shrinks_later_is_told(shards):
    opened = open_shards(shards)
    path = shards / opened.files[1].path
    os.truncate(path, path.stat().st_size - 1)
    opened.tokens(0)
    with pytest.raises(RunFailed, match=path.name):
        opened.tokens(opened.files[1].first)


def test_an_index_that_points_elsewhere_is_told(shards):
    path = shards / "index" / "token_offsets.npy"
    offsets = np.load(path)
    offsets[3] = 10**9
    with open(path, "wb") as out:
        np.save(out, offsets)
    with pytest.raises(RunFailed, match="the index places its tokens outside of it"):
        open_shards(shards).tokens(3)


@pytest.mark.parametrize("damage", ["missing", "pickle", "shape", "short"])
def test_a_broken_index_is_refused(shards, damage):
    path = shards / "index" / "lengths.npy"
    if damage == "missing":
        path.unlink()
    elif damage == "pickle":
        np.save(path, np.array([{"a": 1}], object), allow_pickle=True)
    elif damage == "shape":
        np.save(path, np.zeros((2, 45), "<i8"))
    else:
        np.save(path, np.zeros(89, "<i8"))
    with pytest.raises(UserError, match="index"):
        open_shards(shards)


def test_many_files_do_not_use_up_descriptors(make_tokens, tmp_path, monkeypatch):
    monkeypatch.setattr("llmctl.artifacts.shards.MAX_OPEN_FILES", 2)
    parts = [[(str(n), f"s{n:02d}", None, [n + 1] * 3, 1) for n in range(20)]]
    run(make_tokens(parts), tmp_path / "out")
    shards = open_shards(tmp_path / "out")
    views = [shards.tokens(number) for number in range(20)]
    assert [view[0] for view in views] == list(range(1, 21))
    assert len(shards._maps) == 2
