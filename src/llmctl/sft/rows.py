"""Rendered conversations in flat arrays: a few bytes a token, read back from Parquet by every process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llmctl.artifacts.documents import write_parquet
from llmctl.artifacts.files import FileRecord


@dataclass
class Rows:
    """Conversations as token ids, one after another.

    Attributes:
        ids: int32 [tokens].
        trained: bool [tokens], True where the token is learned.
        offsets: int64 [rows + 1], where each row begins.
    """

    ids: np.ndarray
    trained: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Return the tokens of each row as input: the last token is only ever a label, int64 [rows]."""
        return np.diff(self.offsets) - 1

    @property
    def num_trained(self) -> int:
        """Return the number of learned tokens."""
        return int(self.trained.sum())

    def row(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids, trained) of one row."""
        window = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return self.ids[window], self.trained[window]

    @classmethod
    def of(cls, rows: Sequence[tuple[Sequence[int], Sequence[bool]]]) -> Rows:
        """Join rows of (ids, trained)."""
        lengths = np.array([len(ids) for ids, _ in rows], dtype=np.int64)
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
        ids = np.fromiter((token for row, _ in rows for token in row), dtype=np.int32, count=int(offsets[-1]))
        trained = np.fromiter((flag for _, row in rows for flag in row), dtype=bool, count=int(offsets[-1]))
        return cls(ids, trained, offsets)

    def write(self, root: Path, relative: str) -> FileRecord:
        """Write the rows as Parquet with the columns `input_ids` and `loss_mask`."""
        import pyarrow as pa

        offsets = pa.array(self.offsets, pa.int64())
        table = pa.table(
            {
                "input_ids": pa.LargeListArray.from_arrays(offsets, pa.array(self.ids, pa.int32())),
                "loss_mask": pa.LargeListArray.from_arrays(offsets, pa.array(self.trained, pa.bool_())),
            }
        )
        return write_parquet(root, relative, table)

    @classmethod
    def read(cls, path: Path) -> Rows:
        """Read rows back."""
        import pyarrow.parquet as pq

        table = pq.read_table(path).combine_chunks()
        if table.num_rows == 0:
            return cls.of([])
        column = table.column("input_ids").chunk(0)
        trained = table.column("loss_mask").chunk(0).values.to_numpy(zero_copy_only=False)
        offsets = np.asarray(column.offsets, dtype=np.int64)
        return cls(np.asarray(column.values, dtype=np.int32), np.asarray(trained, dtype=bool), offsets)
