"""Write one shard: a TFRecord file of Examples, and where each document's record and ids start in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from llmctl.artifacts.files import FileRecord, atomic_file
from llmctl.artifacts.tfrecord import HEADER_BYTES, Feature, encode_entries, frame, framed_bytes, join_example
from llmctl.artifacts.tokens import TokenPart, map_tokens
from llmctl.errors import RunFailed
from llmctl.runtime.pool import Unit, UnitResult

if TYPE_CHECKING:
    import pyarrow as pa

# Room in a record for everything but the ids and the texts of id, source and language: frame (16), names of the
# features (47), their nesting (7 × up to 8 bytes and more for long ids) and three numbers (up to 10 bytes each).
RECORD_OVERHEAD_BYTES = 256
# Offsets are a means to the index; they lie with the state of the run, not in the payload.
OFFSETS_FOLDER = "_state/offsets"
# Shuffled documents come from many blocks, and a map holds a file descriptor.
MAX_OPEN_FILES = 256


@dataclass(frozen=True)
class ShardContext:
    """What every shard needs.

    Attributes:
        root: the output folder.
        parts: the blocks of the `tokens` artifact.
        dtype: of the ids.
    """

    root: str
    parts: tuple[TokenPart, ...]
    dtype: str
    eos_id: int


@dataclass(frozen=True)
class ShardWork:
    """One shard to write: its file, and (block, row) of its documents in order."""

    path: str
    part: np.ndarray
    row: np.ndarray
    tokens: int


@lru_cache(maxsize=MAX_OPEN_FILES)
def _map_part(part: TokenPart, dtype: str) -> np.ndarray:
    return map_tokens(part.tokens, dtype)


@lru_cache(maxsize=2)
def _read_table(part: TokenPart) -> pa.Table:
    import pyarrow.parquet as pq

    return pq.read_table(part.table)


def write_shard(unit: Unit, context: ShardContext) -> UnitResult:
    """Write one shard.

    Raises:
        RunFailed: a block does not hold what its table says.
    """
    work: ShardWork = unit.payload
    root = Path(context.root)
    offsets = np.zeros((2, len(work.row)), "<i8")
    tokens = 0
    with atomic_file(root / work.path) as out:
        position = 0
        for number, (features, ids) in enumerate(_documents(context, work)):
            data = join_example(encode_entries(features), "input_ids", ids.tobytes())
            for piece in frame(data):
                out.write(piece)
            offsets[:, number] = position, position + HEADER_BYTES + len(data) - ids.nbytes
            position += framed_bytes(len(data))
            tokens += len(ids)
    if tokens != work.tokens:
        raise RunFailed(f"{work.path} holds {tokens:,} of {work.tokens:,} tokens", "please report this fault")
    relative = f"{OFFSETS_FOLDER}/{unit.name}.npy"
    with atomic_file(root / relative) as index:
        np.lib.format.write_array(index, offsets, allow_pickle=False)
    return UnitResult([out.record(work.path), index.record(relative)], {"tokens": tokens})


def _documents(context: ShardContext, work: ShardWork) -> Iterator[tuple[dict[str, Feature], np.ndarray]]:
    """Yield the features and ids of the shard's documents in their order."""
    rows = _rows(context, work)
    for number, row in enumerate(rows.to_pylist()):
        part = context.parts[int(work.part[number])]
        length = row["num_tokens"]
        ids = _map_part(part, context.dtype)[row["start"] : row["start"] + length]
        if length < 1 or len(ids) != length or ids[-1] != context.eos_id:
            raise RunFailed(
                f"{part.tokens}: document {row['id']!r} does not end with the end-of-text token",
                "make the tokens again",
            )
        features: dict[str, Feature] = {
            "id": row["id"].encode(),
            "source": row["source"].encode(),
            "lang": (row["lang"] or "").encode(),
            "dtype": context.dtype.encode(),
            "num_tokens": length,
            "num_bytes": row["num_bytes"],
        }
        yield features, ids


def _rows(context: ShardContext, work: ShardWork) -> pa.Table:
    """Return the rows of the shard's documents, in their order; each block's table is read once."""
    import pyarrow as pa

    by_part = np.argsort(work.part, kind="stable")
    tables = [
        _read_table(context.parts[int(part)]).take(work.row[by_part[work.part[by_part] == part]])
        for part in np.unique(work.part)
    ]
    place = np.empty_like(by_part)
    place[by_part] = np.arange(len(by_part))
    return pa.concat_tables(tables).take(place)


def read_offsets(root: Path, record: FileRecord) -> np.ndarray:
    """Read the offsets of a shard, int64 of shape [2, documents]: of the record, and of the ids."""
    return np.load(root / record.path, mmap_mode="r", allow_pickle=False)
