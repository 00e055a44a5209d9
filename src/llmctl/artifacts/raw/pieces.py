"""Cut a stream of bytes into pieces that hold whole records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from llmctl.artifacts.documents import HEAD_BYTES, InvalidRecord
from llmctl.artifacts.raw.streams import StreamFault


@dataclass
class Piece:
    """Whole records, one after the other.

    Attributes:
        data: their bytes, decompressed.
        offset: where they begin in the decompressed file.
        line: 1-based number of the first line, if known.
        first_row: number of the first row (CSV).
        invalid: what could not be cut into records.
        num_newlines: filled in by whoever splits the piece first, since counting costs as much as splitting.
    """

    data: bytes
    offset: int = 0
    line: int | None = None
    first_row: int = 0
    invalid: list[InvalidRecord] = field(default_factory=list)
    num_newlines: int | None = None


class RecordFault(Exception):
    """Why one record cannot be read; the message is an error of an `InvalidRecord`."""


def too_long(limit: int) -> str:
    """Return the error of a record that is longer than the limit."""
    return f"record too long: more than {limit:,} bytes"


def fault_record(path: str, fault: StreamFault, offset: int, line: int | None, head: bytes = b"") -> InvalidRecord:
    """Return the record that stands for the rest of a file that cannot be read."""
    return InvalidRecord(path, str(fault), line, offset, head[:HEAD_BYTES])


class LineCutter:
    """Cut a stream of chunks at newlines into pieces of at least `piece_bytes`.

    Args:
        path: the file's printable name, for invalid records.
        offset, line: where the stream begins in its file.
        piece_bytes: how much to gather before a piece is given.
        max_record_bytes: a line that grows beyond this is dropped as it comes, and told as invalid.
    """

    def __init__(
        self, path: str, *, piece_bytes: int, max_record_bytes: int, offset: int = 0, line: int | None = 1
    ) -> None:
        self.path, self.offset, self.line = path, offset, line
        self.piece_bytes, self.max_record_bytes = piece_bytes, max_record_bytes
        self._complete: list[bytes] = []  # whole lines
        self._complete_size = 0
        self._open: list[bytes] = []  # the beginning of the line in progress
        self._open_size = 0

    def cut(self, chunks: Iterable[bytes]) -> Iterator[Piece]:
        """Yield the pieces; the last one ends where the stream ends, and carries its fault if it has one."""
        skipped: tuple[bytes, int] | None = None  # head and size so far of a line that is too long
        fault: StreamFault | None = None
        iterator = iter(chunks)
        while True:
            try:
                chunk = next(iterator, None)
            except StreamFault as failure:
                fault, chunk = failure, None
            if chunk is None:
                break
            if skipped is not None:
                end = chunk.find(b"\n") + 1
                if not end:
                    skipped = (skipped[0], skipped[1] + len(chunk))
                    continue
                yield self._skipped_piece(skipped[0], skipped[1] + end)
                skipped, chunk = None, chunk[end:]
            self._add(chunk)
            if self._complete_size >= self.piece_bytes:
                yield from self._take()
            if self._open_size > self.max_record_bytes:
                yield from self._take()
                skipped = (b"".join(self._open)[:HEAD_BYTES], self._open_size)
                self._open, self._open_size = [], 0
        if skipped is not None:
            yield self._skipped_piece(*skipped)
        yield from self._last_piece(fault)

    def _add(self, chunk: bytes) -> None:
        end = chunk.rfind(b"\n") + 1
        if end:
            self._complete += [*self._open, chunk[:end]]
            self._complete_size += self._open_size + end
            self._open, self._open_size = [], 0
        if end < len(chunk):
            self._open.append(chunk[end:])
            self._open_size += len(chunk) - end

    def _take(self) -> Iterator[Piece]:
        if not self._complete:
            return
        data = b"".join(self._complete)
        self._complete, self._complete_size = [], 0
        piece = Piece(data, self.offset, self.line)
        yield piece
        newlines = 0
        if self.line is not None:
            newlines = data.count(b"\n") if piece.num_newlines is None else piece.num_newlines
        self._pass(len(data), newlines)

    def _pass(self, size: int, lines: int) -> None:
        self.offset += size
        if self.line is not None:
            self.line += lines

    def _skipped_piece(self, head: bytes, size: int) -> Piece:
        error = too_long(self.max_record_bytes)
        piece = Piece(b"", self.offset, self.line)
        piece.invalid.append(InvalidRecord(self.path, error, self.line, self.offset, head))
        self._pass(size, 1)
        return piece

    def _last_piece(self, fault: StreamFault | None) -> Iterator[Piece]:
        tail = b"".join(self._open)
        if tail and (fault is None or _is_whole_object(tail)):
            self._complete.append(tail)
            tail = b""
        yield from self._take()
        if fault is not None:
            yield Piece(b"", invalid=[fault_record(self.path, fault, self.offset, self.line, tail)])


def _is_whole_object(tail: bytes) -> bool:
    # No beginning of a JSON object is itself an object, so a record that parses was there whole before the fault.
    import orjson

    try:
        return isinstance(orjson.loads(tail), dict)
    except ValueError:
        return False
