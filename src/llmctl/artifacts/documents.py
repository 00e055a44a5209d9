"""Write the parts of a `documents` artifact: kept texts, removed records, invalid records."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmctl.artifacts.files import FileRecord, atomic_file
from llmctl.artifacts.kinds import COMPRESSION, COMPRESSION_LEVEL, ROW_GROUP_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

DATA_FOLDER = "data"
REMOVED_FOLDER = "removed"
INVALID_FOLDER = "invalid"
HEAD_BYTES = 1000


@dataclass(frozen=True)
class InvalidRecord:
    """A record that could not be read.

    Attributes:
        file: the file's path relative to the input.
        error: one sentence.
        line: 1-based line number, if known.
        offset: byte offset in the decompressed file (or row number of a table, or None for a whole file).
        head: the first bytes of the record, for a look.
    """

    file: str
    error: str
    line: int | None = None
    offset: int | None = None
    head: bytes = b""

    def to_mapping(self) -> dict[str, Any]:
        """Return the record as it stands in ``invalid/*.jsonl``."""
        return {
            "file": self.file,
            "line": self.line,
            "offset": self.offset,
            "error": self.error,
            "head": self.head[:HEAD_BYTES].decode("utf-8", "replace"),
        }


def write_parquet(root: Path, relative: str, table: pa.Table) -> FileRecord:
    """Write a table as Parquet atomically; equal tables give equal bytes.

    Row groups hold about `ROW_GROUP_BYTES` of text, cut at fixed places that depend on the table only.
    """
    import pyarrow.parquet as pq

    with (
        atomic_file(root / relative) as out,
        pq.ParquetWriter(
            out,
            table.schema,
            compression=COMPRESSION,
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=[name for name in table.schema.names if name in ("source", "lang", "reason")],
            write_statistics=False,
        ) as writer,
    ):
        for start, length in _row_groups(table):
            writer.write_table(table.slice(start, length), row_group_size=max(length, 1))
    return out.record(relative)


def _row_groups(table: pa.Table) -> list[tuple[int, int]]:
    if table.num_rows == 0:
        return []
    groups = max(1, -(-table.nbytes // ROW_GROUP_BYTES))
    rows = -(-table.num_rows // groups)
    return [(start, min(rows, table.num_rows - start)) for start in range(0, table.num_rows, rows)]


def write_jsonl(root: Path, relative: str, rows: Sequence[dict[str, Any]]) -> FileRecord:
    """Write rows as JSON lines atomically."""
    import orjson

    buffer = io.BytesIO()
    for row in rows:
        buffer.write(orjson.dumps(row))
        buffer.write(b"\n")
    with atomic_file(root / relative) as out:
        out.write(buffer.getvalue())
    return out.record(relative)


def write_invalid(root: Path, part: str, invalid: Sequence[InvalidRecord]) -> list[FileRecord]:
    """Write the invalid records of one part, if there are any, to ``invalid/<part>.jsonl``."""
    if not invalid:
        return []
    rows = [record.to_mapping() for record in invalid]
    return [write_jsonl(root, f"{INVALID_FOLDER}/{part}.jsonl", rows)]
