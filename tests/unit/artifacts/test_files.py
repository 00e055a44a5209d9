"""Files appear whole or not at all, and faults of the system become sentences."""

from __future__ import annotations

import errno
import hashlib
import os

import pytest

from llmctl.artifacts import files
from llmctl.artifacts.files import (
    TEMPORARY_MARK,
    adopt_file,
    atomic_file,
    explain_os_error,
    printable_path,
    remove_leftovers,
    safe_relative,
    sha256_of,
    write_json,
)
from llmctl.errors import RunFailed, UserError


def test_atomic_file_hashes_what_it_writes(tmp_path):
    path = tmp_path / "deep" / "file.bin"
    with atomic_file(path) as out:
        out.write(b"one ")
        out.write(b"two")
    record = out.record("deep/file.bin")
    assert path.read_bytes() == b"one two"
    assert (record.bytes, record.sha256) == (7, hashlib.sha256(b"one two").hexdigest())
    assert sha256_of(path) == record.sha256 == adopt_file(tmp_path, "deep/file.bin").sha256


@pytest.mark.parametrize("failure", [ValueError("bad"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_no_temporary_one(tmp_path, failure):
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    with pytest.raises(type(failure)), atomic_file(path) as out:
        out.write(b"half of the new")
        raise failure
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.bin"]


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    def no_space(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", no_space)
    with (
        pytest.raises(RunFailed, match="no space left on the disk while writing") as raised,
        atomic_file(tmp_path / "file.bin") as out,
    ):
        out.write(b"data")
    assert "run the same command again" in raised.value.hint
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, RunFailed, "no space"),
        (errno.EDQUOT, RunFailed, "no space"),
        (errno.EACCES, UserError, "cannot write to"),
        (errno.EROFS, UserError, "cannot write to"),
        (errno.ENOTDIR, UserError, "cannot write to"),
        (errno.EIO, RunFailed, "cannot write"),
    ],
)
def test_errors_of_the_system_are_explained(tmp_path, number, kind, words):
    explained = explain_os_error(OSError(number, os.strerror(number)), tmp_path / "out")
    assert isinstance(explained, kind)
    assert words in str(explained) and "out" in str(explained)


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", "", "a\\b", "a\x00b", ".."])
def test_paths_that_lead_out_are_refused(path):
    with pytest.raises(UserError, match="leads out of the folder"):
        safe_relative(path, "manifest.json")


def test_paths_inside_are_returned():
    assert safe_relative("data/00000-00000.parquet", "manifest.json") == "data/00000-00000.parquet"


def test_leftovers_of_a_killed_run_go_and_the_rest_stays(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"a.parquet{TEMPORARY_MARK}1-ff").write_bytes(b"half")
    (tmp_path / "data" / "a.parquet").write_bytes(b"whole")
    remove_leftovers(tmp_path)
    remove_leftovers(tmp_path / "nowhere")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["a.parquet"]


def test_json_has_no_nan_and_ends_with_a_newline(tmp_path):
    write_json(tmp_path, "a.json", {"b": 1, "ä": "ö"})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "b": 1,\n  "ä": "ö"\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path, "b.json", {"b": float("nan")})
    assert not (tmp_path / "b.json").exists()


def test_names_that_are_not_utf8_can_be_printed():
    assert printable_path(os.fsdecode(b"caf\xe9.jsonl")) == "caf\\xe9.jsonl"
    assert printable_path("名前/café.jsonl") == "名前/café.jsonl"
