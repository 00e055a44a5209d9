"""Look at an Arrow text column as the two arrays that kernels work on: UTF-8 bytes and int64 offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def text_buffers(column: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes and offsets of a text column without copying (a chunked column is joined first).

    Args:
        column: `large_string` or `string`, without nulls.

    Returns:
        data: uint8, all texts one after the other; `offsets`: int64 of length rows + 1, so that text `i` is
        ``data[offsets[i]:offsets[i + 1]]``.
    """
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(column, pa.ChunkedArray):  # zero chunks
        column = pa.array([], pa.large_string())
    if column.null_count:
        raise ValueError("text columns have no nulls")
    if not pa.types.is_large_string(column.type):
        column = column.cast(pa.large_string())
    _, offsets_buffer, data_buffer = column.buffers()
    if len(column) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    offsets = np.frombuffer(offsets_buffer, np.int64)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return data, offsets


class Scratch:
    """Arrays that are used again from batch to batch: touching fresh memory costs more than most kernels do."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def array(self, name: str, size: int, dtype: type) -> np.ndarray:
        """Return an uninitialised array of the wanted size, good until the same name is asked for again."""
        found = self._arrays.get(name)
        if found is None or len(found) < size or found.dtype != dtype:
            found = self._arrays[name] = np.empty(size, dtype)
        return found[:size]


def frozen(array: np.ndarray) -> np.ndarray:
    """Return a read-only view: then a kernel sees one type of array, however it was made, and compiles once."""
    view = array.view()
    view.flags.writeable = False
    return view
