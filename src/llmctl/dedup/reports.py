"""Tell which document went for which: `pairs.parquet`, `clusters.parquet`, and the largest clusters on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl.artifacts.documents import write_parquet
from llmctl.artifacts.files import FileRecord, atomic_file
from llmctl.artifacts.kinds import COMPRESSION, COMPRESSION_LEVEL
from llmctl.dedup.index import Index
from llmctl.dedup.survivors import EMPTY_TEXT, REASONS, Decisions

if TYPE_CHECKING:
    import pyarrow as pa

_PAIRS_AT_ONCE = 1_000_000
_LARGEST_SHOWN = 5


@dataclass
class Places:
    """Where documents come from.

    Attributes:
        index: of all documents.
        names: per block the paths of its files.
        earlier: per block and file, how many records of that file stand in earlier blocks.
    """

    index: Index
    names: list[list[str]]
    earlier: list[list[int]]

    def of(self, documents: np.ndarray) -> tuple[list[str], list[str], list[int]]:
        """Return ids, file paths and record numbers within the files (from 0, readable records) of any documents."""
        numbers, inverse = np.unique(documents, return_inverse=True)
        ids = self.index.take_strings("id", numbers).to_pylist()
        files, rows = self.index.take("file", numbers), self.index.take("row", numbers)
        blocks = np.searchsorted(self.index.file_firsts(), numbers, side="right") - 1
        paths = [self.names[block][file] for block, file in zip(blocks, files, strict=True)]
        places = [int(row) + self.earlier[block][file] for block, file, row in zip(blocks, files, rows, strict=True)]
        return [ids[i] for i in inverse], [paths[i] for i in inverse], [places[i] for i in inverse]


def find_places(index: Index, block_files: Sequence[Sequence[Sequence[Any]]]) -> Places:
    """Prepare `Places`.

    Args:
        block_files: per block its files as (path, number of documents), in the order of the index.
    """
    seen: dict[str, int] = {}
    names, earlier = [], []
    for files in block_files:
        names.append([path for path, _ in files])
        earlier.append([seen.get(path, 0) for path, _ in files])
        for path, count in files:
            seen[path] = seen.get(path, 0) + count
    return Places(index, names, earlier)


def pairs_schema() -> pa.Schema:
    """Columns of ``pairs.parquet``; files and rows tell records with equal ids apart."""
    import pyarrow as pa

    text = pa.large_string()
    return pa.schema(
        [
            pa.field("removed_id", text, nullable=False),
            pa.field("survivor_id", text, nullable=False),
            pa.field("similarity", pa.float64(), nullable=False),
            pa.field("method", text, nullable=False),
            pa.field("removed_file", text, nullable=False),
            pa.field("removed_row", pa.int64(), nullable=False),
            pa.field("survivor_file", text, nullable=False),
            pa.field("survivor_row", pa.int64(), nullable=False),
        ]
    )


def write_pairs(root: Path, decisions: Decisions, places: Places) -> FileRecord:
    """Write every removed document with its survivor, in the order of the input."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = np.flatnonzero(decisions.methods != EMPTY_TEXT)
    schema = pairs_schema()
    with (
        atomic_file(root / "pairs.parquet") as out,
        pq.ParquetWriter(out, schema, compression=COMPRESSION, compression_level=COMPRESSION_LEVEL) as writer,
    ):
        for begin in range(0, len(rows), _PAIRS_AT_ONCE):
            part = rows[begin : begin + _PAIRS_AT_ONCE]
            removed_ids, removed_files, removed_rows = places.of(decisions.documents[part])
            survivor_ids, survivor_files, survivor_rows = places.of(decisions.survivors[part])
            columns = [
                removed_ids,
                survivor_ids,
                decisions.similarities[part],
                [REASONS[code] for code in decisions.methods[part]],
                removed_files,
                removed_rows,
                survivor_files,
                survivor_rows,
            ]
            writer.write_table(pa.table(columns, schema=schema))
    return out.record("pairs.parquet")


@dataclass
class Clusters:
    """Survivors with the documents removed for them, largest cluster first.

    Attributes:
        survivors: int64 document numbers.
        sizes: int64, documents of the cluster, the survivor included.
        counts: int64 of shape [clusters, methods], removed documents by method.
        lowest: float64, the lowest similarity to the survivor.
    """

    survivors: np.ndarray
    sizes: np.ndarray
    counts: np.ndarray
    lowest: np.ndarray


def find_clusters(decisions: Decisions) -> Clusters:
    """Group the removed documents by survivor."""
    real = decisions.methods != EMPTY_TEXT
    survivors, places = np.unique(decisions.survivors[real], return_inverse=True)
    counts = np.zeros((len(survivors), EMPTY_TEXT), np.int64)
    np.add.at(counts, (places, decisions.methods[real]), 1)
    lowest = np.full(len(survivors), np.inf)
    np.minimum.at(lowest, places, decisions.similarities[real])
    sizes = counts.sum(axis=1) + 1
    order = np.lexsort((survivors, -sizes))
    return Clusters(survivors[order], sizes[order], counts[order], lowest[order])


def write_clusters(root: Path, clusters: Clusters, places: Places) -> FileRecord:
    """Write one row for each survivor that others were removed for."""
    import pyarrow as pa

    ids, files, rows = places.of(clusters.survivors)
    table = pa.table(
        {
            "cluster": pa.array(np.arange(len(ids))),
            "survivor_id": pa.array(ids, pa.large_string()),
            "survivor_file": pa.array(files, pa.large_string()),
            "survivor_row": pa.array(rows, pa.int64()),
            "size": pa.array(clusters.sizes),
            **{REASONS[code]: pa.array(clusters.counts[:, code].copy()) for code in range(EMPTY_TEXT)},
            "lowest_similarity": pa.array(clusters.lowest),
        }
    )
    return write_parquet(root, "clusters.parquet", table)


def largest_clusters(clusters: Clusters, places: Places) -> list[dict[str, Any]]:
    """Return the largest clusters, for the manifest and the screen."""
    ids, files, _ = places.of(clusters.survivors[:_LARGEST_SHOWN])
    return [
        {
            "survivor_id": ids[position],
            "survivor_file": files[position],
            "size": int(clusters.sizes[position]),
            "lowest_similarity": round(float(clusters.lowest[position]), 6),
        }
        for position in range(len(ids))
    ]
