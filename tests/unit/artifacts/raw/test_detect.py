"""Formats are recognised by content; names only break ties."""

from __future__ import annotations

import gzip

import pytest

from llmctl.artifacts.raw.detect import detect
from llmctl.artifacts.raw.streams import StreamFault

CASES = [
    ("a.jsonl", b'{"text": "a"}\n', "jsonl"),
    ("a.txt", b'{"text": "a"}\n{"text": "b"}\n', "jsonl"),
    ("a", b'\n\n  {"text": "a"}\n', "jsonl"),
    ("a", b'\xef\xbb\xbf{"text": "a"}\n', "jsonl"),
    ("a.jsonl", b"broken first line\n{}\n", "jsonl"),
    ("a.jsonl", b"<html>an error page</html>", "jsonl"),
    ("a.jsonl", b"[1, 2]\n{}\n", "jsonl"),
    ("a", b'{"text": "' + b"x" * 200_000, "jsonl"),
    ("a.json", b'[{"text": "a"}]', "json"),
    ("a.json", b'[\n  {\n "text": "a"}]', "json"),
    ("a.json", b'{\n "text": "a"\n}\n', "json"),
    ("a.json", b'{"text": "a"}\n{"text": "b"}\n', "jsonl"),
    ("a.jsonl", b'[\n  {"text": "a"}\n]', "json"),
    ("a.txt", b"{curly} prose", "text"),
    ("a.md", b"{curly} prose", "markdown"),
    ("a", b"PAR1....", "parquet"),
    ("a.parquet", b"broken", "parquet"),
    ("a.jsonl", b"PAR1....", "parquet"),
    ("a.gz", b"WARC/1.0\r\n", "warc"),
    ("a.wet", b"damaged", "warc"),
    ("a.csv", b"id,text\n1,a\n", "csv"),
    ("a", b"id\ttext\n1\ta\n", "csv"),
    ("a", b"prose, with a comma, and text\n", "text"),
    ("a.html", b"<p>no head", "html"),
    ("a.txt", b"<!DOCTYPE html><html>", "html"),
    ("a", b"<!-- saved --><HTML lang=en>", "html"),
    ("a", b"<?xml version='1.0'?>\n<!DOCTYPE html>\n<html>", "html"),
    ("a", b"\xff\xfeh\x00i\x00", "text"),
    ("a", b"", "text"),
    ("a.md", b"# Title", "markdown"),
    ("a", b"plain prose", "text"),
]


@pytest.mark.parametrize(("name", "content", "expected"), CASES)
def test_recognised(tmp_path, name, content, expected):
    path = tmp_path / name
    path.write_bytes(content)
    assert detect(path).format == expected
    assert detect(path).compression == ""


@pytest.mark.parametrize(("name", "content", "expected"), [case for case in CASES if case[2] != "parquet"])
def test_recognised_inside_compression(tmp_path, name, content, expected):
    path = tmp_path / f"{name}.gz"
    path.write_bytes(gzip.compress(content, mtime=0))
    found = detect(path)
    assert (found.format, found.compression) == (expected, "gzip")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK\x03\x04zip", "zip archive"),
        (b"%PDF-1.7", "PDF"),
        (b"\x80\x04\x95pickle", "pickle"),
        (b"\x00\x01\x02\x03", "binary data"),
        (b"<?xml version='1.0'?><feed>", "XML"),
        (b"\0" * 257 + b"ustar" + b"\0" * 250, "tar archive"),
        (gzip.compress(b"\0" * 257 + b"ustar" + b"\0" * 250, mtime=0), "tar archive"),
        (gzip.compress(b"PAR1", mtime=0), "Parquet inside gzip"),
    ],
)
def test_what_is_not_read_is_told(tmp_path, content, words):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(StreamFault, match=f"unknown format: {words}"):
        detect(tmp_path / "file")


def test_a_forced_format_overrides_the_content(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n')
    assert detect(tmp_path / "a.jsonl", "text").format == "text"
    (tmp_path / "a.txt").write_bytes(b"[\n{}]")
    assert detect(tmp_path / "a.txt", "jsonl").format == "json"


def test_the_ratio_tells_how_much_comes_out(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b'{"text": "the same"}\n' * 10_000, mtime=0))
    assert detect(path).ratio * path.stat().st_size >= 200_000
    path.write_bytes(gzip.compress(b"\0" * 50_000_000, mtime=0))
    assert detect(path, "text").ratio >= 1000
