"""Faults that users report of other filters, each as a whole run of the command: what it says, counts and returns."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.zoo import document, http_response, lines, warc_record

from llmctl.artifacts.manifest import read_manifest
from llmctl.cli.app import run as llmctl


def run(source: Path, out: Path, *flags: str) -> int:
    return llmctl(["filter", str(source), str(out), "--preset", "none", "--workers", "1", *flags])


def records(out: Path) -> dict[str, int]:
    found: dict[str, int] = read_manifest(out).statistics["records"]
    return found


def errors(out: Path) -> list[dict[str, Any]]:
    paths = read_manifest(out).paths("invalid/")
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def test_pages_that_a_server_refused_are_skipped_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = f"<html><body><p>{document(1)}</p></body></html>".encode()
    answers = [warc_record("response", http_response(page, status="404 Not Found"), n) for n in range(20)]
    answers += [warc_record("response", http_response(b"", status="301 Moved Permanently"), 30)]
    answers += [warc_record("response", http_response(b"\x89PNG", "image/png"), 31)]
    answers += [warc_record("response", http_response(page), 32)]
    (tmp_path / "crawl.warc").write_bytes(b"".join(answers))
    assert run(tmp_path / "crawl.warc", tmp_path / "out") == 0
    assert records(tmp_path / "out") == {"in": 1, "kept": 1, "removed": 0, "invalid": 0}
    assert read_manifest(tmp_path / "out").statistics["skipped"] == {
        "HTTP status 3xx": 1,
        "HTTP status 4xx": 20,
        "not text": 1,
    }
    assert "skipped 22 answers that are no pages (1 × HTTP status 3xx, 20 × HTTP status 4xx" in capsys.readouterr().err


def test_a_broken_line_in_the_middle_loses_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(50) + b'{"text": "no end\n' + lines(50, 50))
    assert run(path, tmp_path / "out") == 0
    assert records(tmp_path / "out") == {"in": 101, "kept": 100, "removed": 0, "invalid": 1}
    assert [(row["file"], row["line"]) for row in errors(tmp_path / "out")] == [("a.jsonl", 51)]


@pytest.mark.slow
def test_a_line_of_100_mb_is_a_record_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    long = "A long line of words that never ends. " * (100_000_000 // 38)
    path.write_bytes(lines(2) + json.dumps({"id": "long", "text": long}).encode() + b"\n" + lines(2, 2))
    assert run(path, tmp_path / "out") == 0
    assert records(tmp_path / "out") == {"in": 5, "kept": 5, "removed": 0, "invalid": 0}
    (part,) = read_manifest(tmp_path / "out").paths("data/")
    sizes = {row["id"]: len(row["text"]) for row in pq.read_table(part).to_pylist()}
    assert sizes["long"] == len(long)


def test_a_line_over_the_limit_is_told_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(30) + json.dumps({"text": "x" * 200_000}).encode() + b"\n" + lines(30, 30))
    assert run(path, tmp_path / "out", "--set", "read.max_record_bytes=100kB") == 0
    assert records(tmp_path / "out") == {"in": 61, "kept": 60, "removed": 0, "invalid": 1}
    assert errors(tmp_path / "out")[0]["error"].startswith("record too long")


def test_a_cut_gz_gives_what_it_holds_and_the_other_files_are_done(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    whole = gzip.compress(lines(300), mtime=0)
    (folder / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (folder / "good.jsonl").write_bytes(lines(100))
    assert run(folder, tmp_path / "out") == 0
    by_file = {row["path"]: row for row in read_manifest(tmp_path / "out").statistics["by_file"]}
    assert by_file["good.jsonl"]["kept"] == 100
    assert (by_file["cut.jsonl.gz"]["kept"] > 0, by_file["cut.jsonl.gz"]["invalid"]) == (True, 1)
    assert [(row["file"], row["error"].split(":")[0]) for row in errors(tmp_path / "out")] == [
        ("cut.jsonl.gz", "truncated gzip data")
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give up root")
def test_a_file_without_permission_is_named_and_the_others_are_done(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "good.jsonl").write_bytes(lines(100))
    (folder / "secret.jsonl").write_bytes(lines(5))
    (folder / "secret.jsonl").chmod(0)
    for path in (tmp_path, folder, *tmp_path.parents):
        if path.owner() == "root" and "pytest" in str(path):
            path.chmod(0o755)
    out = tmp_path / "open" / "out"
    out.parent.mkdir()
    out.parent.chmod(0o777)
    # What nobody may import is imported by a first run.
    script = (
        "import os, sys; from llmctl.cli.app import run; run(['filter', sys.argv[1], sys.argv[2], *sys.argv[4:]]); "
        "os.setegid(65534); os.seteuid(65534); sys.exit(run(['filter', sys.argv[1], sys.argv[3], *sys.argv[4:]]))"
    )
    flags = ["--preset", "none", "--workers", "1"]
    command = [sys.executable, "-c", script, str(folder), str(tmp_path / "first"), str(out), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    by_file = {row["path"]: row for row in read_manifest(out).statistics["by_file"]}
    assert by_file["good.jsonl"]["kept"] == 100
    assert by_file["secret.jsonl"]["invalid"] == 1
    assert errors(out)[0]["error"].startswith("unreadable file")
    assert "Traceback" not in done.stderr


def test_empty_and_symbol_only_documents_have_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = ["", " \n ", "!!! ??? ---", document(1)]
    path.write_text("".join(json.dumps({"id": str(n), "text": text}) + "\n" for n, text in enumerate(rows)))
    assert llmctl(["filter", str(path), str(tmp_path / "out"), "--preset", "gopher", "--workers", "1"]) == 0
    (removed,) = read_manifest(tmp_path / "out").paths("removed/")
    assert {row["id"]: row["reason"] for row in pq.read_table(removed).to_pylist()} == {
        "0": "empty",
        "1": "empty",
        "2": "empty",
    }


@pytest.mark.parametrize("content", [b"", lines(1)])
def test_inputs_of_no_record_and_of_one_can_be_run_again(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    for _ in range(2):
        assert run(path, tmp_path / "out") == 0
    assert records(tmp_path / "out")["in"] == len(content.splitlines())


def test_an_output_without_a_folder_in_its_name_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_bytes(lines(3))
    assert run(Path("a.jsonl"), Path("out")) == 0
    assert records(Path("out"))["kept"] == 3


def test_a_blank_line_and_a_byte_order_mark_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + lines(1) + b"\n\r\n" + lines(2, 1))
    assert run(path, tmp_path / "out") == 0
    assert records(tmp_path / "out") == {"in": 3, "kept": 3, "removed": 0, "invalid": 0}


def test_a_megabyte_without_a_line_end_is_searched_for_entities_once(tmp_path: Path) -> None:
    text = "word 12-34 a@b " * 70_000 + "jane@mail.example.org"
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": text}) + "\n")
    assert run(path, tmp_path / "out", "--pii", "mask", "--pii-types", "all") == 0
    assert read_manifest(tmp_path / "out").statistics["sensitive"]["by_type"] == {"email": 1}


def test_a_source_and_a_language_that_collapse_raise_an_alarm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"source": "news", "lang": "en", "text": document(n)} for n in range(40)]
    rows += [{"source": "tweets", "lang": "fi", "text": "liian lyhyt"} for _ in range(40)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(path, tmp_path / "out", "--set", "rules.word_count={min: 20}") == 0
    said = capsys.readouterr().err
    assert "source `tweets` is nearly wiped out: 0 of 40 documents kept" in said
    assert "language `fi` is nearly wiped out" in said
    assert read_manifest(tmp_path / "out").statistics["alarms"] == [
        {"what": "source", "name": "tweets", "in": 40, "kept": 0},
        {"what": "language", "name": "fi", "in": 40, "kept": 0},
    ]
