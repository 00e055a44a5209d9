"""The loader over real shards: the same ids as the documents, and damage told at the first use."""

from __future__ import annotations

import json

import google_crc32c
import numpy as np
import pytest

from llmctl.artifacts.shards import open_shards
from llmctl.cli.app import run
from llmctl.errors import RunFailed
from llmctl.loading.batches import Pieces, collate
from llmctl.loading.kernels import check_records, crc32c, crc_by_tables
from llmctl.loading.loader import Loader, LoaderSettings

TEXTS = ["", "a", "Zürich — 東京 😀", "the cat sat on the mat. " * 40, "x" * 300, "line\nline\n"] * 4


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    root = tmp_path_factory.mktemp("corpus")
    lines = [{"text": f"{text}{number}", "source": f"s{number % 3}"} for number, text in enumerate(TEXTS)]
    (root / "raw.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run(["tokenize", str(root / "raw.jsonl"), str(root / "tok"), "--vocab-size", "300", "--workers", "1"]) == 0
    command = ["shard", str(root / "tok"), str(root / "shards"), "--workers", "1", "--shard-size", "2KB"]
    assert run(command) == 0
    return root / "shards"


def whole_documents(documents):
    count = len(documents)
    return Pieces(np.arange(count + 1), np.arange(count), np.zeros(count, np.int64), np.array(documents.lengths))


def test_what_is_read_is_what_was_written(shards):
    documents = open_shards(shards)
    assert len(documents.files) > 3
    assert any(int(offset) % 2 for offset in documents._token_offsets)  # ids at odd addresses
    longest = int(documents.lengths.max())
    packed = collate(documents, whole_documents(documents), longest)
    plain = open_shards(shards, verify=False)
    for number, labels in enumerate(packed.labels):
        assert labels[labels != -100].tolist() == plain.tokens(number).tolist()
    assert documents._verified.all()
    by_source = [int(documents.lengths[documents.source_ids == number].sum()) for number in range(3)]
    assert packed.source_tokens.tolist() == by_source


def test_a_flipped_byte_is_told_by_file_record_and_offset(shards, tmp_path):
    import shutil

    damaged = tmp_path / "damaged"
    shutil.copytree(shards, damaged)
    documents = open_shards(damaged)
    victim = len(documents) // 2
    file, record = documents.locate(victim)
    path = damaged / file.path
    data = bytearray(path.read_bytes())
    data[int(documents._token_offsets[victim])] ^= 0x40
    path.write_bytes(data)
    loader = Loader(open_shards(damaged), np.arange(len(documents)), LoaderSettings(1, 400, 64))
    offset = int(documents._record_offsets[victim])
    with pytest.raises(RunFailed, match=f"record {record} at byte {offset:,}: the checksum of its data") as failure:
        loader.batch(1)
    assert str(path) in str(failure.value)
    Loader(open_shards(damaged, verify=False), np.arange(len(documents)), LoaderSettings(1, 400, 64)).batch(1)


def test_every_kind_of_damage_to_a_record_is_seen(shards):
    documents = open_shards(shards)
    number = np.array([3])
    where = documents.locations(number)
    size = documents.lengths[number] * documents.dtype.itemsize
    assert check_records(where.records, where.ends, where.tokens, size) == -1
    begin = int(where.records[0]) - where.maps[0].__array_interface__["data"][0]
    length = int(where.tokens[0] - where.records[0] + size[0]) + 4
    original = where.maps[0][begin : begin + length]
    for position in range(length):
        copy = original.copy()
        copy[position] ^= 1 << (position % 8)
        base = np.array([copy.__array_interface__["data"][0]])
        tokens = base + (where.tokens - where.records)
        assert check_records(base, base + length, tokens, size) == 0, position
    copy = original.copy()
    base = np.array([copy.__array_interface__["data"][0]])
    tokens = base + (where.tokens - where.records)
    assert check_records(base, base + length, tokens, size) == -1
    assert check_records(base, base + length - 1, tokens, size) == 0  # cut
    assert check_records(base, base + 5, tokens, size) == 0  # cut in the header
    assert check_records(base, base + length, tokens, size + 1) == 0  # the index is wrong


def test_the_checksum_is_that_of_the_standard():
    assert crc32c(np.frombuffer(b"123456789", np.uint8)) == 0xE3069283  # RFC 3720's check value
    generator = np.random.default_rng(0)
    for size in (0, 1, 7, 8, 9, 63, 1000, 4097):
        data = generator.integers(0, 256, size).astype(np.uint8)
        assert crc32c(data) == crc_by_tables(data) == google_crc32c.value(data.tobytes())
