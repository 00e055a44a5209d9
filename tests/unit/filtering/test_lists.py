"""Lists that the user gives: `--bad-words` with C4's edges of words, `--blocked-urls` by domain and path."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from llmctl.artifacts.manifest import read_manifest
from llmctl.cli.app import run as llmctl
from llmctl.filtering.lists import is_blocked


def kept(source: Path, out: Path, *flags: str) -> list[str]:
    assert llmctl(["filter", str(source), str(out), "--preset", "none", "--workers", "1", *flags]) == 0
    (part,) = read_manifest(out).paths("data/")
    return [row["id"] for row in pq.read_table(part).to_pylist()]


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_bad_words_count_at_their_edges_and_anywhere_in_chinese(tmp_path: Path) -> None:
    texts = {
        "whole": "this is a Blorp!",
        "inside": "this is blorpish",
        "phrase": "quite a big  frob here",
        "chinese": "这是坏词之一",
        "clean": "nothing",
    }
    source = write(tmp_path / "a.jsonl", [{"id": name, "text": text} for name, text in texts.items()])
    words = tmp_path / "words.txt"
    words.write_text("# mine\nblorp\nbig frob\n坏词\n\nblorp\n")
    assert kept(source, tmp_path / "out", "--bad-words", str(words)) == ["inside", "clean"]
    manifest = read_manifest(tmp_path / "out")
    assert manifest.statistics["by_reason"] == {"bad_words": 3}
    assert manifest.config["rules"]["bad_words"]["words"] == ["blorp", "big frob", "坏词"]
    words.write_text("frob\n")  # another list is another run
    assert llmctl(["filter", str(source), str(tmp_path / "out"), "--preset", "none", "--bad-words", str(words)]) == 2


def test_blocked_urls_by_domain_and_by_path(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "url": "https://bad.example.org/a"},
        {"id": "2", "url": "http://WWW.bad.example.org:8080"},
        {"id": "3", "url": "https://example.org/good"},
        {"id": "4", "url": "https://example.org/ads/1?x=1"},
        {"id": "5", "url": "https://notbad.example.org/"},
        {"id": "https://bad.example.org/6"},
        {"id": "7"},
    ]
    source = write(tmp_path / "a.jsonl", [{**row, "text": "some words"} for row in rows])
    urls = tmp_path / "urls.txt"
    urls.write_text("bad.example.org\nhttps://example.org/ads/\n")
    assert kept(source, tmp_path / "out", "--blocked-urls", str(urls)) == ["3", "5", "7"]
    assert read_manifest(tmp_path / "out").statistics["by_reason"] == {"blocked_urls": 4}


def test_an_entry_blocks_what_lies_below_it_only() -> None:
    entries = frozenset({"example.org/a/b", "x.example"})
    assert is_blocked("www.example.org/a/b/c", entries)
    assert is_blocked("x.example", entries)
    assert not is_blocked("example.org/a/bc", entries)
    assert not is_blocked("example", entries)


@pytest.mark.parametrize("content", [None, b"", b"# only\n", b"\xff\xfe"])
def test_lists_that_are_none_are_refused(tmp_path: Path, content: bytes | None) -> None:
    source = write(tmp_path / "a.jsonl", [{"text": "words"}])
    if content is not None:
        (tmp_path / "list.txt").write_bytes(content)
    flags = ["--preset", "none", "--bad-words", str(tmp_path / "list.txt")]
    assert llmctl(["filter", str(source), str(tmp_path / "out"), *flags]) == 2
    assert llmctl(["filter", str(source), str(tmp_path / "out"), "--set", "rules.bad_words=on"]) == 2
