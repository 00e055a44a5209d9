"""Read WARC and WET: HTML responses as their main text, conversion records as they are.

Record boundaries come from our own walk along the record headers, so that one broken record costs no other; what is
inside a record is read by fastwarc. Requests, metadata and the like are no documents and are counted nowhere; a
response that is no page (a picture, a redirection, an error) is skipped and counted by reason: nothing is broken in it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from typing import Any

from llmctl.artifacts.documents import HEAD_BYTES, InvalidRecord
from llmctl.artifacts.raw.columns import Columns
from llmctl.artifacts.raw.htmltext import html_text
from llmctl.artifacts.raw.pieces import Piece, RecordFault, fault_record, too_long
from llmctl.artifacts.raw.streams import StreamFault

_HEADER_LIMIT = 1 << 20
_CONTENT_LENGTH = re.compile(rb"^content-length:[ \t]*(\d{1,18})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_HEADER_END = re.compile(rb"\r?\n\r?\n")
_NEXT_RECORD = re.compile(rb"\nWARC/\d")
_DOCUMENT_TYPES = ("response", "conversion", "resource")


class _NoPage(Exception):
    """A response that is whole and no document."""


class WarcCutter:
    """Cut a stream of chunks into pieces of whole records; the interface of `LineCutter`."""

    def __init__(self, path: str, *, piece_bytes: int, max_record_bytes: int) -> None:
        self.path, self.piece_bytes, self.max_record_bytes = path, piece_bytes, max_record_bytes
        self._chunks: Iterator[bytes] = iter(())
        self._buffer = bytearray()
        self._base = 0  # offset of the buffer in the file
        self._fault: StreamFault | None = None
        self._ended = False

    def cut(self, chunks: Iterable[bytes]) -> Iterator[Piece]:
        """Yield the pieces; the last one carries the fault of the stream, if it has one."""
        self._chunks = iter(chunks)
        taken = 0  # bytes of the buffer that are whole records
        invalid: list[InvalidRecord] = []
        while True:
            size = self._record_size(taken, invalid)
            if size is None:
                break
            if size > 0:
                taken += size
            else:  # what cannot be a record, or is too long, has been dropped after the whole records
                if taken:
                    yield self._take(taken, [])
                    taken = 0
                self._drop(invalid)
            if taken >= self.piece_bytes or (invalid and not taken):
                yield self._take(taken, invalid)
                taken, invalid = 0, []
        rest = bytes(self._buffer[taken:])
        if self._fault is not None:
            invalid.append(fault_record(self.path, self._fault, self._base + taken, None, rest))
        elif rest.strip():
            fault = StreamFault("truncated WARC record: the file ends in the middle")
            invalid.append(fault_record(self.path, fault, self._base + taken, None, rest))
        if taken or invalid:
            yield self._take(taken, invalid)

    def _take(self, size: int, invalid: list[InvalidRecord]) -> Piece:
        piece = Piece(bytes(self._buffer[:size]), self._base, None, 0, list(invalid))
        self._forget(size)
        return piece

    def _forget(self, size: int) -> None:
        del self._buffer[:size]
        self._base += size

    def _fill(self, size: int) -> bool:
        """Make the buffer hold `size` bytes; False if the stream ends before."""
        while len(self._buffer) < size and not self._ended:
            try:
                chunk = next(self._chunks, None)
            except StreamFault as fault:
                self._fault, chunk = fault, None
            if chunk is None:
                self._ended = True
            else:
                self._buffer += chunk
        return len(self._buffer) >= size

    def _record_size(self, start: int, invalid: list[InvalidRecord]) -> int | None:
        """Return the size of the record at `start` with its trailing newlines; 0 if it is none; None at the end."""
        header_end = self._header_end(start)
        if header_end is None:
            if self._ended and len(self._buffer) - start < _HEADER_LIMIT:
                return None
            return 0
        header = bytes(self._buffer[start:header_end])
        length = _CONTENT_LENGTH.search(header)
        if not header.lstrip(b"\r\n").startswith(b"WARC/") or length is None:
            return 0
        size = header_end - start + int(length[1])
        if size > self.max_record_bytes:
            return 0
        if not self._fill(start + size):
            return None
        while self._fill(start + size + 1) and self._buffer[start + size] in b"\r\n":
            size += 1
        return size

    def _header_end(self, start: int) -> int | None:
        size = 1 << 12
        while True:
            whole = self._fill(start + size)
            skip = start
            while skip < len(self._buffer) and self._buffer[skip] in b"\r\n":
                skip += 1
            match = _HEADER_END.search(self._buffer, skip)
            if match:
                return match.end()
            if not whole or size >= _HEADER_LIMIT:
                return None
            size *= 4

    def _drop(self, invalid: list[InvalidRecord]) -> None:
        """Drop what stands at the beginning of the buffer up to the next record, and tell it."""
        while self._buffer and self._buffer[0] in b"\r\n":
            self._forget(1)
        head, offset = bytes(self._buffer[:HEAD_BYTES]), self._base
        header_end = _HEADER_END.search(self._buffer, 1)
        header = bytes(self._buffer[: header_end.end()]) if header_end else b""
        length = _CONTENT_LENGTH.search(header)
        if header.lstrip(b"\r\n").startswith(b"WARC/") and length is not None:
            error = too_long(self.max_record_bytes)
            self._skip(len(header) + int(length[1]))
        else:
            error = "broken WARC: no record header where one must be"
            self._skip_to_record()
        invalid.append(InvalidRecord(self.path, error, None, offset, head))

    def _skip(self, size: int) -> None:
        while size > 0:
            self._fill(min(size, _HEADER_LIMIT))
            step = min(size, len(self._buffer))
            if step == 0:
                return
            self._forget(step)
            size -= step

    def _skip_to_record(self) -> None:
        position = 1
        while True:
            match = _NEXT_RECORD.search(self._buffer, position)
            if match:
                self._forget(match.start() + 1)
                return
            self._forget(max(0, len(self._buffer) - 8))
            position = 0
            if not self._fill(len(self._buffer) + 1):
                self._forget(len(self._buffer))
                return


def _spans(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each record of a piece from `WarcCutter` begins and where its content ends."""
    start = 0
    while match := _HEADER_END.search(data, start):
        while data[start : start + 1] in (b"\r", b"\n"):
            start += 1
        match = _HEADER_END.search(data, start)
        length = _CONTENT_LENGTH.search(data, start, match.end()) if match else None
        if match is None or length is None:
            return
        end = match.end() + int(length[1])
        yield start, end
        start = end


