"""Read Parquet: tables of our own as they are, others column by column."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmctl.artifacts.kinds import documents_schema
from llmctl.artifacts.raw.blocks import Segment
from llmctl.artifacts.raw.columns import Columns, dump_json, id_text, no_field
from llmctl.artifacts.raw.streams import StreamFault

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file.

    Raises:
        StreamFault: it is broken or cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as failure:
        raise StreamFault(f"broken Parquet: {_first_sentence(failure)}") from failure


def _first_sentence(failure: BaseException) -> str:
    return str(failure).splitlines()[0][:300] if str(failure) else type(failure).__name__


def row_group_cuts(file: pq.ParquetFile, block_bytes: int) -> list[tuple[int, int, int]]:
    """Cut a file between row groups into parts of about `block_bytes`: (first group, end, number of the first row)."""
    cuts: list[tuple[int, int, int]] = []
    first = size = rows = first_row = 0
    for group in range(file.metadata.num_row_groups):
        metadata = file.metadata.row_group(group)
        if group > first and size + metadata.total_byte_size > block_bytes:
            cuts.append((first, group, first_row))
            first, size, first_row = group, 0, rows
        size += metadata.total_byte_size
        rows += metadata.num_rows
    cuts.append((first, file.metadata.num_row_groups, first_row))
    return cuts


def row_group_span(path: Path, first: int, end: int) -> tuple[int, int]:
    """Return the range of bytes that row groups from `first` to `end` take in their file.

    Raises:
        StreamFault: the file is broken or cannot be read.
    """
    start, stop = None, 0
    with open_parquet(path) as file:
        for group in range(first, min(end, file.metadata.num_row_groups)):
            metadata = file.metadata.row_group(group)
            for number in range(metadata.num_columns):
                column = metadata.column(number)
                begin = column.dictionary_page_offset or column.data_page_offset
                start = begin if start is None else min(start, begin)
                stop = max(stop, begin + column.total_compressed_size)
    return start or 0, stop


def add_parquet(path: Path, segment: Segment, columns: Columns) -> None:
    """Add the rows of a segment's row groups; a row group that is broken costs no other."""
    import pyarrow as pa

    try:
        file = open_parquet(path)
    except StreamFault as failure:
        columns.reject(str(failure))
        return
    end = file.metadata.num_row_groups if segment.end is None else min(segment.end, file.metadata.num_row_groups)
    row = segment.first_row
    with file:
        for group in range(segment.start, end):
            rows = file.metadata.row_group(group).num_rows
            try:
                table = file.read_row_group(group)
                if segment.format == "documents" and table.schema.equals(documents_schema()):
                    columns.add_table(table)
                elif not _add_foreign(table, row, columns, first=segment.start == 0 and group == 0):
                    return
            except (pa.ArrowException, OSError, ValueError) as failure:
                # One row group is one loss: its rows cannot be told apart any more.
                columns.reject(
                    f"broken Parquet: row group {group} of {rows:,} rows, {_first_sentence(failure)}", None, row
                )
            row += rows


