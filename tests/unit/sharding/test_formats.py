"""Token ids in the files of other tools: written as those tools write them, and read back without a loss."""

from __future__ import annotations

import hashlib
import json
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmctl.artifacts.manifest import read_manifest
from llmctl.artifacts.shards import open_shards
from llmctl.config.common import RunOptions
from llmctl.errors import RunFailed, UserError
from llmctl.sharding.config import ShardConfig
from llmctl.sharding.formats import FORMATS, BrokenFile
from llmctl.sharding.stage import run
from llmctl.sharding.verify import verify, verify_artifact

OTHERS = ["megatron", "mds", "parquet"]
ONE = RunOptions(workers=1)
EOS = "<|endoftext|>"


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def payload(root):
    return {p.relative_to(root).as_posix(): sha256(p) for d in ("data", "index") for p in (root / d).rglob("*.*")}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A folder with a byte-level tokenizer of 256 bytes and the end-of-text token, which is id 0."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {EOS: 0, **{letter: number for number, letter in enumerate(letters, 1)}}
    built = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([EOS])
    folder = tmp_path_factory.mktemp("tokenizer")
    built.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": EOS}}))
    return folder


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_there_and_back_gives_the_same_shards(make_tokens, documents, tmp_path, name, dtype):
    tokens = make_tokens(documents, dtype=dtype, vocab_size=60_000 if dtype == "uint16" else 200_000)
    run(tokens, tmp_path / "direct", ShardConfig(shard_size=3000), ONE)
    manifest = run(tokens, tmp_path / "there", ShardConfig(shard_size=3000, format=name), ONE)
    assert manifest.kind == "export"
    assert manifest.statistics["tokens"] == open_shards(tmp_path / "direct").num_tokens
    assert len({row["source"] for row in manifest.statistics["shards"]}) == 3
    back = run(tmp_path / "there", tmp_path / "back", ShardConfig(shard_size=3000), ONE)
    assert payload(tmp_path / "back") == payload(tmp_path / "direct")
    assert back.statistics["by_source"] == manifest.statistics["by_source"]


def test_shards_become_every_format_too(make_tokens, documents, tmp_path):
    tokens = make_tokens(documents)
    run(tokens, tmp_path / "shards", ShardConfig(), ONE)
    for name in OTHERS:
        run(tokens, tmp_path / f"tokens-{name}", ShardConfig(format=name), ONE)
        run(tmp_path / "shards", tmp_path / f"shards-{name}", ShardConfig(format=name), ONE)
        assert payload(tmp_path / f"shards-{name}") == payload(tmp_path / f"tokens-{name}")


# Written by megatron-core 0.16.1 (IndexedDatasetBuilder) and mosaicml-streaming 0.13.0 (MDSWriter) from these documents
PEERS_DOCUMENTS = [("a", "en", 3, [5, 6, 0]), ("b", "", 0, [0]), ("é文", "zh", 900, [7] * 300 + [0])]
PEERS_BYTES = {
    ("megatron", "uint16"): {
        "s.bin": "de3dd7582231a837ae1b09d8c80108baac8b2cc832427f1213052ee9a88107a2",
        "s.idx": "867fcd6044b733058060841d19ae42a3fdc61f1d4f626a20db18b2fda6f26243",
    },
    ("megatron", "uint32"): {
        "s.bin": "c15546eee7f8794e0f291e1879441ed6a1f7ccbe8d0584ec81d8c3bc6d7d4af4",
        "s.idx": "23d2d4fb7c9179849052e7a249a7bc97568201c35a248cecd8609dd96bd101aa",
    },
    ("mds", "uint16"): {
        "shard.00000.mds": "399a7d3d8505d84fe1fff44780e75c9e9203ef923304553114a81b0f73450989",
        "index.json": "570e54e760c82e3856c1c4052bd9efc392da26863ed2871187f4fa2ccc843f3d",
    },
    ("mds", "uint32"): {
        "shard.00000.mds": "1164f4f3295ad390417fb29dd479d4e0a5e1da02973792ded92656e44d51e085",
        "index.json": "390ca3ca71eae692b5dffbdc068b34a9ae5b5b2afa6791310ac224f338c7dbc9",
    },
}