def add_warc(piece: Piece, columns: Columns) -> None:
    """Add the documents of a piece of whole records."""
    from fastwarc.warc import ArchiveIterator

    for start, end in _spans(piece.data):
        offset = piece.offset + start
        try:
            # One record at a time: the library stops at a record that it cannot read.
            record = next(iter(ArchiveIterator(io.BytesIO(piece.data[start:end]), auto_decode="all")), None)
        except Exception as failure:  # the library has no common class of errors
            columns.reject(f"broken WARC: {failure}", None, offset)
            continue
        if record is None:
            columns.reject("broken WARC: a record that the parser skips", None, offset, piece.data[start:end])
        elif str(record.headers.get("WARC-Type")).lower() in _DOCUMENT_TYPES:
            _add_record(record, offset, columns)
            columns.flush_if_large()


def _add_record(record: Any, offset: int, columns: Columns) -> None:
    limit = columns.options.max_record_bytes
    headers = record.headers
    url = str(headers.get("WARC-Target-URI") or "")
    try:
        content_type = _content_type(record)
        body = _body(record, limit)
        if len(body) > limit:
            raise RecordFault(too_long(limit))
        text, title = _text_of(body, content_type, record.http_charset or "")
    except _NoPage as reason:
        columns.skipped[str(reason)] += 1
        return
    except RecordFault as fault:
        columns.reject(str(fault), None, offset, url.encode("utf-8", "replace"))
        return
    language = str(headers.get("WARC-Identified-Content-Language") or "")
    fields = {
        columns.options.id_field: headers.get("WARC-Record-ID"),
        columns.options.lang_field: language.split(",")[0],
        "url": url,
        "date": headers.get("WARC-Date"),
        "title": title,
    }
    known = {name: str(value).encode("utf-8", "replace").decode() for name, value in fields.items() if value}
    columns.add(known, text, f"#{offset}")


def _body(record: Any, limit: int) -> bytes:
    try:
        return bytes(record.reader.read(limit + 1))
    except Exception as failure:  # broken chunks or a broken content encoding
        raise RecordFault(f"broken WARC: {failure}") from None


def _content_type(record: Any) -> str:
    if record.is_http:
        status = record.http_headers.status_code
        if status is not None and not 200 <= status < 300:
            raise _NoPage(f"HTTP status {status // 100}xx" if 100 <= status < 600 else "HTTP status unknown")
        kind = record.http_content_type or ""
    else:
        kind = record.headers.get("Content-Type") or ""
    return str(kind).split(";")[0].strip().lower()


def _text_of(body: bytes, content_type: str, charset: str) -> tuple[str, str]:
    if content_type in ("text/html", "application/xhtml+xml", ""):
        return html_text(body, charset)
    if content_type.startswith("text/plain"):
        try:
            return body.decode("utf-8"), ""
        except UnicodeDecodeError:
            return _decode(body, charset), ""
    raise _NoPage("not text")


def _decode(body: bytes, charset: str) -> str:
    try:
        return body.decode(charset or "utf-8")
    except (LookupError, UnicodeError):
        raise RecordFault("not UTF-8: and its charset does not help") from None
