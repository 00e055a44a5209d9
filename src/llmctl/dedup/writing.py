"""Last pass: write what stays and what goes of every block."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl.artifacts.accounting import Accounting
from llmctl.artifacts.documents import DATA_FOLDER, REMOVED_FOLDER, write_parquet
from llmctl.artifacts.files import FileRecord
from llmctl.artifacts.kinds import removed_schema
from llmctl.dedup.config import DedupConfig
from llmctl.dedup.index import Index, IndexFile
from llmctl.dedup.signatures import STAGED_FOLDER, save_state
from llmctl.dedup.survivors import EMPTY_TEXT, EXACT, FUZZY, REASONS, REORDERED, TEMPLATE, Decisions
from llmctl.runtime.pool import Unit, UnitResult

if TYPE_CHECKING:
    import pyarrow as pa

DECISIONS_FOLDER = "_state/decisions"


def save_decisions(root: Path, decisions: Decisions) -> None:
    """Write the decisions where the workers find them."""
    for name in ("documents", "survivors", "methods", "similarities"):
        save_state(root, f"{DECISIONS_FOLDER}/{name}.npy", getattr(decisions, name))


def load_decisions(root: Path, first: int, end: int) -> Decisions:
    """Return the decisions about the documents of one range of numbers."""
    arrays = {
        name: np.load(root / DECISIONS_FOLDER / f"{name}.npy", mmap_mode="r")
        for name in ("documents", "survivors", "methods", "similarities")
    }
    begin, stop = np.searchsorted(arrays["documents"], [first, end])
    return Decisions(**{name: np.asarray(array[begin:stop]) for name, array in arrays.items()})


@dataclass(frozen=True)
class WriteContext:
    """What every block is written with.

    Attributes:
        root: the output folder.
        files: the whole index, for the survivors' ids.
    """

    root: str
    files: tuple[IndexFile, ...]
    config: DedupConfig


def write_block(unit: Unit, context: WriteContext) -> UnitResult:
    """Write the kept and the removed documents of one block.

    ``unit.payload`` is (number of its first document, the data that the block's first pass returned).
    """
    first, signed = unit.payload
    root = Path(context.root)
    table, file_index = read_staged(root, unit.name)
    decisions = load_decisions(root, first, first + table.num_rows)
    rows = decisions.documents - first
    kept = np.ones(table.num_rows, np.bool_)
    kept[rows] = False
    files: list[FileRecord] = []
    if kept.any():
        staying = _take(table, np.flatnonzero(kept))
        files.append(write_parquet(root, f"{DATA_FOLDER}/{unit.name}.parquet", staying))
    if len(rows):
        removed = removed_table(table.take(rows), decisions, context)
        files.append(write_parquet(root, f"{REMOVED_FOLDER}/{unit.name}.parquet", removed))
    accounting = Accounting()
    _count_files(accounting, signed, file_index, kept)
    _count_groups(accounting, table, kept)
    accounting.reasons.update({REASONS[code]: int(n) for code, n in enumerate(np.bincount(decisions.methods)) if n})
    return UnitResult(files, {"accounting": accounting.to_mapping()})


def read_staged(root: Path, name: str) -> tuple[pa.Table, np.ndarray]:
    """Return the documents of a block as the first pass read them, and the file of each row."""
    import pyarrow as pa

    table = pa.ipc.open_file(pa.memory_map(str(root / STAGED_FOLDER / f"{name}.arrow"))).read_all()
    return table.drop_columns(["file"]), table.column("file").to_numpy()


def _take(table: pa.Table, rows: np.ndarray) -> pa.Table:
    return table if len(rows) == table.num_rows else table.take(rows)


def _count_files(accounting: Accounting, signed: dict[str, Any], file_index: np.ndarray, kept: np.ndarray) -> None:
    kept_counts = np.bincount(file_index[kept], minlength=len(signed["files"]))
    for number, (path, count) in enumerate(signed["files"]):
        accounting.add_file(path, kept=int(kept_counts[number]), removed=count - int(kept_counts[number]))
    accounting.skipped.update(signed["skipped"])
    for path, error in signed["invalid"]:
        accounting.add_file(path, invalid=1)
        accounting.errors[error.split(":")[0]] += 1


def _count_groups(accounting: Accounting, table: pa.Table, kept: np.ndarray) -> None:
    """Count documents and bytes of text by source and language."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not table.num_rows:
        return
    sizes = pc.binary_length(table.column("text"))
    counted = pa.table(
        {
            "source": table.column("source"),
            "lang": table.column("lang"),
            "bytes": sizes,
            "kept": pa.array(kept.astype(np.int64)),
            "bytes_kept": pc.multiply(sizes, pa.array(kept.astype(np.int64))),
        }
    )
    groups = counted.group_by(["source", "lang"], use_threads=False).aggregate(
        [("bytes", "count"), ("bytes", "sum"), ("kept", "sum"), ("bytes_kept", "sum")]
    )
    for row in groups.to_pylist():
        counts = Counter(
            {
                "in": row["bytes_count"],
                "kept": row["kept_sum"],
                "bytes_in": row["bytes_sum"],
                "bytes_kept": row["bytes_kept_sum"],
            }
        )
        accounting.add_group(row["source"], row["lang"], **counts)


def removed_table(table: pa.Table, decisions: Decisions, context: WriteContext) -> pa.Table:
    """Return the removed documents with the reason, the similarity, and in `all_reasons` for whom they were removed."""
    import orjson
    import pyarrow as pa

    thresholds = {
        EXACT: 1.0,
        FUZZY: context.config.threshold,
        REORDERED: context.config.reordered_threshold,
        TEMPLATE: 1.0 - context.config.template_max_slot_share,
        EMPTY_TEXT: None,
    }
    survivor_ids = survivor_names(Index(context.files), decisions.survivors)
    values = [None if np.isnan(value) else float(value) for value in decisions.similarities]
    limits = [thresholds[int(code)] for code in decisions.methods]
    reasons = [REASONS[code] for code in decisions.methods]
    every = [
        orjson.dumps(
            [{"reason": reason, "value": value, "threshold": limit, "survivor_id": survivor}]
            if survivor is not None
            else [{"reason": reason, "value": value, "threshold": limit}]
        ).decode()
        for reason, value, limit, survivor in zip(reasons, values, limits, survivor_ids, strict=True)
    ]
    texts = table.column("text") if context.config.removed_text else pa.nulls(table.num_rows, pa.large_string())
    schema = removed_schema()
    columns = {
        "id": table.column("id"),
        "reason": pa.array(reasons, pa.large_string()),
        "value": pa.array(values, pa.float64()),
        "threshold": pa.array(limits, pa.float64()),
        "all_reasons": pa.array(every, pa.large_string()),
        "source": table.column("source"),
        "lang": table.column("lang"),
        "text": texts,
    }
    return pa.table([columns[name] for name in schema.names], schema=schema)


def survivor_names(index: Index, survivors: np.ndarray) -> list[str | None]:
    """Return the ids of survivors, None where there is none (-1)."""
    numbers, places = np.unique(survivors, return_inverse=True)
    has_none = len(numbers) > 0 and numbers[0] < 0
    names: list[str | None] = [None] if has_none else []
    names += index.take_strings("id", numbers[1:] if has_none else numbers).to_pylist()
    return [names[place] for place in places]
