"""`llmctl show` on everything a user may point it at."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

import pytest
from tests.zoo import build_zoo, lines

from llmctl.artifacts.documents import write_parquet
from llmctl.artifacts.files import write_file
from llmctl.artifacts.inputs import open_input
from llmctl.artifacts.kinds import documents_schema
from llmctl.artifacts.manifest import MANIFEST_NAME
from llmctl.artifacts.output import open_output
from llmctl.cli.app import run


@dataclass
class Config:
    """Nothing to configure."""


@pytest.fixture
def raw(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.jsonl").write_bytes(lines(3))
    return tmp_path / "raw"


@pytest.fixture
def clean(tmp_path, raw):
    import pyarrow as pa

    evil = "clear \x1b[2J\x07 and \u202eturn\nnext " + "long " * 200
    rows = [{"id": "one", "text": evil, "source": "web", "lang": None, "metadata": None}]
    with open_output(
        tmp_path / "clean", kind="documents", stage="filter", config=Config(), inputs=[open_input(raw)]
    ) as out:
        record = write_parquet(out.root, "data/00000-00000.parquet", pa.Table.from_pylist(rows, documents_schema()))
        records = {"in": 3, "kept": 1, "removed": 2, "invalid": 0}
        statistics = {"records": records, "by_reason": {"short": 2}, "by_file": [{"path": "a.jsonl"}], "share": 0.5}
        out.finish([record], statistics)
    return tmp_path / "clean"


def show(capsys, *arguments):
    status = run(["show", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_an_artifact(capsys, clean, raw):
    status, out, err = show(capsys, clean)
    assert status == 0 and err == ""
    assert "clean: documents" in out and "written by llmctl filter" in out
    assert "3 in, 1 kept, 2 removed, 0 invalid" in out
    assert "short 2" in out and "share: 0.5" in out
    assert f"source: {raw} (raw, 1 file," in out
    assert "checksums: all hold (2 files)" in out


def test_an_artifact_as_json(capsys, clean):
    status, out, _ = show(capsys, clean, "--json", "--head", "1")
    shown = json.loads(out)
    assert status == 0
    assert (shown["kind"], shown["stage"], shown["checksums"], shown["damaged"]) == ("documents", "filter", "hold", [])
    assert shown["inputs"][0]["state"] == "matches"
    assert shown["statistics"]["records"]["kept"] == 1
    assert shown["documents"][0]["id"] == "one"


def test_the_manifest_itself_may_be_named(capsys, clean):
    assert show(capsys, clean / MANIFEST_NAME)[1] == show(capsys, clean)[1]


def test_documents_cannot_steer_the_terminal(capsys, clean):
    _, out, _ = show(capsys, clean, "--head", "5")
    assert "\\x1b[2J\\x07 and \\u202eturn⏎next" in out
    assert "\x1b" not in out and "\u202e" not in out and "\x07" not in out
    assert "characters)" in out, "a long text is cut"


def test_damage_is_found_unless_not_looked_for(capsys, clean):
    path = clean / "data" / "00000-00000.parquet"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(bytes(data))
    status, out, err = show(capsys, clean)
    assert status == 1
    assert "data/00000-00000.parquet differs from its checksum" in out
    assert err.startswith("error: ") and "is damaged" in err
    status, out, err = show(capsys, clean, "--no-verify")
    assert status == 0 and "checksums: not read" in out
    status, out, _ = show(capsys, clean, "--json")
    assert status == 1 and json.loads(out)["checksums"] == "damaged"


def test_an_unfinished_folder(capsys, tmp_path, raw):
    with open_output(
        tmp_path / "half", kind="documents", stage="filter", config=Config(), inputs=[open_input(raw)]
    ) as out:
        out.save_unit("read-00000", {}, [write_file(out.root, "data/a", b"a")])
    status, text, _ = show(capsys, tmp_path / "half")
    assert status == 0
    assert "unfinished" in text and "llmctl filter" in text and "1 unit of work done" in text
    assert json.loads(show(capsys, tmp_path / "half", "--json")[1])["unfinished"] is True


def test_a_raw_folder(capsys, tmp_path):
    expected = build_zoo(tmp_path / "zoo", num_identical=10, long_text_bytes=1000)
    status, out, _ = show(capsys, tmp_path / "zoo", "--head", "2")
    assert status == 0
    assert f"raw files, {len(expected)} of them" in out
    for words in ("jsonl (gzip)", "jsonl (zstd)", "parquet", "csv", "html", "markdown", "warc (gzip)", "text", "json:"):
        assert words in out
    assert "fields of the first record: id, text, stars" in out
    assert "not readable: pages/picture.png: unknown format: picture" in out
    assert "first documents:" in out
    shown = json.loads(show(capsys, tmp_path / "zoo", "--json")[1])
    listed = sum(item["num_files"] for item in shown["formats"]) + len(shown["unreadable"])
    assert shown["kind"] == "raw" and listed == shown["files"] == len(expected)


def test_a_raw_file_whose_text_has_another_name(capsys, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"content": "x", "url": "y"}\n')
    status, _, err = show(capsys, tmp_path / "a.jsonl")
    assert status == 0
    assert "no file has a field `text`" in err and "content, url" in err
    assert show(capsys, tmp_path / "a.jsonl", "--text-field", "content", "--head", "1")[2] == ""


def test_a_model_folder(capsys, tmp_path):
    header = json.dumps({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "hidden_size": 8}')
    weights = len(header).to_bytes(8, "little") + header + bytes(24)
    (tmp_path / "model.safetensors").write_bytes(weights)
    status, out, _ = show(capsys, tmp_path)
    assert status == 0
    assert "Hugging Face model folder (LlamaForCausalLM)" in out and "6 parameters in 1 tensor" in out
    (tmp_path / "model.safetensors").write_bytes(weights[:-1])
    status, out, err = show(capsys, tmp_path)
    assert status == 1 and "model.safetensors" in err
    (tmp_path / "config.json").write_text("{")
    status, out, err = show(capsys, tmp_path)
    assert status == 2 and "is not JSON" in err


@pytest.mark.parametrize(
    "weights", [b"", b"\xff" * 20, (2).to_bytes(8, "little") + b"[]", (4).to_bytes(8, "little") + b"null"]
)
def test_broken_weights_are_a_sentence(capsys, tmp_path, weights):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(weights)
    status, _, err = show(capsys, tmp_path)
    assert status == 1 and "is damaged: model.safetensors" in err


def test_mistakes_are_sentences(capsys, tmp_path, clean):
    status, out, err = show(capsys, tmp_path / "claen")
    assert status == 2 and out == "" and "did you mean" in err
    os.mkdir(tmp_path / "empty")
    assert "holds no files" in show(capsys, tmp_path / "empty")[2]
    manifest = json.loads((clean / MANIFEST_NAME).read_text())
    (clean / MANIFEST_NAME).write_text(json.dumps({**manifest, "schema_version": 9}))
    status, _, err = show(capsys, clean)
    assert status == 2 and "schema 9" in err
    (clean / MANIFEST_NAME).write_text(json.dumps({**manifest, "files": [{"path": "../x", "bytes": 1, "sha256": ""}]}))
    status, _, err = show(capsys, clean)
    assert status == 2 and "leads out of the folder" in err
