"""Cut documents into sequences of one length, in an order that depends on the seed alone.

The documents of an epoch, shuffled, form a ring of tokens (every document ends with EOS). Sequence n has as labels
the tokens [n·L, n·L + L) of the ring and as inputs the tokens one place before, so that each token is a label once an
epoch (the last sequence is filled up from the start of the ring). A document begins at the EOS of the one before: its
first token is predicted from EOS, and nothing is predicted across documents. Sequences are shuffled too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Documents(Protocol):
    """What packing needs of a `shards` artifact."""

    lengths: np.ndarray

    def tokens(self, document: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return ids of a document."""
        ...


def mix64(values: np.ndarray) -> np.ndarray:
    """Return well-mixed 64-bit numbers (SplitMix64's finaliser), uint64 of the same shape."""
    with np.errstate(over="ignore"):
        mixed = values.astype(np.uint64) + _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


def sample_keys(seed: int, samples: np.ndarray) -> np.ndarray:
    """Return a number for each sample of a run, int64: dropout masks depend on it."""
    seeded = mix64(np.array([seed], dtype=np.uint64))
    return (mix64(samples.astype(np.uint64) ^ seeded) >> np.uint64(1)).astype(np.int64)


def hold_out(num_documents: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split documents by a hash of their number: (training, held out), int64, each in order.

    With a fraction above 0 and at least two documents, at least one is held out and at least one is not.
    """
    numbers = np.arange(num_documents, dtype=np.uint64)
    hashes = mix64(numbers ^ mix64(np.array([seed + 1], dtype=np.uint64)))
    held = hashes < np.uint64(int(fraction * float(2**64 - 2**12)))
    if fraction > 0 and num_documents > 1 and not held.any():
        held[int(hashes.argmin())] = True
    if num_documents and held.all():
        held[int(hashes.argmax())] = False
    return np.flatnonzero(~held), np.flatnonzero(held)


@dataclass
class Packed:
    """Sequences ready for a model, int64 [sequences, seq_len] each.

    Attributes:
        document_ids: which document of the sequence a position belongs to, from 0.
        position_ids: place within the document, as far as the sequence shows it.
    """

    input_ids: np.ndarray
    labels: np.ndarray
    position_ids: np.ndarray
    document_ids: np.ndarray


@dataclass
class _Ring:
    """The documents of one epoch in their order, and where each begins."""

    epoch: int
    order: np.ndarray
    ends: np.ndarray
    sequence_order: np.ndarray | None = field(default=None)

    @property
    def total(self) -> int:
        return int(self.ends[-1])


class PackedSequences:
    """An endless row of training sequences; sequence n is a pure function of (documents, seed, n)."""

    def __init__(self, documents: Documents, members: np.ndarray, seq_len: int, seed: int) -> None:
        self.documents, self.members, self.seq_len, self.seed = documents, members, seq_len, seed
        self.num_tokens = int(documents.lengths[members].sum())
        self._rings: dict[int, _Ring] = {}

    @property
    def per_epoch(self) -> int:
        """Return the sequences of one epoch."""
        return -(-self.num_tokens // self.seq_len)

    def _ring(self, epoch: int) -> _Ring:
        if epoch not in self._rings:
            generator = np.random.Generator(np.random.Philox(key=self.seed + (epoch << 32)))
            order = self.members[generator.permutation(len(self.members))]
            ends = np.cumsum(self.documents.lengths[order])
            ring = _Ring(epoch, order, ends, generator.permutation(self.per_epoch))
            self._rings = {number: old for number, old in self._rings.items() if number >= epoch - 1}
            self._rings[epoch] = ring
        return self._rings[epoch]

    def pack(self, numbers: Sequence[int]) -> Packed:
        """Return the sequences with the given numbers (counted over all epochs)."""
        rows = []
        for number in numbers:
            ring = self._ring(number // self.per_epoch)
            assert ring.sequence_order is not None
            rows.append(self._window(ring, int(ring.sequence_order[number % self.per_epoch])))
        return _stack(rows)

    def _window(self, ring: _Ring, place: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (tokens [L + 1], document of each label [L]) of one place in the ring."""
        start = place * self.seq_len
        owners = np.empty(self.seq_len, dtype=np.int64)
        tokens = np.empty(self.seq_len + 1, dtype=np.int64)
        tokens[0] = self._read(ring, (start - 1) % ring.total, 1)[0][0]
        filled = 0
        while filled < self.seq_len:
            piece, owner = self._read(ring, (start + filled) % ring.total, self.seq_len - filled)
            tokens[1 + filled : 1 + filled + len(piece)] = piece
            owners[filled : filled + len(piece)] = owner
            filled += len(piece)
        return tokens, owners

    def _read(self, ring: _Ring, position: int, count: int) -> tuple[np.ndarray, int]:
        """Return (up to `count` tokens from one document, its place in the order)."""
        place = int(np.searchsorted(ring.ends, position, side="right"))
        document = int(ring.order[place])
        start = position - (int(ring.ends[place]) - int(self.documents.lengths[document]))
        return self.documents.tokens(document, start, start + count), place


def _stack(rows: list[tuple[np.ndarray, np.ndarray]]) -> Packed:
    tokens = np.stack([row[0] for row in rows])
    owners = np.stack([row[1] for row in rows])
    begins = np.ones_like(owners, dtype=bool)
    begins[:, 1:] = owners[:, 1:] != owners[:, :-1]
    places = np.broadcast_to(np.arange(owners.shape[1]), owners.shape)
    position_ids = places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)
    return Packed(tokens[:, :-1], tokens[:, 1:], position_ids, np.cumsum(begins, axis=1) - 1)


