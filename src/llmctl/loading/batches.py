"""Make batches of pieces of documents: from addresses in mapped shards to arrays that a model takes.

Inputs begin with the EOS of the document before: the first token of a document is predicted from EOS, and nothing is
predicted across documents.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from llmctl.loading.kernels import check_records, fill

if TYPE_CHECKING:
    from llmctl.artifacts.shards import Locations

# Batches whose memory is kept for others: the one that is trained on, the next, and one that is just given back.
MAX_BUFFERS = 4


class Documents(Protocol):
    """What the loader needs of a `shards` artifact; `TokenDocuments` has it."""

    lengths: np.ndarray
    num_bytes: np.ndarray
    source_ids: np.ndarray
    eos_id: int
    dtype: np.dtype[Any]

    @property
    def sources(self) -> Any:
        """Return the names of the sources."""

    def tokens(self, document: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return ids of a document; raises RunFailed if its record is damaged."""

    def locations(self, documents: np.ndarray) -> Locations:
        """Return where records lie in memory."""

    def unverified(self, documents: np.ndarray) -> np.ndarray:
        """Return documents whose checksums are to be checked."""

    def mark_verified(self, documents: np.ndarray) -> None:
        """Take note of checksums that hold."""


@dataclass(frozen=True)
class Pieces:
    """Ranges of documents that sequences are made of, int64 each; the pieces of a sequence are neighbours.

    Attributes:
        firsts: first piece of each sequence, and the end [sequences + 1].
        documents, starts, sizes: document of each piece, and its range of tokens.
    """

    firsts: np.ndarray
    documents: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray

    @property
    def num_sequences(self) -> int:
        """Return the number of sequences."""
        return len(self.firsts) - 1

    def take(self, sequences: np.ndarray) -> Pieces:
        """Return some of the sequences, in the order given."""
        counts = self.firsts[sequences + 1] - self.firsts[sequences]
        index = ranges(self.firsts[sequences], counts)
        return Pieces(ends_of(counts), self.documents[index], self.starts[index], self.sizes[index])


def join(parts: list[Pieces]) -> Pieces:
    """Return the sequences of all parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    counts = np.concatenate([np.diff(part.firsts) for part in parts])
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in ("documents", "starts", "sizes")]
    return Pieces(ends_of(counts), *columns)


def ends_of(counts: np.ndarray) -> np.ndarray:
    """Return running sums with a leading 0, int64."""
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)))


def ranges(firsts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return range(first, first + count) of each pair, one after the other."""
    offsets = ends_of(counts)
    return np.arange(offsets[-1], dtype=np.int64) + np.repeat(firsts - offsets[:-1], counts)


@dataclass
class Packed:
    """Sequences ready for a model, int64 [sequences, seq_len] each.

    Attributes:
        labels: -100 where there is nothing to predict (padding).
        document_ids: which document of the sequence a position belongs to, from 0.
        position_ids: place within the document, as far as the sequence shows it.
        source_tokens: int64 [sources], labels of each source.
    """

    input_ids: np.ndarray
    labels: np.ndarray
    position_ids: np.ndarray
    document_ids: np.ndarray
    source_tokens: np.ndarray


class Buffers:
    """Memory for batches, used again once nobody refers to the batch: fresh memory costs more than filling it."""

    def __init__(self) -> None:
        self._kept: list[np.ndarray] = []

    def take(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return an int64 array of any content."""
        for index in range(len(self._kept)):
            # Two references: the list's and the argument's.
            if self._kept[index].shape == shape and sys.getrefcount(self._kept[index]) == 2:
                return self._kept[index]
        array = np.empty(shape, dtype=np.int64)
        self._kept = [*self._kept[-(MAX_BUFFERS - 1) :], array]
        return array


def collate(documents: Documents, pieces: Pieces, seq_len: int, buffers: Buffers | None = None) -> Packed:
    """Return the sequences that pieces describe, each token read straight from the mapped shards.

    Args:
        buffers: where memory of earlier batches may be found.

    Raises:
        RunFailed: a file is cut, or a checksum is wrong (checked at the first use of a document).
    """
    where = documents.locations(pieces.documents)
    _verify(documents, pieces.documents)
    batch = (buffers or Buffers()).take((4, pieces.num_sequences, seq_len))
    width = documents.dtype.itemsize
    fill(pieces.firsts, pieces.starts, pieces.sizes, where.tokens, width, documents.eos_id, batch)
    del where  # the maps were held until here
    sources = documents.source_ids[pieces.documents]
    # Sums of whole numbers below 2**53 are exact in float64.
    counted = np.bincount(sources, weights=pieces.sizes, minlength=len(documents.sources)).astype(np.int64)
    return Packed(batch[0], batch[1], batch[2], batch[3], counted)


def _verify(documents: Documents, wanted: np.ndarray) -> None:
    new = documents.unverified(wanted)
    if not len(new):
        return
    new = np.unique(new)
    where = documents.locations(new)
    sizes = documents.lengths[new] * documents.dtype.itemsize
    if check_records(where.records, where.ends, where.tokens, np.asarray(sizes)) < 0:
        documents.mark_verified(new)
        return
    for document in new:
        documents.tokens(int(document))  # says which record is damaged, and how
