"""Cut an input into blocks: units of reading that depend on the input and the options alone.

Small files share a block. Large files are cut: plain JSON lines by ranges of bytes, Parquet between row groups; what
only one reader can cut (a compressed stream) is decompressed here, and its pieces travel with the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from llmctl.artifacts.documents import InvalidRecord
from llmctl.artifacts.files import printable_path
from llmctl.artifacts.inputs import Input, InputFile
from llmctl.artifacts.raw.blocks import Block, ReadOptions, Segment
from llmctl.artifacts.raw.csvrows import cut_rows
from llmctl.artifacts.raw.cutting import WHOLE_FILE_FORMATS, cut_stream
from llmctl.artifacts.raw.detect import Detected, detect
from llmctl.artifacts.raw.pieces import Piece
from llmctl.artifacts.raw.streams import CHUNK_BYTES, ChunkReader, StreamFault
from llmctl.artifacts.raw.tables import open_parquet, row_group_cuts

MAX_FILES_PER_BLOCK = 10_000


@dataclass
class _Group:
    """Small files that will share a block."""

    first: int = 0
    segments: list[Segment] = field(default_factory=list)
    weight: float = 0.0
    input_bytes: int = 0


def plan_blocks(source: Input, options: ReadOptions) -> Iterator[Block]:
    """Yield the blocks of an input, in the order of its files.

    A generator: compressed streams are decompressed as the blocks are taken. What cannot be read at all (no
    permission, an unknown format) is a block's invalid record.

    Args:
        source: an artifact of kind ``documents``, or raw files.
        options: how to read them.
    """
    width = max(5, len(str(len(source.files))))
    group = _Group()

    def name(file: int, part: int) -> str:
        return f"{file:0{width}d}-{part:05d}"

    def close() -> Iterator[Block]:
        nonlocal group
        if group.segments:
            yield Block(name(group.first, 0), str(source.root), tuple(group.segments), group.input_bytes)
        group = _Group()

    for number, file in enumerate(source.files):
        small, weight = _small_segment(source, file, options)
        if small is None:
            yield from close()
            for part, (segment, size) in enumerate(_large_segments(source, file, options)):
                yield Block(name(number, part), str(source.root), (segment,), size)
            continue
        full = group.weight + weight > options.block_bytes or len(group.segments) >= MAX_FILES_PER_BLOCK
        if group.segments and full:
            yield from close()
        if not group.segments:
            group.first = number
        group.segments.append(small)
        group.weight += weight
        group.input_bytes += file.bytes
    yield from close()


def _recognise(source: Input, file: InputFile, options: ReadOptions) -> Detected:
    if source.kind == "documents":
        return Detected("documents")
    return detect(source.absolute(file), options.format)


def _small_segment(source: Input, file: InputFile, options: ReadOptions) -> tuple[Segment | None, float]:
    """Return a file as one segment with the size of its content, or None if it needs blocks of its own."""
    try:
        found = _recognise(source, file, options)
        weight = file.bytes * found.ratio
        if found.format in ("parquet", "documents"):
            with open_parquet(source.absolute(file)) as table:
                groups = [table.metadata.row_group(i) for i in range(table.metadata.num_row_groups)]
                weight = max(weight, sum(group.total_byte_size for group in groups))
                if weight > options.block_bytes and len(groups) > 1:
                    return None, weight
        elif weight > options.block_bytes and found.format not in WHOLE_FILE_FORMATS:
            return None, weight
        return Segment(file.path, format=found.format, compression=found.compression), weight
    except StreamFault as fault:
        record = InvalidRecord(printable_path(file.path), str(fault))
        return Segment(file.path, format="none", invalid=(record,)), 0.0


def _large_segments(source: Input, file: InputFile, options: ReadOptions) -> Iterator[tuple[Segment, int]]:
    """Yield the segments of a large file, each with the bytes on disk that it stands for."""
    found = _recognise(source, file, options)
    path = source.absolute(file)
    if found.format in ("parquet", "documents"):
        with open_parquet(path) as table:
            cuts = row_group_cuts(table, options.block_bytes)
        for first, end, row in cuts:
            yield Segment(file.path, first, end, format=found.format, first_row=row), file.bytes // len(cuts)
        return
    if found.format == "jsonl" and not found.compression:
        for start in range(0, file.bytes, options.block_bytes):
            end = start + options.block_bytes
            # The last range has no end, so that a file that grew is noticed and not cut short.
            last = end >= file.bytes
            size = min(options.block_bytes, file.bytes - start)
            yield Segment(file.path, start, None if last else end, format=found.format), size
        return
    yield from _stream_segments(source, file, found, options)


def _stream_segments(
    source: Input, file: InputFile, found: Detected, options: ReadOptions
) -> Iterator[tuple[Segment, int]]:
    """Cut what only one reader can cut, and hand its bytes on with the segments."""
    chunks = ChunkReader(source.absolute(file), found.compression, min(CHUNK_BYTES, options.block_bytes))
    path = printable_path(file.path)
    piece_bytes = options.block_bytes if found.format != "csv" else min(CHUNK_BYTES, options.block_bytes)
    pieces = cut_stream(chunks, found.format, path, options, piece_bytes=piece_bytes)
    header = b""
    if found.format == "csv":
        pieces = cut_rows(pieces, options.block_bytes, options.text_field, options.max_record_bytes)
        header = next(pieces, Piece(b"")).data
    position = 0
    for piece in pieces:
        segment = Segment(
            file.path,
            piece.offset,
            piece.offset + len(piece.data),
            piece.data,
            format=found.format,
            line=piece.line,
            first_row=piece.first_row,
            header=header,
            invalid=tuple(piece.invalid),
        )
        yield segment, chunks.position - position
        position = chunks.position
