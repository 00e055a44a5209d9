"""TFRecord files of `tf.train.Example`: llmctl's own shards, which have an index beside them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from llmctl.artifacts.files import FileRecord, atomic_file
from llmctl.artifacts.tfrecord import (
    FOOTER_BYTES,
    HEADER_BYTES,
    BrokenRecord,
    check_record,
    decode_example,
    encode_entries,
    frame,
    framed_bytes,
    join_example,
    map_file,
)
from llmctl.sharding.formats.base import BrokenFile, Document, Format, Layout, files_below

# Offsets are a means to the index; they lie with the state of the run, not in the payload.
OFFSETS_FOLDER = "_state/offsets"


class TfRecord(Format):
    """Records of one document each, with the raw ids at their end."""

    name = "tfrecord"
    suffix = ".tfrecord"
    description = "TFRecord of tf.train.Example with an index for random access, which `llmctl pretrain` reads"

    def write(self, root: Path, relative: str, documents: Iterable[Document], count: int) -> list[FileRecord]:
        """Write one file, and where each document's record and ids start in it (int64 of shape [2, documents])."""
        offsets = np.zeros((2, count), "<i8")
        with atomic_file(root / relative) as out:
            position = 0
            for number, (features, ids) in enumerate(documents):
                data = join_example(encode_entries(features), "input_ids", ids.tobytes())
                for piece in frame(data):
                    out.write(piece)
                offsets[:, number] = position, position + HEADER_BYTES + len(data) - ids.nbytes
                position += framed_bytes(len(data))
        offsets_path = f"{OFFSETS_FOLDER}/{Path(relative).stem}.npy"
        with atomic_file(root / offsets_path) as index:
            np.lib.format.write_array(index, offsets, allow_pickle=False)
        return [out.record(relative), index.record(offsets_path)]

    def layout(self, path: Path, group: int = 0) -> Layout:
        """Read every record and check its checksums."""
        data = map_file(path)
        starts: list[int] = []
        lengths: list[int] = []
        columns: dict[str, list[object]] = {"id": [], "source": [], "lang": [], "num_bytes": []}
        dtype = "uint16"
        offset = 0
        while offset < len(data):
            number = len(starts)
            try:
                span = check_record(data, offset)
                features = decode_example(data[span.start : span.end].tobytes())
                ids, dtype = features["input_ids"], features["dtype"].decode()
                if data[span.end - len(ids) : span.end].tobytes() != ids or len(ids) % np.dtype(dtype).itemsize:
                    raise ValueError("its ids are not the end of the record")
                columns["id"].append(features["id"].decode())
                columns["source"].append(features["source"].decode())
                columns["lang"].append(features["lang"].decode() or None)
                columns["num_bytes"].append(int(features["num_bytes"][0]))
            except BrokenRecord as failure:
                raise BrokenFile(path, failure.reason, number, failure.offset) from None
            except (ValueError, KeyError, AttributeError, TypeError, IndexError) as failure:
                raise BrokenFile(path, f"not a record of llmctl: {failure}", number, offset) from None
            starts.append(span.end - len(ids))
            lengths.append(len(ids) // np.dtype(dtype).itemsize)
            offset = span.end + FOOTER_BYTES
        arrays = np.array(starts, np.int64), np.array(lengths, np.int64)
        return Layout(*arrays, np.dtype(dtype).newbyteorder("<"), columns)

    def buffer(self, path: Path, group: int = 0) -> np.ndarray:
        """Map the file."""
        return map_file(path)

    def found(self, folder: Path) -> list[Path]:
        """Find files by their name."""
        return files_below(folder, f"*{self.suffix}")


def read_offsets(root: Path, record: FileRecord) -> np.ndarray:
    """Read the offsets of a shard, int64 of shape [2, documents]: of the record, and of the ids."""
    return np.load(root / record.path, mmap_mode="r", allow_pickle=False)
