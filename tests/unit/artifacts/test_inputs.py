"""What can be read: finished artifacts, raw files and trees; and what must be refused."""

from __future__ import annotations

import os

import pytest

from llmctl.artifacts.files import write_file
from llmctl.artifacts.inputs import list_raw_files, open_input
from llmctl.artifacts.manifest import STATE_FOLDER, Manifest
from llmctl.errors import RunFailed, UserError


def artifact(root, kind="documents"):
    records = [write_file(root, "data/a.parquet", b"aaa"), write_file(root, "removed/a.parquet", b"r")]
    Manifest(kind, "filter", {}, files=records).write(root)
    return root


def test_a_tree_is_listed_in_order_without_hidden_files_and_loops(tmp_path):
    for name in ("b/2.txt", "a/1.txt", "z.txt", ".hidden", ".git/config", "a b/100% 名.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    os.symlink(tmp_path, tmp_path / "a" / "loop")
    os.symlink(tmp_path / "gone", tmp_path / "dangling")
    assert [file.path for file in list_raw_files(tmp_path)] == ["a b/100% 名.txt", "a/1.txt", "b/2.txt", "z.txt"]


def test_a_link_to_a_folder_elsewhere_is_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.txt").write_text("a")
    (tmp_path / "in").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "in" / "link")
    assert [file.path for file in list_raw_files(tmp_path / "in")] == ["link/a.txt"]


def test_one_raw_file(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}")
    source = open_input(tmp_path / "a.jsonl")
    assert (source.kind, source.name, source.root) == ("raw", "a.jsonl", tmp_path)
    assert source.total_bytes == 2


def test_an_artifact_gives_its_payload(tmp_path):
    source = open_input(artifact(tmp_path / "clean"), kinds=("documents",))
    assert source.kind == "documents"
    assert [file.path for file in source.files] == ["data/a.parquet"]
    assert source.describe()["fingerprint"] == source.manifest.fingerprint


def test_a_damaged_artifact_is_refused(tmp_path):
    root = artifact(tmp_path / "clean")
    (root / "data/a.parquet").write_bytes(b"aa")
    with pytest.raises(UserError, match="2 bytes instead of 3"):
        open_input(root)
    (root / "data/a.parquet").unlink()
    with pytest.raises(UserError, match=r"lacks data/a\.parquet"):
        open_input(root)


def test_wrong_inputs_are_sentences(tmp_path):
    (tmp_path / "corpus").mkdir()
    with pytest.raises(UserError, match="does not exist") as raised:
        open_input(tmp_path / "corpsu")
    assert "corpus" in raised.value.hint
    with pytest.raises(UserError, match="holds no files"):
        open_input(tmp_path / "corpus")
    with pytest.raises(UserError, match="`tokens` is needed"):
        open_input(artifact(tmp_path / "clean"), kinds=("tokens",))
    (tmp_path / "half" / STATE_FOLDER).mkdir(parents=True)
    with pytest.raises(UserError, match="is not finished"):
        open_input(tmp_path / "half")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        open_input(tmp_path / "file", kinds=("tokens",), raw=False)


def test_the_fingerprint_of_raw_files_follows_their_content(tmp_path):
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a.txt"
    path.write_text("one")
    first = open_input(tmp_path / "in").describe()
    os.utime(path, (1, 1))
    assert open_input(tmp_path / "in").describe() == first
    path.write_text("two")
    assert open_input(tmp_path / "in").describe()["fingerprint"] != first["fingerprint"]


def test_known_hashes_are_trusted_only_with_the_same_size_and_time(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one")
    source = open_input(path)
    source.describe()
    ((name, (size, mtime, digest)),) = source.known_hashes().items()
    trusting = open_input(path)
    trusting.start_hashing({name: (size, mtime, "f" * 64)})
    assert trusting.describe()["files"][0]["sha256"] == "f" * 64
    wary = open_input(path)
    wary.start_hashing({name: (size, mtime + 1, "f" * 64)})
    assert wary.describe()["files"][0]["sha256"] == digest


def test_a_file_that_changes_while_it_is_read_is_not_vouched_for(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one")
    source = open_input(path)
    path.write_text("longer")
    with pytest.raises(RunFailed, match="changed while it was being read"):
        source.describe()


def test_a_name_that_is_not_utf8_stands_in_the_manifest_as_text(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    described = open_input(tmp_path).describe()
    assert [file["path"] for file in described["files"]] == ["caf\\xe9.txt"]
