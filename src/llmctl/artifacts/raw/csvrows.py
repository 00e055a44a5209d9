"""Read CSV and TSV: strict quoting, so that a stray quote costs its own row and never swallows those after it."""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from llmctl.artifacts.documents import InvalidRecord
from llmctl.artifacts.raw.columns import Columns, no_field, take_field
from llmctl.artifacts.raw.pieces import Piece, too_long

_DELIMITERS = ",\t;|"
# Each stray quote makes the reader look ahead; a file full of them is given up after this many.
_MAX_RECOVERIES = 1000
_LOOK_AHEAD_BYTES = 64_000_000


@dataclass
class Row:
    """One row: its values (or the error), its bytes, and where it stands."""

    values: list[str]
    raw: bytes
    number: int
    line: int | None
    error: str | None = None


class _LineFeed:
    """Hand lines to the csv reader, remember those of the current row, and take them back when it was misread."""

    def __init__(self, pieces: Iterable[Piece], limit: int, invalid: list[InvalidRecord]) -> None:
        self._pieces = iter(pieces)
        self._limit = limit
        self._invalid = invalid
        self._waiting: deque[bytes] = deque()
        self.taken: list[bytes] = []
        self._taken_size = 0

    def __iter__(self) -> _LineFeed:
        return self

    def __next__(self) -> str:
        while not self._waiting:
            piece = next(self._pieces, None)
            if piece is None:
                raise StopIteration
            self._invalid.extend(piece.invalid)
            self._waiting.extend(_split(piece.data))
        line = self._waiting.popleft()
        self.taken.append(line)
        self._taken_size += len(line)
        if len(self.taken) > 1 and self._taken_size > self._limit:
            raise csv.Error("a quote is not closed")
        return line.decode("utf-8", "surrogateescape")

    def take_back(self) -> None:
        """Put all lines of the current row but the first back."""
        self._waiting.extendleft(reversed(self.taken[1:]))
        del self.taken[1:]

    def next_row(self) -> bytes:
        """Return the bytes of the current row and begin the next."""
        raw = b"".join(self.taken)
        self.taken, self._taken_size = [], 0
        return raw


def _split(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def delimiter_of(header: bytes, text_field: str) -> str:
    """Return the character that separates the columns, told by the header line."""
    line = header.decode("utf-8", "replace")
    for candidate in _DELIMITERS:
        if text_field in [name.strip().strip('"') for name in line.rstrip("\r\n").split(candidate)]:
            return candidate
    return max(_DELIMITERS, key=line.count)


def rows_of(
    pieces: Iterable[Piece],
    delimiter: str,
    invalid: list[InvalidRecord],
    *,
    limit: int,
    number: int = 0,
    line: int | None = 1,
) -> Iterator[Row]:
    """Yield the rows of a stream of whole lines; blank lines are no rows.

    Args:
        pieces: whole lines.
        delimiter: between columns.
        invalid: gets what the pieces already know to be invalid.
        limit: longest row in bytes.
        number: of the first row; `line`: number of the first line.
    """
    csv.field_size_limit(max(limit, 1024))
    feed = _LineFeed(pieces, min(limit, _LOOK_AHEAD_BYTES), invalid)
    reader = csv.reader(feed, delimiter=delimiter, strict=True)
    recoveries = 0
    while True:
        error = None
        values: list[str] = []
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as failure:
            error = f"not CSV: {failure}"
            recoveries += 1
            if recoveries <= _MAX_RECOVERIES:
                feed.take_back()
            reader = csv.reader(feed, delimiter=delimiter, strict=True)
        num_lines = len(feed.taken)
        raw = feed.next_row()
        if values or error:
            yield Row(values, raw, number, line, error)
            number += 1
        if line is not None:
            line += num_lines


def cut_rows(pieces: Iterator[Piece], piece_bytes: int, text_field: str, limit: int) -> Iterator[Piece]:
    """Cut a stream of lines into pieces of whole rows; the first piece holds nothing but the header."""
    invalid: list[InvalidRecord] = []
    first = next(pieces, None)
    if first is None:
        return
    header, rest = header_of(first)
    yield Piece(header, 0, 1)
    delimiter = delimiter_of(header, text_field)
    offset = len(header)
    current = Piece(b"", offset, 2, 0)
    gathered: list[bytes] = []
    size = 0

    def lines() -> Iterator[Piece]:
        yield rest
        yield from pieces

    for row in rows_of(lines(), delimiter, invalid, limit=limit, line=2):
        if size >= piece_bytes:
            yield Piece(b"".join(gathered), current.offset, current.line, current.first_row, [*invalid])
            current, gathered, size = Piece(b"", offset, row.line, row.number), [], 0
            invalid.clear()
        gathered.append(row.raw)
        size += len(row.raw)
        offset += len(row.raw)
    if gathered or invalid:
        yield Piece(b"".join(gathered), current.offset, current.line, current.first_row, [*invalid])


def header_of(piece: Piece) -> tuple[bytes, Piece]:
    """Split the first piece of a file into the header line and the rest."""
    data = piece.data
    end = data.find(b"\n") + 1 or len(data)
    return data[:end], Piece(data[end:], end, 2, 0, piece.invalid)


def header_names(header: bytes, delimiter: str) -> list[str]:
    """Return the names of the columns."""
    text = header.decode("utf-8-sig", "replace")
    try:
        names = next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error:
        names = text.strip().split(delimiter)
    return [name.strip() for name in names]


def add_csv(pieces: Iterable[Piece], header: bytes, columns: Columns, first_row: int, line: int | None) -> None:
    """Add every row of a stream of whole lines that follow the header."""
    options = columns.options
    delimiter = delimiter_of(header.removeprefix(b"\xef\xbb\xbf"), options.text_field)
    names = header_names(header, delimiter)
    if options.text_field not in names:
        if first_row == 0:
            columns.reject(no_field(options.text_field, names), 1, 0, header)
        return
    for row in rows_of(pieces, delimiter, columns.invalid, limit=options.max_record_bytes, number=first_row, line=line):
        error = row.error or _row_error(row, names, options.max_record_bytes)
        if error is None:
            record = {name: value for name, value in zip(names, row.values, strict=True) if value != ""}
            text = take_field(record, options.text_field, "")
            columns.add(record, text, f"#{row.number}")
            columns.flush_if_large()
        else:
            columns.reject(error, row.line, None, row.raw)


def _row_error(row: Row, names: list[str], limit: int) -> str | None:
    if len(row.raw) > limit:
        return too_long(limit)
    if len(row.values) != len(names):
        return f"wrong number of columns: {len(row.values)} instead of {len(names)}"
    if any(re.search("[\ud800-\udfff]", value) for value in row.values):
        return "not UTF-8: a byte that is no character"
    return None
