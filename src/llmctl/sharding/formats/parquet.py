"""Parquet with one row a document and its ids as a list of int32."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl.artifacts.documents import write_parquet
from llmctl.artifacts.files import FileRecord
from llmctl.sharding.formats.base import BrokenFile, Document, Format, Layout, files_below

if TYPE_CHECKING:
    import pyarrow as pa

# Names under which ids are found in the files of others, the first first.
COLUMNS = ("input_ids", "tokens", "token_ids")
_DESCRIBED = ("id", "source", "lang", "num_bytes")


class Parquet(Format):
    """Parquet files; each row group is read by itself."""

    name = "parquet"
    suffix = ".parquet"
    description = "Parquet with `input_ids` as a list of int32, for Hugging Face datasets, Spark, Polars"

    def itemsize(self, dtype: str) -> int:
        """Return 4: Spark knows no unsigned integers."""
        return 4

    def write(self, root: Path, relative: str, documents: Iterable[Document], count: int) -> list[FileRecord]:
        """Write one file; its ids are in memory until then."""
        import pyarrow as pa

        columns: dict[str, list[Any]] = {name: [] for name in _DESCRIBED}
        arrays: list[np.ndarray] = []
        for features, ids in documents:
            for name, values in columns.items():
                value = features[name]
                values.append(value.decode() if isinstance(value, bytes) else value)
            arrays.append(ids.astype(np.int32))
        offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
        flat = np.concatenate(arrays) if arrays else np.zeros(0, np.int32)
        ids = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat))
        lang = pa.array([value or None for value in columns["lang"]], pa.large_string())
        text = [pa.array(columns[name], pa.large_string()) for name in ("id", "source")]
        table = pa.table(
            [*text, lang, pa.array(columns["num_bytes"], pa.int64()), ids], names=[*_DESCRIBED, "input_ids"]
        )
        return [write_parquet(root, relative, table)]

    def groups(self, path: Path) -> int:
        """Return the number of row groups."""
        return int(_open(path).num_row_groups)

    def first_document(self, path: Path, group: int) -> int:
        """Return the rows of the groups before."""
        metadata = _open(path).metadata
        return sum(int(metadata.row_group(number).num_rows) for number in range(group))

    def mapped(self, path: Path) -> bool:
        """Return False: Parquet is compressed."""
        return False

    def layout(self, path: Path, group: int = 0) -> Layout:
        """Read the lengths of the lists, and the columns that describe documents."""
        file = _open(path)
        name = ids_column(file.schema_arrow)
        if name is None:
            raise BrokenFile(path, "no column holds lists of integers")
        described = [column for column in _DESCRIBED if column in file.schema_arrow.names]
        table = _read_group(file, path, group, [name, *described])
        offsets, values = _flat(table.column(name), path)
        dtype = np.dtype(values.type.to_pandas_dtype())
        columns = {column: table.column(column).to_pylist() for column in described}
        known = {column: values for column, values in columns.items() if column == "lang" or None not in values}
        return Layout(offsets[:-1] * dtype.itemsize, np.diff(offsets), dtype, known)

    def buffer(self, path: Path, group: int = 0) -> np.ndarray:
        """Return the values of all lists."""
        file = _open(path)
        name = ids_column(file.schema_arrow)
        _, values = _flat(_read_group(file, path, group, [name]).column(0), path)
        return np.ascontiguousarray(values.to_numpy(zero_copy_only=False)).view(np.uint8)

    def found(self, folder: Path) -> list[Path]:
        """Find files with a column of lists of integers."""
        return [path for path in files_below(folder, "*.parquet") if ids_column(_open(path).schema_arrow) is not None]


def ids_column(schema: pa.Schema) -> str | None:
    """Return the column of the ids: one of the usual names, or the only one that holds lists of integers."""
    import pyarrow.types as types

    lists = [
        field.name
        for field in schema
        if (types.is_list(field.type) or types.is_large_list(field.type)) and types.is_integer(field.type.value_type)
    ]
    for name in COLUMNS:
        if name in lists:
            return name
    return lists[0] if len(lists) == 1 else None


def _open(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as failure:
        raise BrokenFile(path, f"it cannot be read as Parquet ({_first_line(failure)})") from None


def _read_group(file: Any, path: Path, group: int, columns: list[str | None]) -> pa.Table:
    import pyarrow as pa

    if file.num_row_groups == 0:
        return file.read(columns)
    try:
        return file.read_row_group(group, columns)
    except (pa.ArrowException, OSError) as failure:
        raise BrokenFile(path, f"its row group {group} cannot be read ({_first_line(failure)})") from None


def _first_line(failure: Exception) -> str:
    return (str(failure).strip().splitlines() or [type(failure).__name__])[0].rstrip(".")


def _flat(column: pa.ChunkedArray, path: Path) -> tuple[np.ndarray, pa.Array]:
    """Return the offsets of the lists and their values; a list that is null has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.chunk(0) if whole.num_chunks else pa.array([], column.type)
    lengths = pc.fill_null(pc.list_value_length(whole), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    values = whole.flatten()
    if values.null_count:
        raise BrokenFile(path, "some ids are null")
    return np.concatenate([[0], np.cumsum(lengths)]), values