def choose_validation(lengths: np.ndarray, members: np.ndarray, max_tokens: int) -> np.ndarray:
    """Return which held-out documents are used, in order.

    Whole documents, so that their bytes are known: taken in the order of a hash until `max_tokens` are reached (0
    takes all); one that would more than double the amount is left out, unless there is no other.
    """
    if not max_tokens:
        return members
    chosen: list[int] = []
    total = 0
    for document in members[np.argsort(mix64(members), kind="stable")]:
        length = int(lengths[document])
        if total >= max_tokens:
            break
        if total + length <= 2 * max_tokens:
            chosen.append(int(document))
            total += length
    if not chosen:
        chosen = [int(members[int(lengths[members].argmin())])]
    return np.array(sorted(chosen), dtype=np.int64)


def pack_validation(
    documents: Any, members: np.ndarray, seq_len: int, max_tokens: int, eos_id: int, ignore_index: int
) -> tuple[Packed, int, int]:
    """Pack held-out documents, each token a label once, the last sequence padded.

    Args:
        max_tokens: see `choose_validation`.

    Returns:
        (sequences, tokens, UTF-8 bytes of their text). Padding has labels of `ignore_index` and its own document.
    """
    members = choose_validation(documents.lengths, members, max_tokens)
    total = int(documents.lengths[members].sum())
    stream = np.full(-(-total // seq_len) * seq_len + 1, eos_id, dtype=np.int64)
    owners = np.full(len(stream) - 1, -1, dtype=np.int64)
    filled = 0
    for number, document in enumerate(members):
        ids = documents.tokens(int(document))
        stream[1 + filled : 1 + filled + len(ids)] = ids
        owners[filled : filled + len(ids)] = number
        filled += len(ids)
    rows = [
        (stream[start : start + seq_len + 1], owners[start : start + seq_len])
        for start in range(0, len(stream) - 1, seq_len)
    ]
    packed = _stack(rows)
    padding = np.stack([row[1] for row in rows]) < 0
    packed.labels = np.where(padding, ignore_index, packed.labels)
    return packed, total, int(documents.num_bytes[members].sum())
