"""Recognise what a raw file is: by its first bytes and characters, by its name only where these leave it open."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from llmctl.artifacts.raw.streams import INPUT_BYTES, ChunkReader, StreamFault, compression_of, os_fault

HEAD_BYTES = 1 << 16
# A head that swells beyond this says nothing about the ratio of the rest; such files are always read as streams.
_HEAD_LIMIT_BYTES = 1 << 22
_UNKNOWN_RATIO = 1000.0
_USUAL_RATIO = 4.0

_SUFFIX_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonlines": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".md": "markdown",
    ".markdown": "markdown",
    ".htm": "html",
    ".html": "html",
    ".xhtml": "html",
    ".warc": "warc",
    ".wet": "warc",
    ".wat": "warc",
    ".txt": "text",
    ".text": "text",
}
_COMPRESSION_SUFFIXES = {".gz", ".gzip", ".zst", ".zstd", ".bz2", ".xz"}
_UNSUPPORTED = {
    b"PK\x03\x04": "zip archive",
    b"%PDF-": "PDF",
    b"ARROW1": "Arrow file",
    b"\x89PNG": "picture",
    b"\xff\xd8\xff": "picture",
    b"GIF8": "picture",
    b"SQLite format 3": "SQLite database",
    b"\x7fELF": "program",
    b"\x80\x04\x95": "pickle",
}
_HTML_START = re.compile(rb"<(?:!doctype\s+html|html|head|body|title|meta)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Detected:
    """What a file is.

    Attributes:
        format: as in `blocks.Segment.format`.
        compression: as in `blocks.Segment.compression`.
        ratio: decompressed bytes for each byte on disk, estimated from the head.
    """

    format: str
    compression: str = ""
    ratio: float = 1.0


def detect(path: Path, forced: str = "auto") -> Detected:
    """Recognise a file.

    Args:
        path: the file.
        forced: a format from `blocks.FORMATS` that overrides what the content says, or ``auto``.

    Raises:
        StreamFault: the file cannot be read, or is of a kind that llmctl does not read.
    """
    try:
        with open(path, "rb") as raw:
            stored = raw.read(HEAD_BYTES)
    except OSError as failure:
        raise StreamFault(os_fault(failure)) from failure
    compression = compression_of(stored)
    head, ratio = stored, 1.0
    if compression:
        head, ratio = _decompressed_head(path, compression)
    if forced != "auto":
        form = _json_layout(head, path) if forced == "jsonl" else forced
    else:
        form = _format_of(head, path)
    if form == "parquet" and compression:
        raise StreamFault(f"unknown format: Parquet inside {compression}, decompress it first")
    return Detected(form, compression, ratio)


def _decompressed_head(path: Path, compression: str) -> tuple[bytes, float]:
    """Return what the first bytes of a file decompress to, and how much larger that is."""
    head = b""
    reader = ChunkReader(path, compression, HEAD_BYTES)
    try:
        for chunk in reader:
            head += chunk
            # The decompressor asks for more when it has used up what it read first.
            if len(head) >= _HEAD_LIMIT_BYTES or reader.position > INPUT_BYTES:
                break
    except StreamFault:
        pass  # told when the file is read
    if len(head) >= _HEAD_LIMIT_BYTES:
        return head, _UNKNOWN_RATIO
    return head, max(_USUAL_RATIO, len(head) / max(1, min(INPUT_BYTES, reader.position)))


def format_suffix(path: Path) -> str:
    """Return the last suffix of a file's name that is not one of a compression, in lower case."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in _COMPRESSION_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _format_of(head: bytes, path: Path) -> str:
    named = _SUFFIX_FORMATS.get(format_suffix(path), "")
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"WARC/"):
        return "warc"
    for magic, name in _UNSUPPORTED.items():
        if head.startswith(magic):
            raise StreamFault(f"unknown format: {name}")
    if head[257:262] == b"ustar":
        raise StreamFault("unknown format: tar archive, unpack it first")
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start:
        return named or "text"
    if named in ("jsonl", "parquet", "warc"):
        # Broken records of a named format are told one by one, instead of becoming one document of noise.
        return _json_layout(head, path) if named == "jsonl" else named
    if start[:1] in b"{[" and _first_line_is_object(start):
        return "jsonl"
    if _is_html(start):
        return "html"
    if named:
        return named
    return _unnamed_format(head, start)


def _unnamed_format(head: bytes, start: bytes) -> str:
    if re.match(rb"\[\s*\{", start) or re.match(rb'\{\s*"', start):
        return "json"
    if start.startswith(b"<?xml"):
        raise StreamFault("unknown format: XML, which is not HTML")
    if b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise StreamFault("unknown format: binary data")
    first = start.split(b"\n", 1)[0].strip()
    if b"\t" in first or b"," in first:
        names = [name.strip().strip(b'"') for name in re.split(rb"[\t,]", first)]
        if b"text" in names and len(names) > 1:
            return "csv"
    return "text"


def _json_layout(head: bytes, path: Path) -> str:
    """Tell lines of JSON from one array and from objects that span lines."""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if format_suffix(path) in (".jsonl", ".ndjson", ".jsonlines"):
        # An array or an object that spans lines is still one when the file is called JSONL.
        return "json" if re.match(rb"(?:\[\s*\n\s*\{|\{\s*\n\s*\")", start) else "jsonl"
    if re.match(rb"\[\s*(?:\{|\])", start):
        return "json"
    if start.startswith(b"{") and not _first_line_is_object(start) and re.match(rb'\{\s*\n\s*["}]', start):
        return "json"
    return "jsonl"


def _first_line_is_object(start: bytes) -> bool:
    line, newline, _ = start.partition(b"\n")
    if not newline and len(line) >= HEAD_BYTES // 2:
        return bool(re.match(rb'\{\s*"', line))  # longer than the head
    try:
        return isinstance(json.loads(line.decode("utf-8", "replace")), dict)
    except (ValueError, RecursionError):
        return False


def _is_html(start: bytes) -> bool:
    beginning = start[:4096]
    while True:  # comments and declarations may come first
        beginning = beginning.lstrip()
        if beginning.startswith(b"<!--") and b"-->" in beginning:
            beginning = beginning.split(b"-->", 1)[1]
        elif beginning.startswith(b"<?xml") and b"?>" in beginning:
            beginning = beginning.split(b"?>", 1)[1]
        else:
            return bool(_HTML_START.match(beginning))
