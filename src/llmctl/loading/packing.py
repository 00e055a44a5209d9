"""Cut documents into sequences of one length, anew in every epoch, in an order that depends on the seed alone.

`concat`: the documents of an epoch, shuffled, form one row of tokens that is cut every `seq_len` tokens. `best_fit`:
only documents longer than a sequence are cut; the rest are put together so that little padding is left (best-fit
decreasing; Ding et al. 2024, "Fewer Truncations Improve Language Modeling"). Each token is a label once an epoch in
both. Sequences are shuffled by a permutation that needs no table. An epoch holds 16 bytes a document in memory, with
`best_fit` about 32.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from llmctl.loading.batches import Documents, Pieces, ends_of, ranges
from llmctl.loading.kernels import best_fit
from llmctl.loading.order import key_of, permuted

Packing = Literal["concat", "best_fit"]
_DOCUMENTS, _SEQUENCES = 1, 2
# Epochs are prepared here, one after the other, while batches of the one before are made.
_POOL = ThreadPoolExecutor(1, thread_name_prefix="epoch")


@dataclass(frozen=True)
class PackingFacts:
    """What packing does to the documents of an epoch.

    Attributes:
        cut_documents: documents that do not stand whole in one sequence; `cuttable`: those that could (not longer
            than a sequence).
        cut_cuttable: documents that are cut although they would fit.
        padding: positions without a label.
    """

    documents: int
    tokens: int
    sequences: int
    cut_documents: int
    cut_cuttable: int
    cuttable: int
    padding: int

    @property
    def truncated_share(self) -> float:
        """Return the share of the documents that would fit into a sequence and are cut all the same."""
        return self.cut_cuttable / self.cuttable if self.cuttable else 0.0

    @property
    def padded_share(self) -> float:
        """Return the share of all positions that have no label."""
        return self.padding / (self.padding + self.tokens) if self.tokens else 0.0


class ConcatEpoch:
    """One epoch of `concat`."""

    def __init__(self, lengths: np.ndarray, order: np.ndarray, seq_len: int) -> None:
        self.lengths, self.order, self.seq_len = lengths, order, seq_len
        self.ends = np.cumsum(lengths[order], dtype=np.int64)
        self.total = int(self.ends[-1])
        self.num_sequences = -(-self.total // seq_len)

    def pieces(self, places: np.ndarray) -> Pieces:
        """Return the pieces of the sequences at the given places."""
        begins = places * self.seq_len
        stops = np.minimum(begins + self.seq_len, self.total)
        firsts = np.searchsorted(self.ends, begins, side="right")
        counts = np.searchsorted(self.ends, stops, side="left") - firsts + 1
        index = ranges(firsts, counts)
        documents = self.order[index]
        document_begins = self.ends[index] - self.lengths[documents]
        piece_begins = np.maximum(np.repeat(begins, counts), document_begins)
        piece_stops = np.minimum(np.repeat(stops, counts), self.ends[index])
        return Pieces(ends_of(counts), documents, piece_begins - document_begins, piece_stops - piece_begins)

    def facts(self) -> PackingFacts:
        """Count what is cut and padded."""
        sizes = self.lengths[self.order]
        cut = (self.ends - sizes) // self.seq_len != np.maximum(self.ends - 1, 0) // self.seq_len
        fits = sizes <= self.seq_len
        padding = self.num_sequences * self.seq_len - self.total
        return PackingFacts(
            len(self.order),
            self.total,
            self.num_sequences,
            int(cut.sum()),
            int((cut & fits).sum()),
            int(fits.sum()),
            padding,
        )


class BestFitEpoch:
    """One epoch of `best_fit`."""

    def __init__(self, lengths: np.ndarray, order: np.ndarray, seq_len: int) -> None:
        self.lengths, self.order, self.seq_len = lengths, order, seq_len
        self.packed = Pieces(*best_fit(order, lengths, seq_len))
        self.num_sequences = self.packed.num_sequences

    def pieces(self, places: np.ndarray) -> Pieces:
        """Return the pieces of the sequences at the given places."""
        return self.packed.take(places)

    def facts(self) -> PackingFacts:
        """Count what is cut and padded."""
        sizes = self.lengths[self.order]
        total = int(sizes.sum())
        fits = sizes <= self.seq_len
        padding = self.num_sequences * self.seq_len - total
        return PackingFacts(len(self.order), total, self.num_sequences, int((~fits).sum()), 0, int(fits.sum()), padding)


class SequenceStream:
    """An endless row of training sequences; sequence n is a pure function of (documents, seed, n).

    Args:
        members: documents of the stream.
        stream: a number that sets it apart from other streams of the same seed.
    """

    def __init__(
        self,
        documents: Documents,
        members: np.ndarray,
        seq_len: int,
        seed: int,
        *,
        packing: Packing = "concat",
        stream: int = 0,
    ) -> None:
        self.members = np.asarray(members, dtype=np.int64)
        self.seq_len, self.seed, self.stream = seq_len, seed, stream
        self._lengths = np.asarray(documents.lengths)
        self._kind: Any = BestFitEpoch if packing == "best_fit" else ConcatEpoch
        self.num_tokens = int(documents.lengths[self.members].sum())
        self._epochs: dict[int, Future[Any]] = {}
        self._last_epoch: int | None = None
        # The number of sequences is the same in every epoch: it depends on lengths, not on their order.
        self.per_epoch = -(-self.num_tokens // seq_len)
        if packing == "best_fit" and self.num_tokens:
            self.per_epoch = self._epoch(0).num_sequences

    def limit(self, sequences: int) -> None:
        """Say how many sequences will be asked for, so that no epoch is prepared that is not used."""
        self._last_epoch = max(0, sequences - 1) // max(self.per_epoch, 1)

    def facts(self) -> PackingFacts:
        """Return what packing does to the documents, in the first epoch."""
        facts: PackingFacts = self._epoch(0).facts()
        return facts

    def _epoch(self, number: int) -> Any:
        return self._prepared(number).result()

    def _prepared(self, number: int) -> Future[Any]:
        if number not in self._epochs:
            self._epochs[number] = _POOL.submit(self._make, number)
        return self._epochs[number]

    def _make(self, number: int) -> Any:
        key = key_of(self.seed, self.stream, number, _DOCUMENTS)
        numbers = np.arange(len(self.members), dtype=np.int64)
        return self._kind(self._lengths, self.members[permuted(numbers, len(numbers), key)], self.seq_len)

    def places(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (epoch, place in the epoch) of sequences, int64 [sequences] each."""
        epochs, ordinals = np.divmod(numbers, self.per_epoch)
        places = np.empty_like(ordinals)
        for epoch, chosen in by_value(epochs):
            key = key_of(self.seed, self.stream, epoch, _SEQUENCES)
            places[chosen] = permuted(ordinals[chosen], self.per_epoch, key)
        return epochs, places

    def pieces(self, numbers: np.ndarray) -> list[tuple[np.ndarray, Pieces]]:
        """Return the pieces of sequences, as (indices into `numbers`, pieces) for each epoch they lie in."""
        numbers = np.asarray(numbers, dtype=np.int64)
        epochs, places = self.places(numbers)
        found = []
        for epoch, chosen in by_value(epochs):
            found.append((chosen, self._epoch(epoch).pieces(places[chosen])))
        self._look_ahead(int(epochs.max()))
        return found

    def _look_ahead(self, epoch: int) -> None:
        """Forget epochs that are over, and prepare the next in the background before it is asked for."""
        for number in [number for number in self._epochs if number < epoch - 1]:
            del self._epochs[number]
        if self._last_epoch is None or epoch < self._last_epoch:
            self._prepared(epoch + 1)


def by_value(values: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return (value, where it stands) for each value that occurs."""
    low, high = int(values.min()), int(values.max())
    if low == high:
        return [(low, np.arange(len(values)))]
    return [(int(value), np.flatnonzero(values == value)) for value in np.unique(values)]
