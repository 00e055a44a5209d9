"""`llmctl shard --verify`: every kind of damage is named by file, record and byte offset."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from llmctl.artifacts.shards import open_shards
from llmctl.artifacts.tfrecord import frame
from llmctl.config.common import RunOptions
from llmctl.errors import RunFailed, UserError
from llmctl.sharding import stage
from llmctl.sharding.config import ShardConfig
from llmctl.sharding.verify import verify, verify_artifact


@pytest.fixture
def shards(make_tokens, documents, tmp_path):
    stage.run(make_tokens(documents), tmp_path / "out", ShardConfig(shard_size=3000), RunOptions(workers=1))
    return tmp_path / "out"


@pytest.fixture
def opened(shards):
    return open_shards(shards)


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def test_a_whole_folder_has_no_faults(shards):
    faults, seen = verify_artifact(shards)
    statistics = json.loads((shards / "manifest.json").read_text())["statistics"]
    assert faults == []
    assert (seen.records, seen.tokens, seen.files) == (90, statistics["tokens"], len(statistics["shards"]))


@pytest.mark.parametrize("place", ["length", "crc of length", "data", "crc of data"])
def test_a_flipped_byte_is_named_and_the_rest_is_read(shards, opened, place):
    number = opened.files[1].first + 2
    offset, following = int(opened._record_offsets[number]), int(opened._record_offsets[number + 1])
    position = {"length": offset + 1, "crc of length": offset + 9, "data": offset + 40, "crc of data": following - 2}
    flip(shards / opened.files[1].path, position[place])
    faults, seen = verify_artifact(shards)
    assert [(fault.file, fault.record, fault.offset) for fault in faults] == [(opened.files[1].path, 2, offset)]
    assert seen.records == 89


def test_two_damages_in_one_file_are_both_named(shards, opened):
    first = opened.files[0].first
    offsets = [int(opened._record_offsets[first + record]) for record in (1, 3)]
    for offset in offsets:
        flip(shards / opened.files[0].path, offset)
    assert [(fault.record, fault.offset) for fault in verify_artifact(shards)[0]] == [(1, offsets[0]), (3, offsets[1])]


@pytest.mark.parametrize("cut", ["inside", "between"])
def test_a_cut_file_is_named_with_what_is_lost(shards, opened, cut):
    file = opened.files[2]
    offset = int(opened._record_offsets[file.first + 4])
    os.truncate(shards / file.path, offset + (5 if cut == "inside" else 0))
    faults, seen = verify_artifact(shards)
    assert (faults[0].file, faults[0].record, faults[0].offset) == (file.path, 4, offset)
    assert all(fault.file == file.path for fault in faults)
    assert f"{file.documents - 4 - (cut == 'inside'):,} records are lost" in faults[-1].problem
    assert seen.records == 90 - file.documents + 4


def test_bytes_after_the_end_are_named(shards, opened):
    file = opened.files[0]
    with open(shards / file.path, "ab") as out:
        out.write(b"more")
    (fault,), _ = verify_artifact(shards)
    assert (fault.record, fault.offset) == (file.documents, file.bytes)


def test_missing_and_foreign_shards_are_named(shards, opened):
    (shards / opened.files[0].path).rename(shards / "data" / "stranger.tfrecord")
    faults, seen = verify_artifact(shards)
    assert {(fault.file, fault.problem.split(":")[0]) for fault in faults} == {
        ("data/stranger.tfrecord", "foreign file"),
        (opened.files[0].path, "this shard is missing"),
    }
    assert seen.records == 90 - opened.files[0].documents


def test_swapped_shards_are_found(shards, opened):
    """Every record is whole, but belongs to another file."""
    one, two = shards / opened.files[0].path, shards / opened.files[-1].path
    shutil.move(one, shards / "kept")
    shutil.move(two, one)
    shutil.move(shards / "kept", two)
    faults, _ = verify_artifact(shards)
    assert {fault.file for fault in faults} == {opened.files[0].path, opened.files[-1].path}


def test_a_replaced_record_of_equal_size_is_found(shards, opened):
    """A record whose checksums hold, but that the manifest does not vouch for."""
    file = opened.files[0]
    path = shards / file.path
    data = path.read_bytes()
    assert opened.lengths[file.first + 1] > 1
    start, end = (int(opened._record_offsets[file.first + record]) for record in (1, 2))
    record = bytearray(data[start + 12 : end - 4])
    record[-4] ^= 1  # an id within the vocabulary
    path.write_bytes(data[:start] + b"".join(frame(bytes(record))) + data[end:])
    (fault,), _ = verify_artifact(shards)
    assert fault.file == file.path
    assert "checksum in the manifest" in fault.problem


@pytest.mark.parametrize("name", ["index/lengths.npy", "tokenizer/tokenizer.json"])
def test_a_damaged_companion_is_named(shards, name):
    flip(shards / name, -1)
    (fault,), _ = verify_artifact(shards)
    assert (fault.file, fault.record) == (name, None)
    (shards / name).unlink()
    (fault,), _ = verify_artifact(shards)
    assert "missing" in fault.problem


def test_files_of_others_are_checked_too(shards, opened, tmp_path):
    folder = tmp_path / "foreign"
    shutil.copytree(shards / "data", folder)
    verify(folder)
    name = opened.files[0].path.removeprefix("data/")
    flip(folder / name, 30)
    with pytest.raises(RunFailed, match="1 faults"):
        verify(folder)
    with pytest.raises(RunFailed):
        verify(folder / name)


def test_nothing_to_verify(tmp_path):
    with pytest.raises(UserError, match="no shards"):
        verify(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        verify(tmp_path / "nowhere")
