"""A manifest says what a folder is; one that cannot be trusted or understood is refused."""

from __future__ import annotations

import json

import pytest

from llmctl.artifacts import kinds, manifest
from llmctl.artifacts.files import write_file
from llmctl.artifacts.manifest import MANIFEST_NAME, STATE_FOLDER, Manifest, read_manifest, read_run
from llmctl.errors import UserError


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "clean"
    records = [write_file(root, "data/b.parquet", b"bbb"), write_file(root, "data/a.parquet", b"a")]
    Manifest("documents", "filter", {"threshold": 1}, files=records, tool_version="1").write(root)
    return root


def edit(folder, **changes):
    path = folder / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_round_trip_with_sorted_files(folder):
    read = read_manifest(folder, kinds=("documents",))
    assert [file.path for file in read.files] == ["data/a.parquet", "data/b.parquet"]
    assert read.paths("data/", ".parquet") == [folder / "data/a.parquet", folder / "data/b.parquet"]
    assert read.config == {"threshold": 1}
    assert len(read.fingerprint) == 64


def test_equal_manifests_have_equal_fingerprints(tmp_path, folder):
    again = read_manifest(folder)
    again.write(tmp_path / "copy")
    assert again.fingerprint == read_manifest(folder).fingerprint == read_manifest(tmp_path / "copy").fingerprint


def test_whole_files_are_not_damaged(folder):
    seen = []
    assert read_manifest(folder).damaged_files(seen.append) == []
    assert sorted(seen) == [1, 3]


def test_damage_is_found_and_named(folder):
    (folder / "data/a.parquet").write_bytes(b"x")
    (folder / "data/b.parquet").write_bytes(b"bb")
    assert read_manifest(folder).damaged_files() == [
        "data/a.parquet differs from its checksum",
        "data/b.parquet has 2 bytes instead of 3",
    ]
    (folder / "data/a.parquet").unlink()
    assert read_manifest(folder).damaged_files()[0] == "data/a.parquet is missing"


def test_a_newer_schema_is_refused_with_a_hint(folder):
    edit(folder, schema_version=99)
    with pytest.raises(UserError, match="schema 99") as raised:
        read_manifest(folder)
    assert "upgrade llmctl" in raised.value.hint


def test_an_older_schema_is_upgraded(folder, monkeypatch):
    monkeypatch.setitem(kinds.KINDS, "documents", kinds.Kind("documents", 2, "newer"))
    monkeypatch.setitem(
        manifest.UPGRADES, ("documents", 1), lambda old: {**old, "schema_version": 2, "config": {"upgraded": True}}
    )
    assert read_manifest(folder).config == {"upgraded": True}


@pytest.mark.parametrize("path", ["/etc/passwd", "../other/a", "data/../../a"])
def test_paths_out_of_the_folder_are_refused(folder, path):
    edit(folder, files=[{"path": path, "bytes": 1, "sha256": "0"}])
    with pytest.raises(UserError, match="leads out of the folder"):
        read_manifest(folder)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"kind": "documents"}', b'{"kind":"documents","schema_version":"x"}', b"\xff"],
)
def test_a_broken_manifest_is_a_sentence(folder, content):
    (folder / MANIFEST_NAME).write_bytes(content)
    with pytest.raises(UserError, match="not a manifest"):
        read_manifest(folder)


@pytest.mark.parametrize(
    "changes", [{"files": 5}, {"files": [{}]}, {"files": ["x"]}, {"config": 5}, {"inputs": None}, {"statistics": None}]
)
def test_a_manifest_that_lacks_parts_is_a_sentence(folder, changes):
    edit(folder, **changes)
    with pytest.raises(UserError, match="lacks what a manifest must have"):
        read_manifest(folder)


def test_wrong_and_unknown_kinds_are_refused(folder):
    with pytest.raises(UserError, match="holds `documents`, and `tokens` or `shards` is needed") as raised:
        read_manifest(folder, kinds=("tokens", "shards"))
    assert "llmctl filter" in raised.value.hint
    edit(folder, kind="documnts")
    with pytest.raises(UserError, match="documnts") as raised:
        read_manifest(folder)
    assert "did you mean `documents`?" in raised.value.hint


def test_no_manifest_and_unfinished_are_told_apart(tmp_path):
    with pytest.raises(UserError, match=r"has no manifest\.json"):
        read_manifest(tmp_path)
    (tmp_path / STATE_FOLDER).mkdir()
    with pytest.raises(UserError, match="is not finished"):
        read_manifest(tmp_path)


def test_a_missing_or_broken_run_record_is_empty(tmp_path):
    assert read_run(tmp_path) == {}
    for content in ("{", "[]", '"x"'):
        (tmp_path / "run.json").write_text(content)
        assert read_run(tmp_path) == {}
