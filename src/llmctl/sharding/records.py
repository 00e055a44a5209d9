"""Write one shard: the file of its format, and for exports a table that describes its documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np

from llmctl.artifacts.documents import write_parquet
from llmctl.artifacts.tokens import map_tokens
from llmctl.errors import RunFailed
from llmctl.runtime.pool import Unit, UnitResult
from llmctl.sharding.formats import FORMATS
from llmctl.sharding.formats.base import Document
from llmctl.sharding.source import TOKENS, Part, sidecar_of

if TYPE_CHECKING:
    import pyarrow as pa

# Room in a record for everything but the ids and the texts of id, source and language: frame (16), names of the
# features (47), their nesting (7 × up to 8 bytes and more for long ids) and three numbers (up to 10 bytes each).
RECORD_OVERHEAD_BYTES = 256
# Shuffled documents come from many blocks, and a map holds a file descriptor.
MAX_OPEN_FILES = 256
_SIDECAR_COLUMNS = ("id", "source", "lang", "num_tokens", "num_bytes", "crc32c")


@dataclass(frozen=True)
class ShardContext:
    """What every shard needs.

    Attributes:
        root: the output folder.
        parts: the documents of the input.
        dtype: of the ids.
        format: a name of `FORMATS`.
    """

    root: str
    parts: tuple[Part, ...]
    dtype: str
    eos_id: int
    format: str = "tfrecord"


@dataclass(frozen=True)
class ShardWork:
    """One shard to write: its file, and (part, row) of its documents in order."""

    path: str
    part: np.ndarray
    row: np.ndarray
    tokens: int


@lru_cache(maxsize=MAX_OPEN_FILES)
def _map_part(part: Part) -> np.ndarray:
    """Return the bytes of a part's ids, which are a file's."""
    if part.format == TOKENS:
        return map_tokens(part.ids, part.dtype).view(np.uint8)
    return FORMATS[part.format].buffer(part.ids, part.group)


@lru_cache(maxsize=2)
def _load_part(part: Part) -> np.ndarray:
    """Return the bytes of a part's ids, which are in memory."""
    return FORMATS[part.format].buffer(part.ids, part.group)


def _buffer(part: Part) -> np.ndarray:
    mapped = part.format == TOKENS or FORMATS[part.format].mapped(part.ids)
    return _map_part(part) if mapped else _load_part(part)


@lru_cache(maxsize=2)
def _read_table(part: Part) -> pa.Table:
    import pyarrow.parquet as pq

    return pq.read_table(part.table)


def write_shard(unit: Unit, context: ShardContext) -> UnitResult:
    """Write one shard.

    Raises:
        RunFailed: a part does not hold what its table says.
    """
    work: ShardWork = unit.payload
    root, format = Path(context.root), FORMATS[context.format]
    described: dict[str, list[Any]] = {name: [] for name in _SIDECAR_COLUMNS}
    files = format.write(root, work.path, _noted(_documents(context, work), described), len(work.row))
    tokens = sum(described["num_tokens"])
    if tokens != work.tokens:
        raise RunFailed(f"{work.path} holds {tokens:,} of {work.tokens:,} tokens", "please report this fault")
    if context.format != "tfrecord":
        files.append(write_parquet(root, sidecar_of(work.path), _sidecar(described)))
    return UnitResult(files, {"tokens": tokens})


def _noted(documents: Iterator[Document], described: dict[str, list[Any]]) -> Iterator[Document]:
    for features, ids in documents:
        for name in ("id", "source", "lang"):
            value = features[name]
            described[name].append(value.decode() if isinstance(value, bytes) else value)
        described["num_tokens"].append(len(ids))
        described["num_bytes"].append(features["num_bytes"])
        described["crc32c"].append(google_crc32c.value(ids.tobytes()))
        yield features, ids


def _sidecar(described: dict[str, list[Any]]) -> pa.Table:
    """Return id, source, lang and counts of a shard's documents, and the CRC32C of their ids as little-endian bytes."""
    import pyarrow as pa

    types = (pa.large_string(), pa.large_string(), pa.large_string(), pa.int64(), pa.int64(), pa.uint32())
    described = {**described, "lang": [lang or None for lang in described["lang"]]}
    return pa.table(
        [pa.array(described[name], type) for name, type in zip(_SIDECAR_COLUMNS, types, strict=True)],
        names=list(_SIDECAR_COLUMNS),
    )


def _documents(context: ShardContext, work: ShardWork) -> Iterator[Document]:
    """Yield the features and ids of the shard's documents in their order."""
    rows = _rows(context, work)
    for number, row in enumerate(rows.to_pylist()):
        part = context.parts[int(work.part[number])]
        length = row["num_tokens"]
        ids = _ids(part, row, context)
        if length < 1 or len(ids) != length or ids[-1] != context.eos_id:
            raise RunFailed(
                f"{part.ids}: document {row['id']!r} does not end with the end-of-text token",
                "make the tokens again",
            )
        yield (
            {
                "id": row["id"].encode(),
                "source": row["source"].encode(),
                "lang": (row["lang"] or "").encode(),
                "dtype": context.dtype.encode(),
                "num_tokens": length,
                "num_bytes": row["num_bytes"],
            },
            ids,
        )


def _ids(part: Part, row: dict[str, Any], context: ShardContext) -> np.ndarray:
    """Return the ids of a document in the dtype of the output, with the end-of-text token that it may lack."""
    dtype = np.dtype(part.dtype).newbyteorder("<")
    start = row["start"] * (dtype.itemsize if part.format == TOKENS else 1)
    stored = row.get("stored", row["num_tokens"])
    ids = _buffer(part)[start : start + stored * dtype.itemsize].view(dtype)
    wanted = np.dtype(context.dtype).newbyteorder("<")
    ids = ids.astype(wanted, copy=False)  # the table was made after the ids were seen to fit
    return ids if stored == row["num_tokens"] else np.append(ids, np.array([context.eos_id], wanted))


def _rows(context: ShardContext, work: ShardWork) -> pa.Table:
    """Return the rows of the shard's documents, in their order; each part's table is read once."""
    import pyarrow as pa

    by_part = np.argsort(work.part, kind="stable")
    tables = [
        _read_table(context.parts[int(part)]).take(work.row[by_part[work.part[by_part] == part]])
        for part in np.unique(work.part)
    ]
    place = np.empty_like(by_part)
    place[by_part] = np.arange(len(by_part))
    return pa.concat_tables(tables).take(place)
