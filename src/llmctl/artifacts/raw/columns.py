"""Gather the rows of a block and turn them into Arrow columns in bulk."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from llmctl.artifacts.documents import HEAD_BYTES, InvalidRecord
from llmctl.artifacts.files import printable_path
from llmctl.artifacts.kinds import documents_schema
from llmctl.artifacts.raw.blocks import DocumentBatch, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

# A float of this size may have been an integer that does not fit into 64 bits.
_LARGE_EXPONENT = re.compile(rb"e\+?[1-9][0-9]")
_LARGEST_EXACT = float(1 << 63)
ABSENT = object()
# Rows are turned into Arrow arrays when about this much text has gathered.
_FLUSH_BYTES = 4_000_000
_FLUSH_ROWS = 100_000


def default_source(path: str) -> str:
    """Return the source that a file's place tells: its top folder, else its name without suffixes."""
    pure = PurePosixPath(path)
    return pure.parts[0] if len(pure.parts) > 1 else (pure.name.split(".", 1)[0] or pure.name)


def take_field(record: dict[str, Any], name: str, default: Any = None) -> Any:
    """Remove a field from a record and return its value; dots lead into nested objects."""
    if name in record or "." not in name:
        return record.pop(name, default)
    inner: Any = record
    *folders, last = name.split(".")
    for folder in folders:
        if not isinstance(inner, dict) or folder not in inner:
            return default
        inner = inner[folder]
    return inner.pop(last, default) if isinstance(inner, dict) else default


def type_name(value: Any) -> str:
    """Return what JSON calls the type of a value."""
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "list", dict: "object"}
    return names.get(type(value), "null" if value is None else type(value).__name__)


def text_error(record: dict[str, Any], name: str, value: Any) -> str:
    """Return the error of a record whose text is not a string; what comes before the colon is its kind."""
    if value is None:
        return f"field `{name}` is null"
    if value is ABSENT:
        return no_field(name, record)
    return f"field `{name}` is not a string: {type_name(value)}"


def no_field(name: str, present: Any) -> str:
    """Return the error of a record without its text, with the fields that it has instead."""
    fields = [str(field)[:60] for field in present]
    shown = ", ".join(sorted(fields)[:12]) + (", …" if len(fields) > 12 else "")
    return f"no field `{name}`: the fields are {shown}" if fields else f"no field `{name}`: the record is empty"


def is_inexact(value: Any) -> bool:
    """Tell whether a value holds a float that may have been a larger integer."""
    if isinstance(value, float):
        return abs(value) >= _LARGEST_EXACT
    if isinstance(value, dict):
        return any(is_inexact(item) for item in value.values())
    return isinstance(value, list) and any(is_inexact(item) for item in value)


def may_be_inexact(dumped: bytes) -> bool:
    """Tell whether dumped JSON may hold a large float (false alarms are possible, misses are not)."""
    return _LARGE_EXPONENT.search(dumped) is not None


def dump_json(value: Any) -> bytes:
    """Write a value as JSON: integers of any size stay exact, NaN and infinity become null, bytes base64.

    Raises:
        UnicodeEncodeError: a string holds a lone surrogate.
    """
    import orjson

    try:
        return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), default=_plain).encode("utf-8")


def _plain(value: Any) -> str:
    """Return what JSON has no type for (bytes of a table, decimals, durations) as text."""
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


class Columns:
    """The rows of one block, file by file.

    Rows are added to the lists `ids`, `texts`, `sources`, `langs`, `metadata` (bytes of JSON, or None), all of the
    same length; `flush` turns them into Arrow arrays, so that Python objects never pile up.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.files: list[str] = []
        self.invalid: list[InvalidRecord] = []
        self.skipped: Counter[str] = Counter()
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.sources: list[str] = []
        self.langs: list[str | None] = []
        self.metadata: list[bytes | None] = []
        self.source = ""
        self._tables: list[pa.Table] = []
        self.pending = 0  # about how many bytes of text are waiting in the lists
        self._rows_done = 0
        self._first_rows: list[int] = []

    @property
    def path(self) -> str:
        """Return the printable path of the file that is being read."""
        return self.files[-1]

    @property
    def num_rows(self) -> int:
        """Return the number of rows so far."""
        return self._rows_done + len(self.texts)

    def begin_file(self, path: str) -> None:
        """Say which file the rows to come belong to."""
        self.files.append(printable_path(path))
        self._first_rows.append(self.num_rows)
        self.source = self.options.source or default_source(self.path)

    def add(self, record: dict[str, Any], text: str, position: str) -> None:
        """Add one record, without its text field.

        Args:
            position: what stands for a missing id: ``#`` and the place in the file, or nothing.
        """
        options = self.options
        self.ids.append(id_text(take_field(record, options.id_field), self.path + position))
        self.texts.append(text)
        self.pending += len(text)
        self.sources.append(self.source if options.source else self._label(record, options.source_field) or self.source)
        self.langs.append(self._label(record, options.lang_field))
        self.metadata.append(dump_json(record) if record else None)

    def _label(self, record: dict[str, Any], name: str) -> str | None:
        value = take_field(record, name)
        if value is None or isinstance(value, str):
            return value or None
        if isinstance(value, (bool, int, float)):
            return str(value)
        record[name] = value  # no label; kept where it was
        return None

    def reject(self, error: str, line: int | None = None, offset: int | None = None, head: bytes = b"") -> None:
        """Note a record that cannot be read."""
        error = error.encode("utf-8", "replace").decode("utf-8")  # a part of it may come from the input
        self.invalid.append(InvalidRecord(self.path, error, line, offset, head[:HEAD_BYTES]))

    def flush_if_large(self) -> None:
        """Turn the gathered rows into Arrow arrays when there are enough of them."""
        if self.pending > _FLUSH_BYTES or len(self.texts) > _FLUSH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Turn the gathered rows into Arrow arrays."""
        import pyarrow as pa

        if not self.texts:
            return
        columns = [self.ids, self.texts, self.sources, self.langs, self.metadata]
        arrays = [pa.array(values, pa.large_string()) for values in columns]
        self.ids, self.texts, self.sources, self.langs, self.metadata = [], [], [], [], []
        self.pending = 0
        self.add_table(pa.Table.from_arrays(arrays, schema=documents_schema()))

    def add_table(self, table: pa.Table) -> None:
        """Add finished rows of the current file."""
        self.flush()
        self._tables.append(table)
        self._rows_done += table.num_rows

    def finish(self, content_hash: str) -> DocumentBatch:
        """Return everything as one batch, each column in one piece."""
        import numpy as np
        import pyarrow as pa

        self.flush()
        table = pa.concat_tables(self._tables) if self._tables else documents_schema().empty_table()
        self._tables = []
        # Segments of the same file share one entry.
        names = list(dict.fromkeys(self.files))
        place = {name: position for position, name in enumerate(names)}
        owners = np.asarray([place[name] for name in self.files], np.int32)
        file_index = np.repeat(owners, np.diff([*self._first_rows, self._rows_done]))
        index = file_index.astype(np.int32)
        return DocumentBatch(table.combine_chunks(), names, index, self.invalid, content_hash, self.skipped)


def id_text(value: Any, fallback: str) -> str:
    """Return a record's id as text, or `fallback` where it has none."""
    if value is None:
        return fallback
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else dump_json(value).decode()
