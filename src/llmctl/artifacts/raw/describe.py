"""Say what a raw file or folder tree holds, without reading all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from llmctl.artifacts.files import printable_path
from llmctl.artifacts.inputs import Input, InputFile
from llmctl.artifacts.raw.blocks import DocumentBatch, ReadOptions
from llmctl.artifacts.raw.csvrows import delimiter_of, header_names, header_of
from llmctl.artifacts.raw.cutting import WHOLE_FILE_FORMATS, cut_stream
from llmctl.artifacts.raw.detect import Detected, detect
from llmctl.artifacts.raw.plan import plan_blocks
from llmctl.artifacts.raw.read import read_block
from llmctl.artifacts.raw.streams import ChunkReader, StreamFault
from llmctl.artifacts.raw.tables import open_parquet

_LOOK_BYTES = 1_000_000
_MAX_FIELDS = 40


@dataclass
class FormatSummary:
    """The files of one format and compression.

    Attributes:
        format, compression: as in `blocks.Segment`.
        num_files, bytes: how many, and their size on disk.
        example: the first such file.
        fields: names in the first record of the first such file, if it has names.
    """

    format: str
    compression: str
    num_files: int = 0
    bytes: int = 0
    example: str = ""
    fields: list[str] = field(default_factory=list)


@dataclass
class RawSummary:
    """What a raw input holds: its formats, and the files that cannot be read, with the error."""

    formats: list[FormatSummary]
    unreadable: list[tuple[str, str]]


def summarise(source: Input, options: ReadOptions) -> RawSummary:
    """Recognise every file of a raw input, and look at the first record of each format."""
    found: dict[tuple[str, str], FormatSummary] = {}
    unreadable: list[tuple[str, str]] = []
    for file in source.files:
        try:
            detected = detect(source.absolute(file), options.format)
        except StreamFault as fault:
            unreadable.append((printable_path(file.path), str(fault)))
            continue
        key = (detected.format, detected.compression)
        summary = found.setdefault(key, FormatSummary(*key, example=printable_path(file.path)))
        summary.num_files += 1
        summary.bytes += file.bytes
        if not summary.fields and file.bytes:
            summary.fields = _first_fields(source, file, detected, options)
    ordered = sorted(found.values(), key=lambda summary: (-summary.bytes, summary.format, summary.compression))
    return RawSummary(ordered, unreadable)


def _first_fields(source: Input, file: InputFile, detected: Detected, options: ReadOptions) -> list[str]:
    if detected.format in WHOLE_FILE_FORMATS or detected.format == "warc":
        return []
    path = source.absolute(file)
    try:
        if detected.format == "parquet":
            with open_parquet(path) as table:
                return [str(name) for name in table.schema_arrow.names[:_MAX_FIELDS]]
        chunks = ChunkReader(path, detected.compression, 1 << 16)
        piece = next(cut_stream(chunks, detected.format, "", options, piece_bytes=1), None)
    except StreamFault:
        return []
    if piece is None:
        return []
    if detected.format == "csv":
        header, _ = header_of(piece)
        return header_names(header, delimiter_of(header, options.text_field))[:_MAX_FIELDS]
    return _fields_of_first_object(piece.data)


def _fields_of_first_object(data: bytes) -> list[str]:
    import orjson

    for line in data.split(b"\n"):
        try:
            record: Any = orjson.loads(line.removeprefix(b"\xef\xbb\xbf"))
        except ValueError:
            continue
        if isinstance(record, dict):
            return [str(name) for name in record][:_MAX_FIELDS]
    return []


def first_documents(source: Input, options: ReadOptions, count: int) -> DocumentBatch | None:
    """Return a batch that holds the first documents of an input, or None if there are none near its beginning."""
    look = ReadOptions(**{**vars(options), "block_bytes": min(options.block_bytes, _LOOK_BYTES)})
    for batch in _batches(source, look):
        if batch.table.num_rows:
            batch.table = batch.table.slice(0, count)
            return batch
    return None


def _batches(source: Input, options: ReadOptions, limit: int = 100) -> Iterator[DocumentBatch]:
    for number, block in enumerate(plan_blocks(source, options)):
        if number >= limit:
            return
        yield read_block(block, options)
