"""Megatron-LM's IndexedDataset: ``NAME.bin`` holds the ids one after the other, ``NAME.idx`` says which are where.

    .idx, little endian: 9 bytes "MMIDIDX\\0\\0" | u64 version 1 | u8 dtype | u64 sequences | u64 documents + 1
         | i32 length of each sequence | i64 byte where each starts | i64 first sequence of each document, and the end

(megatron/core/datasets/indexed_dataset.py, `_IndexWriter`; datatrove's MegatronDocumentTokenizer writes the same.) A
document is one sequence here. Megatron has no uint32, so wide ids are int32.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from llmctl.artifacts.files import FileRecord, atomic_file
from llmctl.artifacts.tfrecord import map_file
from llmctl.sharding.formats.base import BrokenFile, Document, Format, Layout, files_below

MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<QBQQ")
HEADER_BYTES = len(MAGIC) + _HEAD.size
# Megatron's enumeration of dtypes; ids are integers.
DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
INDEX_SUFFIX = ".idx"


class Megatron(Format):
    """Pairs of ``.bin`` and ``.idx``."""

    name = "megatron"
    suffix = ".bin"
    description = "Megatron-LM's IndexedDataset (.bin and .idx), as datatrove and NeMo read it too"

    def write(self, root: Path, relative: str, documents: Iterable[Document], count: int) -> list[FileRecord]:
        """Write one pair."""
        lengths = np.zeros(count, "<i4")
        code = 8
        with atomic_file(root / relative) as out:
            for number, (_, ids) in enumerate(documents):
                if ids.dtype.itemsize > 2:
                    code, ids = 4, ids.astype("<i4")
                out.write(np.ascontiguousarray(ids).view(np.uint8))
                lengths[number] = len(ids)
        sizes = lengths.astype(np.int64) * np.dtype(DTYPES[code]).itemsize
        index_path = str(Path(relative).with_suffix(INDEX_SUFFIX))
        with atomic_file(root / index_path) as index:
            index.write(MAGIC + _HEAD.pack(1, code, count, count + 1))
            index.write(lengths.tobytes())
            index.write((np.cumsum(sizes) - sizes).astype("<i8").tobytes())
            index.write(np.arange(count + 1, dtype="<i8").tobytes())
        return [out.record(relative), index.record(index_path)]

    def layout(self, path: Path, group: int = 0) -> Layout:
        """Read the index of a ``.bin`` file; sequences of one document must lie one after the other."""
        index = path.with_suffix(INDEX_SUFFIX)
        if not path.is_file() or not index.is_file():
            raise BrokenFile(path, f"{(index if path.is_file() else path).name} is missing")
        data = map_file(index)
        dtype, lengths, starts, documents = _parse(index, data)
        size = path.stat().st_size
        ends = starts + lengths * dtype.itemsize
        if (outside := np.flatnonzero((starts < 0) | (lengths < 0) | (ends > size))).size:
            first = int(outside[0])
            document = int(np.searchsorted(documents, first, side="right")) - 1
            raise BrokenFile(
                path, f"the index places it outside of the file, which has {size:,} bytes", document, int(starts[first])
            )
        if documents[0] != 0 or documents[-1] != len(lengths) or (np.diff(documents) < 0).any():
            raise BrokenFile(index, "its documents do not cover its sequences")
        inner = np.setdiff1d(np.arange(1, len(lengths)), documents[:-1])
        if (apart := inner[starts[inner] != ends[inner - 1]]).size:
            document = int(np.searchsorted(documents, apart[0], side="right")) - 1
            raise BrokenFile(path, "its sequences do not follow one another", document, int(starts[apart[0]]))
        sums = np.concatenate([[0], np.cumsum(lengths)])
        firsts = np.append(starts, size)[documents[:-1]] if len(documents) > 1 else starts[:0]
        return Layout(firsts, sums[documents[1:]] - sums[documents[:-1]], dtype)

    def buffer(self, path: Path, group: int = 0) -> np.ndarray:
        """Map the ``.bin`` file."""
        return map_file(path)

    def found(self, folder: Path) -> list[Path]:
        """Find indexes by their first bytes."""
        if folder.suffix == self.suffix and folder.is_file():
            folder = folder.with_suffix(INDEX_SUFFIX)
        return [path.with_suffix(self.suffix) for path in files_below(folder, f"*{INDEX_SUFFIX}") if _is_index(path)]


def _is_index(path: Path) -> bool:
    with open(path, "rb") as handle:
        return handle.read(len(MAGIC)) == MAGIC


def _parse(path: Path, data: np.ndarray) -> tuple[np.dtype, np.ndarray, np.ndarray, np.ndarray]:
    if len(data) < HEADER_BYTES or data[: len(MAGIC)].tobytes() != MAGIC:
        raise BrokenFile(path, "it is not an index of Megatron")
    version, code, sequences, documents = _HEAD.unpack(data[len(MAGIC) : HEADER_BYTES].tobytes())
    if version != 1 or code not in DTYPES:
        raise BrokenFile(path, f"version {version} with dtype {code} is not known")
    needed = HEADER_BYTES + sequences * 12 + documents * 8
    # An index of several modalities has one more byte a sequence.
    if len(data) not in (needed, needed + sequences) or documents < 1:
        raise BrokenFile(path, f"it has {len(data):,} bytes instead of {needed:,}")
    cuts = np.cumsum([HEADER_BYTES, sequences * 4, sequences * 8, documents * 8])
    lengths, starts, firsts = (
        data[start:end].copy().view(dtype).astype(np.int64)
        for start, end, dtype in zip(cuts, cuts[1:], ("<i4", "<i8", "<i8"), strict=False)
    )
    return np.dtype(DTYPES[code]), lengths, starts, firsts
