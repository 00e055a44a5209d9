"""Read files that are one document each: plain text, Markdown, HTML."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any

from llmctl.artifacts.raw.columns import Columns
from llmctl.artifacts.raw.htmltext import html_text
from llmctl.artifacts.raw.pieces import RecordFault, too_long
from llmctl.artifacts.raw.streams import StreamFault

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def add_whole_file(chunks: Iterable[bytes], form: str, columns: Columns) -> None:
    """Add a file as one document. An empty file is none; a file that cannot be read to its end is an invalid record."""
    limit = columns.options.max_record_bytes
    held: list[bytes] = []
    size = 0
    try:
        for chunk in chunks:
            held.append(chunk)
            size += len(chunk)
            if size > limit:
                columns.reject(too_long(limit), None, 0, held[0])
                return
    except StreamFault as fault:
        columns.reject(str(fault), None, size, held[0] if held else b"")
        return
    data = b"".join(held)
    if not data:
        return
    record: dict[str, Any] = {}
    try:
        if form == "html":
            text, title = html_text(data)
            record = {"title": title} if title else {}
        else:
            text = decode_text(data)
    except RecordFault as fault:
        columns.reject(str(fault), None, 0, data)
        return
    columns.add(record, text, "")
    columns.flush_if_large()


def decode_text(data: bytes) -> str:
    """Decode a text file: as its byte order mark says, else as UTF-8; no other encoding is guessed.

    Raises:
        RecordFault: it is something else.
    """
    encoding = "utf-8"
    for mark, name in _MARKS:
        if data.startswith(mark):
            data, encoding = data[len(mark) :], name
            break
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as failure:
        raise RecordFault(f"not {encoding.upper()}: {failure.reason} at byte {failure.start}") from None
