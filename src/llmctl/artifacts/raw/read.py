"""Turn a block of raw input into a batch of documents."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from llmctl.artifacts.files import printable_path
from llmctl.artifacts.raw.blocks import Block, DocumentBatch, ReadOptions, Segment
from llmctl.artifacts.raw.columns import Columns
from llmctl.artifacts.raw.csvrows import add_csv, header_of
from llmctl.artifacts.raw.cutting import WHOLE_FILE_FORMATS, cut_stream
from llmctl.artifacts.raw.jsonlines import add_lines
from llmctl.artifacts.raw.pieces import Piece
from llmctl.artifacts.raw.streams import CHUNK_BYTES, ChunkReader, StreamFault, os_fault
from llmctl.artifacts.raw.tables import add_parquet, row_group_span
from llmctl.artifacts.raw.warcrecords import add_warc
from llmctl.artifacts.raw.wholefiles import add_whole_file

# Pieces this small keep the Python objects of a piece in the processor's cache and out of the memory's peak.
PIECE_BYTES = 1_000_000
# A file that looked small enough for one worker and swells beyond this many blocks is refused, not swallowed.
SWELL_BLOCKS = 16
SWELL_BYTES = 64_000_000


def read_block(block: Block, options: ReadOptions) -> DocumentBatch:
    """Read the documents of a block. Faults of the input become invalid records, never exceptions.

    Args:
        block: from `plan_blocks`.
        options: the same as for the plan.
    """
    columns = Columns(options)
    for segment in block.segments:
        columns.begin_file(segment.file)
        _add_segment(Path(block.root) / segment.file, segment, columns)
        columns.invalid.extend(segment.invalid)
    return columns.finish(content_key(block))


def _add_segment(path: Path, segment: Segment, columns: Columns) -> None:
    if segment.format == "none":
        return
    if segment.format in ("parquet", "documents"):
        add_parquet(path, segment, columns)
    elif segment.format in WHOLE_FILE_FORMATS:
        add_whole_file(_chunks(path, segment, columns.options), segment.format, columns)
    elif segment.format == "csv":
        _add_csv(path, segment, columns)
    else:
        add = add_warc if segment.format == "warc" else add_lines
        for piece in _pieces(path, segment, columns):
            columns.invalid.extend(piece.invalid)
            add(piece, columns)


def _chunks(path: Path, segment: Segment, options: ReadOptions) -> Iterable[bytes]:
    if segment.compression:
        limit = options.block_bytes * SWELL_BLOCKS + SWELL_BYTES
        return bounded(ChunkReader(path, segment.compression), limit)
    return LineRange(path, segment.start, segment.end)


def _pieces(path: Path, segment: Segment, columns: Columns) -> Iterable[Piece]:
    if segment.data is not None:
        return [Piece(segment.data, segment.start, segment.line, segment.first_row)]
    chunks = _chunks(path, segment, columns.options)
    start = chunks.start if isinstance(chunks, LineRange) else 0
    return cut_stream(chunks, segment.format, columns.path, columns.options, piece_bytes=PIECE_BYTES, start=start)


def _add_csv(path: Path, segment: Segment, columns: Columns) -> None:
    pieces = iter(_pieces(path, segment, columns))
    header = segment.header
    if segment.data is None:
        first = next(pieces, None)
        if first is None:
            return
        header, rest = header_of(first)
        pieces = chain([rest], pieces)
    add_csv(pieces, header, columns, segment.first_row, segment.line or (None if segment.data else 2))


def bounded(chunks: ChunkReader, limit: int) -> Iterator[bytes]:
    """Yield chunks up to a limit of decompressed bytes.

    Raises:
        StreamFault: the stream goes on beyond the limit.
    """
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise StreamFault(
                f"decompression bomb: more than {limit:,} bytes from {os.path.getsize(chunks.path):,} on disk"
            )
        yield chunk


class LineRange:
    """The whole lines of an uncompressed file that begin inside a range of bytes, as chunks.

    Attributes:
        start: where the first of these lines begins (the range's end if there is none).
    """

    def __init__(self, path: Path, start: int, end: int | None) -> None:
        self.path, self.start, self.end = path, start, end
        self._fault: OSError | None = None
        if start > 0:
            try:
                self._find_start()
            except OSError as failure:
                self._fault = failure

    def _find_start(self) -> None:
        with open(self.path, "rb") as raw:
            position = self.start - 1  # a newline right before the range means that a line begins with it
            raw.seek(position)
            while chunk := raw.read(CHUNK_BYTES):
                found = chunk.find(b"\n")
                if found >= 0:
                    self.start = position + found + 1
                    return
                position += len(chunk)
                if self.end is not None and position >= self.end:
                    break
            self.start = position

    def __iter__(self) -> Iterator[bytes]:
        if self._fault is not None:
            raise StreamFault(os_fault(self._fault))
        try:
            yield from self._chunks()
        except OSError as failure:
            raise StreamFault(os_fault(failure)) from failure

    def _chunks(self) -> Iterator[bytes]:
        if self.end is not None and self.start >= self.end:
            return
        with open(self.path, "rb") as raw:
            raw.seek(self.start)
            position = self.start
            chunk = b""
            while self.end is None or position < self.end:
                chunk = raw.read(CHUNK_BYTES if self.end is None else min(CHUNK_BYTES, self.end - position))
                if not chunk:
                    return
                position += len(chunk)
                yield chunk
            while not chunk.endswith(b"\n"):  # the line that the range ends in belongs to it
                chunk = raw.read(CHUNK_BYTES)
                if not chunk:
                    return
                chunk = chunk[: chunk.find(b"\n") + 1] or chunk
                yield chunk


def content_key(block: Block) -> str:
    """Return the xxh3-128 of the bytes that a block covers on disk (of `Segment.data` where it is given).

    It changes when the content changes, and tells on resume whether a finished block still counts.
    """
    import xxhash

    digest = xxhash.xxh3_128()
    for segment in block.segments:
        digest.update(f"{printable_path(segment.file)}\0{segment.start}\0{segment.end}\0".encode())
        if segment.data is not None:
            digest.update(segment.data)
            continue
        path = Path(block.root) / segment.file
        try:
            if segment.end is None:
                _hash_file(path, segment.start, None, digest.update)
            elif segment.format in ("parquet", "documents"):
                _hash_file(path, *row_group_span(path, segment.start, segment.end), digest.update)
            else:  # the last line of a range ends beyond it
                for chunk in LineRange(path, segment.start, segment.end):
                    digest.update(chunk)
        except (OSError, StreamFault) as failure:
            digest.update((os_fault(failure) if isinstance(failure, OSError) else str(failure)).encode())
    return digest.hexdigest()


def _hash_file(path: Path, start: int, end: int | None, update: Callable[[bytes], None]) -> None:
    with open(path, "rb") as raw:
        raw.seek(start)
        left = end - start if end is not None else None
        while left is None or left > 0:
            chunk = raw.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
            if not chunk:
                return
            update(chunk)
            left = None if left is None else left - len(chunk)
