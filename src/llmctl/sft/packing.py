"""Put conversations into sequences of `seq_len` tokens, and make batches of them. Everything is a function of the seed.

In a packed sequence each conversation has its own document id and its own positions from zero, so that the model
computes exactly what it would compute for each alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llmctl.sft.rows import Rows
from llmctl.training.sharing import replica_parts

if TYPE_CHECKING:
    import torch

IGNORE_INDEX = -100
# Rows are packed within windows, so that a pack does not hold only what is alike.
_WINDOW = 4096


def pack(lengths: np.ndarray, seq_len: int, seed: int) -> list[list[int]]:
    """Return packs of row numbers, none longer than `seq_len` together: best fit, longest first.

    Args:
        lengths: tokens of each row, int64 [rows], none above `seq_len`.
        seed: of the order in which rows come together.
    """
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(lengths))
    packs: list[list[int]] = []
    for start in range(0, len(order), _WINDOW):
        window = order[start : start + _WINDOW]
        packs += _best_fit(lengths, window[np.argsort(-lengths[window], kind="stable")], seq_len)
    return packs


def _best_fit(lengths: np.ndarray, rows: np.ndarray, seq_len: int) -> list[list[int]]:
    packs: list[list[int]] = []
    # Packs by the room that is left; the fullest that still takes the row gets it.
    by_room: dict[int, list[int]] = {}
    for row in rows.tolist():
        length = int(lengths[row])
        room = next((room for room in sorted(by_room) if room >= length), None)
        if room is None:
            packs.append([row])
            position, room = len(packs) - 1, seq_len
        else:
            position = by_room[room].pop()
            if not by_room[room]:
                del by_room[room]
            packs[position].append(row)
        if room - length > 0:
            by_room.setdefault(room - length, []).append(position)
    return packs


def singles(num_rows: int) -> list[list[int]]:
    """Return one pack per row: no packing."""
    return [[row] for row in range(num_rows)]


@dataclass
class BatchPlan:
    """Which packs each step takes: a new order in every epoch, no state to save.

    Attributes:
        packs: row numbers of each sequence.
        batch_size: sequences of a step; the last step of an epoch may have fewer.
        seed: of the order.
    """

    packs: list[list[int]]
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Return the optimizer steps of one pass over the data."""
        return -(-len(self.packs) // self.batch_size)

    def step(self, step: int) -> list[list[int]]:
        """Return the packs of a step, counted from 1."""
        epoch, position = divmod(step - 1, self.steps_per_epoch)
        order = np.random.Generator(np.random.PCG64([self.seed, epoch])).permutation(len(self.packs))
        chosen = order[position * self.batch_size : (position + 1) * self.batch_size]
        return [self.packs[index] for index in chosen]


@dataclass(frozen=True)
class Line:
    """One sequence ready for a model, int64 [tokens] each; `labels` are shifted, -100 where nothing is learned."""

    input_ids: np.ndarray
    labels: np.ndarray
    position_ids: np.ndarray
    document_ids: np.ndarray

    def __len__(self) -> int:
        return len(self.input_ids)


def line_of(rows: Rows, members: Sequence[int]) -> Line:
    """Return the sequence of a pack: the label of a position is the token after it, where that is learned."""
    parts = []
    for number, row in enumerate(members):
        ids, trained = rows.row(row)
        size = len(ids) - 1
        labels = np.where(trained[1:], ids[1:], IGNORE_INDEX)
        parts.append((ids[:-1], labels, np.arange(size), np.full(size, number)))
    return Line(*(np.concatenate(columns).astype(np.int64) for columns in zip(*parts, strict=True)))


def collate(rows: Rows, packs: Sequence[Sequence[int] | Line], pad_id: int) -> dict[str, torch.Tensor]:
    """Make a batch of packs: `input_ids`, `labels`, `position_ids`, `document_ids`, all int64 [packs, longest].

    Padding is a document of its own (−1) without labels. A `Line` stands for itself.
    """
    import torch

    lines = [item if isinstance(item, Line) else line_of(rows, item) for item in packs]
    shape = (len(lines), max(len(line) for line in lines))
    padding = {"input_ids": pad_id, "labels": IGNORE_INDEX, "position_ids": 0, "document_ids": -1}
    arrays = {name: np.full(shape, value, dtype=np.int64) for name, value in padding.items()}
    for number, line in enumerate(lines):
        for name, array in arrays.items():
            array[number, : len(line)] = getattr(line, name)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def micro_batches(
    rows: Rows, packs: Sequence[Sequence[int] | Line], size: int, pad_id: int, rank: int = 0, replicas: int = 1
) -> list[dict[str, torch.Tensor]]:
    """Return the micro-batches of one replica, of at most `size` sequences each.

    Sequences of like length come together, which saves padding; the loss is a sum over tokens and does not see how
    they are cut.
    """
    lengths = rows.lengths

    def tokens(item: Sequence[int] | Line) -> int:
        return len(item) if isinstance(item, Line) else sum(int(lengths[row]) for row in item)

    ordered = sorted(packs, key=lambda item: -tokens(item))
    batches = []
    for part, counted in replica_parts(ordered, size, rank, replicas):
        batch = collate(rows, part, pad_id)
        if not counted:
            batch["labels"].fill_(IGNORE_INDEX)
        batches.append(batch)
    return batches
