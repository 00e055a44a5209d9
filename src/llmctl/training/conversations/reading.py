"""Read records from files: JSON lines, a JSON array, Parquet, plain or compressed, or an artifact's payload.

The format is told by content. A line that is not JSON costs that line, never the file.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from llmctl.artifacts.documents import InvalidRecord
from llmctl.artifacts.inputs import Input

GZIP_MAGIC, ZSTD_MAGIC, PARQUET_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
# A compressed file may not unpack to more than this (a bomb is told as invalid instead of filling the memory).
MAX_ARRAY_BYTES = 4_000_000_000
MAX_LINE_BYTES = 64_000_000


@dataclass(frozen=True)
class RawRecord:
    """One record as it stands in a file, not yet understood.

    Attributes:
        file: path relative to the input.
        line: 1-based line, or position in a JSON array or table.
        value: the decoded JSON value.
    """

    file: str
    line: int
    value: Any


def read_records(source: Input) -> Iterator[RawRecord | InvalidRecord]:
    """Yield every record of an input, or why it could not be read, in file order."""
    for file in source.files:
        try:
            yield from _read_file(source.absolute(file), file.path)
        except OSError as failure:
            yield InvalidRecord(file.path, f"cannot be read: {failure.strerror or failure}")


def _read_file(path: Path, name: str) -> Iterator[RawRecord | InvalidRecord]:
    with open(path, "rb") as raw:
        head = raw.read(4)
        raw.seek(0)
        if head == PARQUET_MAGIC:
            yield from _read_parquet(path, name)
            return
        try:
            yield from _read_json(_decompressed(raw, head), name)
        except (EOFError, OSError, ValueError, RuntimeError) as failure:
            # Broken compression: what came before has been yielded.
            yield InvalidRecord(name, f"the rest of the file cannot be read: {failure}")


def _decompressed(raw: BinaryIO, head: bytes) -> BinaryIO:
    if head[:2] == GZIP_MAGIC:
        import gzip

        return gzip.open(raw)  # type: ignore[return-value]
    if head == ZSTD_MAGIC:
        import zstandard

        reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        return io.BufferedReader(reader)
    return raw


def _read_json(stream: BinaryIO, name: str) -> Iterator[RawRecord | InvalidRecord]:
    first = b""
    start = 1
    while not first:
        line = stream.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        first = line.lstrip(b"\xef\xbb\xbf").strip()
        start += 0 if first else 1
    if first[:1] == b"[" or first == b"{":
        yield from _read_document(line + stream.read(MAX_ARRAY_BYTES), name)
        return
    yield from _read_lines(line, stream, name, start)


def _read_lines(line: bytes, stream: BinaryIO, name: str, number: int) -> Iterator[RawRecord | InvalidRecord]:
    import orjson

    line = line.removeprefix(b"\xef\xbb\xbf")
    while line:
        text = line.strip()
        if len(line) > MAX_LINE_BYTES:
            yield InvalidRecord(name, f"a line longer than {MAX_LINE_BYTES:,} bytes", number, head=line[:1000])
            while line and not line.endswith(b"\n"):
                line = stream.readline(MAX_LINE_BYTES)
        elif text:
            try:
                yield RawRecord(name, number, orjson.loads(text))
            except orjson.JSONDecodeError as failure:
                yield InvalidRecord(name, f"not JSON: {failure}", number, head=text[:1000])
        line = stream.readline(MAX_LINE_BYTES + 1)
        number += 1


def _read_document(data: bytes, name: str) -> Iterator[RawRecord | InvalidRecord]:
    import orjson

    try:
        value = orjson.loads(data.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as failure:
        # Lines that each begin with "[" are no array; then it is a broken file of lines.
        if data.lstrip()[:1] == b"[":
            yield InvalidRecord(name, f"not a JSON array: {failure}", failure.lineno, head=data[:1000])
        else:
            stream = io.BytesIO(data)
            yield from _read_lines(stream.readline(), stream, name, 1)
        return
    if isinstance(value, dict):
        lists = [item for item in value.values() if isinstance(item, list)]
        value = lists[0] if len(lists) == 1 and len(value) <= 3 and "messages" not in value else [value]
    for position, item in enumerate(value, 1):
        yield RawRecord(name, position, item)


def _read_parquet(path: Path, name: str) -> Iterator[RawRecord | InvalidRecord]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        reader = pq.ParquetFile(path)
        row = 0
        for batch in reader.iter_batches(batch_size=1024):
            for value in batch.to_pylist():
                row += 1
                yield RawRecord(name, row, value)
    except (pa.ArrowException, ValueError) as failure:
        yield InvalidRecord(name, f"the Parquet file cannot be read: {failure}")