@pytest.mark.parametrize(("name", "dtype"), PEERS_BYTES)
def test_the_bytes_are_those_of_the_tools_themselves(tmp_path, name, dtype):
    format = FORMATS[name]
    path = "shard.00000.mds" if name == "mds" else f"s{format.suffix}"
    wanted = "<u2" if dtype == "uint16" else "<u4"
    documents = [
        ({"id": a.encode(), "lang": b.encode(), "source": b"s", "num_bytes": n}, np.array(ids, wanted))
        for a, b, n, ids in PEERS_DOCUMENTS
    ]
    records = format.write(tmp_path, path, iter(documents), 3)
    described = {"path": path, "documents": 3, "bytes": records[0].bytes, "sha256": records[0].sha256}
    format.finish(tmp_path, [described])
    assert {p.name: sha256(p) for p in tmp_path.iterdir()} == PEERS_BYTES[name, dtype]


def test_an_index_of_megatron_by_its_specification(make_tokens, documents, tmp_path):
    """Documents of several blocks stand in the order of the input, and the index counts them through."""
    run(make_tokens(documents), tmp_path / "out", ShardConfig(format="megatron"), ONE)
    data = (tmp_path / "out" / "data" / "source-0-x-00000-of-00001.idx").read_bytes()
    assert data[:9] == b"MMIDIDX\0\0"
    version, code, sequences, ends = struct.unpack_from("<QBQQ", data, 9)
    assert (version, code, sequences, ends) == (1, 8, 30, 31)
    expected = [[*ids, 0] for part in documents for _, source, _, ids, _ in part if source == "source 0/x"]
    lengths = np.frombuffer(data, "<i4", sequences, 34)
    pointers = np.frombuffer(data, "<i8", sequences, 34 + 4 * sequences)
    documents_at = np.frombuffer(data, "<i8", ends, 34 + 12 * sequences)
    ids = np.fromfile(tmp_path / "out" / "data" / "source-0-x-00000-of-00001.bin", "<u2")
    assert [ids[p // 2 : p // 2 + n].tolist() for p, n in zip(pointers, lengths, strict=True)] == expected
    assert documents_at.tolist() == list(range(31))
    assert len(data) == 34 + 12 * sequences + 8 * ends


def test_parquet_holds_lists_of_int32(make_tokens, documents, tmp_path):
    run(make_tokens(documents), tmp_path / "out", ShardConfig(format="parquet"), ONE)
    table = pq.read_table(tmp_path / "out" / "data" / "source-1-x-00000-of-00001.parquet")
    assert table.schema.field("input_ids").type == pa.large_list(pa.int32())
    expected = [[*ids, 0] for part in documents for _, source, _, ids, _ in part if source == "source 1/x"]
    assert table.column("input_ids").to_pylist() == expected


@pytest.mark.parametrize("name", OTHERS)
def test_workers_and_a_stop_do_not_change_the_bytes(make_tokens, documents, tmp_path, monkeypatch, name):
    tokens = make_tokens(documents)
    config = ShardConfig(shard_size=2000, format=name, shuffle=True)
    run(tokens, tmp_path / "one", config, ONE)
    import llmctl.sharding.stage as stage

    done = []

    def stops(unit, context, write=stage.write_shard):
        if len(done) == 3:
            raise RunFailed("stopped")
        done.append(unit.name)
        return write(unit, context)

    monkeypatch.setattr(stage, "write_shard", stops)
    with pytest.raises(RunFailed):
        run(tokens, tmp_path / "two", config, ONE)
    monkeypatch.undo()
    run(tokens, tmp_path / "two", config, RunOptions(workers=2))
    first, second = read_manifest(tmp_path / "one"), read_manifest(tmp_path / "two")
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize("name", OTHERS)
def test_a_flipped_byte_is_named(make_tokens, documents, tmp_path, name):
    out = tmp_path / "out"
    manifest = run(make_tokens(documents), out, ShardConfig(format=name, shard_size=3000), ONE)
    faults, seen = verify_artifact(out)
    assert not faults
    assert (seen.records, seen.tokens) == (90, manifest.statistics["tokens"])
    path = out / manifest.statistics["shards"][1]["path"]
    data = bytearray(path.read_bytes())
    at = len(data) - 20 if name != "parquet" else 400
    data[at] ^= 1
    path.write_bytes(data)
    faults, _ = verify_artifact(out)
    assert {fault.file for fault in faults} == {path.relative_to(out).as_posix()}
    if name != "parquet":
        assert faults[0].record is not None
        assert faults[0].offset is not None and faults[0].offset <= at
    with pytest.raises(RunFailed):
        verify(out)


@pytest.mark.parametrize("name", OTHERS)
def test_cut_missing_and_foreign_files_are_named(make_tokens, documents, tmp_path, name):
    out = tmp_path / "out"
    rows = run(make_tokens(documents), out, ShardConfig(format=name, shard_size=3000), ONE).statistics["shards"]
    (out / rows[0]["path"]).unlink()
    path = out / rows[1]["path"]
    path.write_bytes(path.read_bytes()[:-5])
    (out / "data" / "strange.bin").write_bytes(b"x")
    (out / "documents" / (rows[2]["path"][5:].replace("/", "-") + ".parquet")).write_bytes(b"PAR1")
    faults, _ = verify_artifact(out)
    assert {fault.file for fault in faults} >= {rows[0]["path"], rows[1]["path"], "data/strange.bin"}
    assert any("documents/" in fault.file for fault in faults)


# -- files of other tools -------------------------------------------------------------------------------------------


def foreign_megatron(folder, documents, itemsize=2):
    """Documents of two sequences each, as sentence-split corpora have them."""
    folder.mkdir()
    sequences = [part for ids in documents for part in (ids[: len(ids) // 2], ids[len(ids) // 2 :])]
    lengths = np.array([len(part) for part in sequences], "<i4")
    np.concatenate([np.array(part, f"<i{itemsize}") for part in sequences]).tofile(folder / "corpus_text.bin")
    pointers = (np.cumsum(lengths.astype("<i8")) - lengths) * itemsize
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, {2: 3, 4: 4}[itemsize], len(sequences), len(documents) + 1)
    ends = np.arange(len(documents) + 1, dtype="<i8") * 2
    (folder / "corpus_text.idx").write_bytes(header + lengths.tobytes() + pointers.tobytes() + ends.tobytes())
    return folder


def foreign_parquet(folder, documents):
    folder.mkdir()
    pq.write_table(pa.table({"tokens": documents, "n": list(range(len(documents)))}), folder / "x.parquet")
    return folder


DOCUMENTS = [[40, 41, 42, 0], [0], [50, 0]]


@pytest.mark.parametrize("make", [foreign_megatron, foreign_parquet])
def test_files_of_others_become_shards(tmp_path, tokenizer, make):
    source = make(tmp_path / "corpus", DOCUMENTS)
    with pytest.raises(UserError, match="which tokenizer"):
        run(source, tmp_path / "out", ShardConfig(), ONE)
    manifest = run(source, tmp_path / "out", ShardConfig(tokenizer=str(tokenizer)), ONE)
    assert [entry["role"] for entry in manifest.inputs] == ["source", "tokenizer"]
    shards = open_shards(tmp_path / "out")
    assert [shards.tokens(number).tolist() for number in range(3)] == DOCUMENTS
    assert shards.num_bytes.tolist() == [3, 0, 1]  # the byte-level tokenizer has a token a byte
    assert len({shards.features(number)["id"] for number in range(3)}) == 3
    assert (shards.vocab_size, shards.eos_id) == (257, 0)
    verify(source)


def test_documents_without_an_end_are_refused_or_get_one(tmp_path, tokenizer):
    source = foreign_parquet(tmp_path / "corpus", [[40, 41], [], [42, 0]])
    with pytest.raises(UserError, match="2 of 3 documents do not end with"):
        run(source, tmp_path / "out", ShardConfig(tokenizer=str(tokenizer)), ONE)
    run(source, tmp_path / "ends", ShardConfig(tokenizer=str(tokenizer), append_eos=True), ONE)
    shards = open_shards(tmp_path / "ends")
    assert [shards.tokens(number).tolist() for number in range(3)] == [[40, 41, 0], [0], [42, 0]]


def test_ids_outside_of_the_vocabulary_are_refused(tmp_path, tokenizer):
    source = foreign_megatron(tmp_path / "corpus", [[40, 0], [70_000, 0]], itemsize=4)
    with pytest.raises(UserError, match="document 1: the id 70,000"):
        run(source, tmp_path / "out", ShardConfig(tokenizer=str(tokenizer)), ONE)


def test_a_tokenizer_without_an_end_of_text(tmp_path, tokenizer):
    source = foreign_parquet(tmp_path / "corpus", DOCUMENTS)
    alone = str(tokenizer / "tokenizer.json")
    with pytest.raises(UserError, match="names no token that ends a document"):
        run(source, tmp_path / "out", ShardConfig(tokenizer=alone), ONE)
    run(source, tmp_path / "out", ShardConfig(tokenizer=alone, eos_token=EOS), ONE)
    assert len(open_shards(tmp_path / "out")) == 3


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"X" + data[1:], "not an index"),
        (lambda data: data[:-8], "bytes instead of"),
        (lambda data: data[:17] + b"\x63" + data[18:], "dtype 99"),
        (lambda data: data[:34] + b"\xff\xff\0\0" + data[38:], "outside of the file"),
        (lambda data: data[:-8] + struct.pack("<q", 3), "do not cover"),
    ],
)
def test_a_damaged_index_of_megatron_is_told(tmp_path, damage, words):
    folder = foreign_megatron(tmp_path / "corpus", DOCUMENTS)
    index = folder / "corpus_text.idx"
    index.write_bytes(damage(index.read_bytes()))
    with pytest.raises(BrokenFile, match=words):
        FORMATS["megatron"].layout(folder / "corpus_text.bin")


def test_a_missing_partner_and_a_missing_shard_are_told(make_tokens, documents, tmp_path, tokenizer):
    folder = foreign_megatron(tmp_path / "corpus", DOCUMENTS)
    (folder / "corpus_text.bin").unlink()
    with pytest.raises(UserError, match=r"corpus_text\.bin"):
        run(folder, tmp_path / "out", ShardConfig(tokenizer=str(tokenizer)), ONE)
    run(make_tokens(documents), tmp_path / "mds", ShardConfig(format="mds"), ONE)
    (tmp_path / "mds" / "data" / "source-0-x" / "shard.00000.mds").unlink()
    with pytest.raises(UserError, match="it is missing"):
        run(tmp_path / "mds" / "data", tmp_path / "out", ShardConfig(tokenizer=str(tokenizer)), ONE)


def test_compressed_mds_of_others_is_read(make_tokens, documents, tmp_path):
    """A shard as `MDSWriter(compression="zstd:3")` leaves it: only the compressed file is there."""
    run(make_tokens(documents), tmp_path / "mds", ShardConfig(format="mds"), ONE)
    folder = tmp_path / "mds" / "data" / "source-0-x"
    raw = (folder / "shard.00000.mds").read_bytes()
    plain = FORMATS["mds"].layout(folder / "shard.00000.mds")
    with pa.output_stream(folder / "shard.00000.mds.zstd", compression="zstd") as out:
        out.write(raw)
    (folder / "shard.00000.mds").unlink()
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["zip_data"] = {"basename": "shard.00000.mds.zstd", "bytes": 1, "hashes": {}}
    (folder / "index.json").write_text(json.dumps(index))
    (found,) = FORMATS["mds"].found(folder)
    assert FORMATS["mds"].layout(found).starts.tolist() == plain.starts.tolist()
    assert FORMATS["mds"].buffer(found).tobytes() == raw


def test_an_export_is_no_input_of_training(make_tokens, documents, tmp_path):
    run(make_tokens(documents), tmp_path / "export", ShardConfig(format="mds"), ONE)
    with pytest.raises(UserError, match="export") as refused:
        open_shards(tmp_path / "export")
    assert "llmctl shard" in str(refused.value.hint)


def test_a_dry_run_of_a_conversion_writes_nothing(tmp_path, tokenizer, capsys):
    source = foreign_parquet(tmp_path / "corpus", DOCUMENTS)
    config = ShardConfig(tokenizer=str(tokenizer))
    assert run(source, tmp_path / "out", config, RunOptions(dry_run=True)) is None
    assert "would read 1 parquet files" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
