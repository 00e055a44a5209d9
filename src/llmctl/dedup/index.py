"""The shingle index: one Arrow file a block with signatures, shingle sets and paragraph hashes of its documents.

Documents are numbered through all blocks in order. Files are memory-mapped and read where they are asked for, so
memory does not grow with the corpus. `write_index` writes one; `Index` reads many as one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from llmctl.artifacts.files import FileRecord, atomic_file
from llmctl.text.compile import kernel

if TYPE_CHECKING:
    import pyarrow as pa

_OPEN_FILES = 32


def index_schema(num_perm: int, description: dict[str, str]) -> pa.Schema:
    """Return the columns of an index file.

    Args:
        num_perm: length of the signatures.
        description: how shingles and signatures were made; stands in the file's metadata.
    """
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("id", pa.large_string()),
            pa.field("file", pa.int32()),
            pa.field("row", pa.int64()),
            pa.field("length", pa.int64()),
            pa.field("quality", pa.float64()),
            pa.field("priority", pa.int32()),
            pa.field("kind", pa.uint8()),
            pa.field("hash_high", pa.uint64()),
            pa.field("hash_low", pa.uint64()),
            pa.field("signature", pa.list_(pa.uint32(), num_perm)),
            pa.field("shingles", pa.large_list(pa.uint64())),
            pa.field("paragraphs", pa.large_list(pa.uint64())),
            pa.field("paragraph_weights", pa.large_list(pa.uint32())),
        ],
        metadata=description,
    )


def write_index(root: Path, relative: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> FileRecord:
    """Write one index file atomically, batch by batch, uncompressed so that it can be memory-mapped.

    A batch is hashed and written while the next is computed: its memory must stay as it is until the one after next
    is asked for.
    """
    import pyarrow as pa

    options = pa.ipc.IpcWriteOptions(compression=None)
    with (
        atomic_file(root / relative) as out,
        pa.ipc.new_file(out, schema, options=options) as writer,
        ThreadPoolExecutor(1) as thread,
    ):
        pending: Future[None] | None = None
        for batch in batches:
            if pending is not None:
                pending.result()
            pending = thread.submit(writer.write_batch, batch)
        if pending is not None:
            pending.result()
    return out.record(relative)


@kernel
def _copy_lists(values, offsets, rows, target, target_offsets, first):
    for position in range(len(rows)):
        begin = offsets[rows[position]]
        target_begin = target_offsets[first + position]
        for step in range(target_offsets[first + position + 1] - target_begin):
            target[target_begin + step] = values[begin + step]


@dataclass(frozen=True)
class IndexFile:
    """One index file: its path and the rows of each of its record batches."""

    path: str
    batch_rows: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Return the number of documents."""
        return sum(self.batch_rows)


class Index:
    """Many index files as one table whose rows are document numbers."""

    def __init__(self, files: Sequence[IndexFile]) -> None:
        self.files = list(files)
        self._chunks = [(number, batch) for number, file in enumerate(files) for batch in range(len(file.batch_rows))]
        rows = np.array([count for file in files for count in file.batch_rows], np.int64)
        self._firsts = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows)])
        self._open: OrderedDict[int, pa.ipc.RecordBatchFileReader] = OrderedDict()

    @property
    def num_documents(self) -> int:
        """Return the number of documents in all files."""
        return int(self._firsts[-1])

    def file_firsts(self) -> np.ndarray:
        """Return the number of the first document of each file, and the number of documents; int64 [files + 1]."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum([file.rows for file in self.files], dtype=np.int64)])

    def _batch(self, chunk: int) -> pa.RecordBatch:
        import pyarrow as pa

        number, batch = self._chunks[chunk]
        reader = self._open.get(number)
        if reader is None:
            reader = pa.ipc.open_file(pa.memory_map(self.files[number].path))
            self._open[number] = reader
            if len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(number)
        return reader.get_batch(batch)

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (number of its first document, record batch) of everything, in order."""
        for chunk in range(len(self._chunks)):
            yield int(self._firsts[chunk]), self._batch(chunk)

    def column(self, name: str) -> np.ndarray:
        """Return one fixed-width column of all documents."""
        parts = [batch.column(name).to_numpy(zero_copy_only=False) for _, batch in self.batches()]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _by_chunk(self, documents: np.ndarray) -> Iterator[tuple[int, int, pa.RecordBatch, np.ndarray]]:
        """Yield (begin, end, batch, rows in the batch) for runs of ascending document numbers in one chunk."""
        if not len(documents):
            return
        chunks = np.searchsorted(self._firsts, documents, side="right") - 1
        starts = np.flatnonzero(np.diff(chunks, prepend=-1))
        for begin, end in zip(starts, np.append(starts[1:], len(documents)), strict=True):
            chunk = int(chunks[begin])
            yield int(begin), int(end), self._batch(chunk), documents[begin:end] - self._firsts[chunk]

    def take(self, name: str, documents: np.ndarray) -> np.ndarray:
        """Return one fixed-width column of the given documents.

        Args:
            documents: int64, ascending.
        """
        parts = [
            batch.column(name).to_numpy(zero_copy_only=False)[rows] for _, _, batch, rows in self._by_chunk(documents)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def take_strings(self, name: str, documents: np.ndarray) -> pa.Array:
        """Return one text column of the given documents (ascending numbers)."""
        import pyarrow as pa

        parts = [batch.column(name).take(pa.array(rows)) for _, _, batch, rows in self._by_chunk(documents)]
        return pa.concat_arrays(parts) if parts else pa.array([], pa.large_string())

    def signatures(self, documents: np.ndarray) -> np.ndarray:
        """Return the signatures of the given documents (ascending numbers), uint32 of shape [documents, num_perm]."""
        parts = []
        for _, _, batch, rows in self._by_chunk(documents):
            column = batch.column("signature")
            width = column.type.list_size
            flat = column.flatten().to_numpy(zero_copy_only=True).reshape(-1, width)
            parts.append(flat[rows])
        return np.concatenate(parts) if parts else np.zeros((0, 1), np.uint32)

    def list_sizes(self, name: str, documents: np.ndarray) -> np.ndarray:
        """Return the lengths of a list column of the given documents (ascending numbers), int64."""
        sizes = np.zeros(len(documents), np.int64)
        for begin, end, batch, rows in self._by_chunk(documents):
            offsets = batch.column(name).offsets.to_numpy()
            sizes[begin:end] = offsets[rows + 1] - offsets[rows]
        return sizes

    def lists(self, name: str, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a list column of the given documents (ascending numbers) as values and int64 offsets."""
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.list_sizes(name, documents))])
        target: np.ndarray | None = None
        for begin, _, batch, rows in self._by_chunk(documents):
            column = batch.column(name)
            values = column.values.to_numpy(zero_copy_only=True)
            if target is None:
                target = np.empty(int(offsets[-1]), values.dtype)
            _copy_lists(values, column.offsets.to_numpy(), rows, target, offsets, begin)
        return (target if target is not None else np.zeros(0, np.uint64)), offsets