def _add_foreign(table: pa.Table, first_row: int, columns: Columns, *, first: bool) -> bool:
    """Add the rows of someone else's table; False if it has no text column (told once a file)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    options = columns.options
    texts = _column(table, options.text_field)
    if texts is None:
        if first:
            columns.reject(no_field(options.text_field, table.column_names))
        return False
    texts = _decoded(texts)
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type) or _is_binary(texts.type)):
        if first:
            columns.reject(f"field `{options.text_field}` is not a string: the column holds {texts.type}")
        return False
    texts = texts.cast(pa.large_binary())
    good = _valid_rows(texts, first_row, columns)
    rows = pa.array(range(first_row, first_row + table.num_rows), pa.int64())
    if good is not None:
        texts, rows, table = texts.filter(good), rows.filter(good), table.filter(good)
    prefix, numbers = pa.scalar(columns.path, pa.large_string()), rows.cast(pa.large_string())
    fallback_ids = pc.binary_join_element_wise(prefix, numbers, pa.scalar("#", pa.large_string()))
    used = [options.text_field]
    ids = _ids(table, options.id_field, fallback_ids, used)
    sources = pa.array([columns.source] * table.num_rows, pa.large_string())
    if not options.source:
        sources = _labels(table, options.source_field, used).fill_null(columns.source)
    langs = _labels(table, options.lang_field, used)
    metadata = _metadata(table, used)
    parts = [ids, texts.cast(pa.large_string()), sources, langs, metadata]
    columns.add_table(pa.Table.from_arrays(parts, schema=documents_schema()))
    return True


def _is_binary(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _decoded(column: Any) -> Any:
    """Return a column without dictionary encoding or views, in one piece."""
    import pyarrow as pa

    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(column, pa.ChunkedArray):
        column = pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    return column


def _column(table: pa.Table, name: str) -> Any:
    """Return a column, or a field inside struct columns (dots), or None."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if name in table.column_names:
        return _decoded(table.column(name))
    top, *path = name.split(".")
    if not path or top not in table.column_names:
        return None
    column = _decoded(table.column(top))
    for field in path:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(field) < 0:
            return None
        column = pc.struct_field(column, field)
    return _decoded(column)


def _valid_rows(texts: Any, first_row: int, columns: Columns) -> Any:
    """Return a mask of the rows whose text is there and is UTF-8, or None if all are; reject the others."""
    import pyarrow as pa

    name = columns.options.text_field
    bad: dict[int, tuple[str, bytes]] = {}
    if texts.null_count:
        nulls = texts.is_null().to_numpy(zero_copy_only=False).nonzero()[0]
        bad = {int(row): (f"field `{name}` is null", b"") for row in nulls}
    try:
        texts.cast(pa.large_string())
    except pa.ArrowInvalid:
        for row, text in enumerate(texts.to_pylist()):
            try:
                (text or b"").decode("utf-8")
            except UnicodeDecodeError as failure:
                bad[row] = (f"not UTF-8: {failure.reason} at byte {failure.start}", text)
    for row in sorted(bad):
        columns.reject(bad[row][0], None, first_row + row, bad[row][1])
    return pa.array([row not in bad for row in range(len(texts))]) if bad else None


def _ids(table: pa.Table, name: str, fallback: Any, used: list[str]) -> Any:
    import pyarrow as pa

    column = _column(table, name)
    if column is None or pa.types.is_null(column.type):
        return fallback
    used.append(name)
    if pa.types.is_integer(column.type) or pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column.cast(pa.large_string()).fill_null(fallback)
    pairs = zip(column.to_pylist(), fallback.to_pylist(), strict=True)
    return pa.array([id_text(value, other) for value, other in pairs], pa.large_string())


def _labels(table: pa.Table, name: str, used: list[str]) -> Any:
    """Return a column of short labels; null where there is none or it is empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _column(table, name)
    if column is None or pa.types.is_nested(column.type) or _is_binary(column.type):
        return pa.nulls(table.num_rows, pa.large_string())
    used.append(name)
    labels = column.cast(pa.large_string())
    return pc.if_else(pc.equal(labels, ""), pa.scalar(None, pa.large_string()), labels)


def _metadata(table: pa.Table, used: list[str]) -> Any:
    """Return the other columns of each row as JSON, without those that are null."""
    import pyarrow as pa

    others = [name for name in table.column_names if name not in used]
    if not others:
        return pa.nulls(table.num_rows, pa.large_string())
    nested = [name for name in used if name not in table.column_names]
    rows: list[bytes | None] = []
    for record in table.select(others).to_pylist():
        for name in nested:
            _drop_nested(record, name)
        present = {key: value for key, value in record.items() if value is not None}
        rows.append(dump_json(present) if present else None)
    return pa.array(rows, pa.large_string())


def _drop_nested(record: dict[str, Any], name: str) -> None:
    *folders, last = name.split(".")
    inner: Any = record
    for folder in folders:
        inner = inner.get(folder) if isinstance(inner, dict) else None
    if isinstance(inner, dict):
        inner.pop(last, None)
