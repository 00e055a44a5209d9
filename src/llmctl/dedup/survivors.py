"""Decide who stays: greedily, in one total order, so that every removed document has a survivor it was compared with.

The order is: priority of the source, quality, length (longer first), id, number of the document. A document stays
unless it was found similar to a better one that stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from llmctl.dedup.index import Index
from llmctl.dedup.verification import HeldDocuments, Verifier
from llmctl.text.compile import kernel

EXACT, FUZZY, REORDERED, TEMPLATE, EMPTY_TEXT = 0, 1, 2, 3, 4
REASONS = ("exact", "fuzzy", "reordered", "template", "empty")


@dataclass
class Decisions:
    """The removed documents.

    Attributes:
        documents: int64 document numbers, ascending.
        survivors: int64, for whom each was removed; -1 for empty documents.
        methods: uint8, index into `REASONS`.
        similarities: float64; NaN for empty documents.
    """

    documents: np.ndarray
    survivors: np.ndarray
    methods: np.ndarray
    similarities: np.ndarray

    def sorted(self) -> Decisions:
        """Return the decisions in the order of the documents' numbers."""
        order = np.argsort(self.documents, kind="stable")
        return Decisions(self.documents[order], self.survivors[order], self.methods[order], self.similarities[order])


def join_decisions(parts: list[Decisions]) -> Decisions:
    """Return several decisions as one, in the order of the documents' numbers."""
    return Decisions(
        np.concatenate([part.documents for part in parts]),
        np.concatenate([part.survivors for part in parts]),
        np.concatenate([part.methods for part in parts]),
        np.concatenate([part.similarities for part in parts]),
    ).sorted()


def best_first(index: Index, documents: np.ndarray, num_fixed: int) -> np.ndarray:
    """Return the order of documents, best first, as positions in `documents` (ascending numbers).

    Args:
        num_fixed: so many of the first documents belong to a corpus that stays as it is; they are the best.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.table(
        {
            "new": documents >= num_fixed,
            "priority": index.take("priority", documents),
            "quality": index.take("quality", documents),
            "length": index.take("length", documents),
            "id": index.take_strings("id", documents),
            "document": documents,
        }
    )
    keys = [
        ("new", "ascending"),
        ("priority", "ascending"),
        ("quality", "descending"),
        ("length", "descending"),
        ("id", "ascending"),
        ("document", "ascending"),
    ]
    return pc.sort_indices(table, sort_keys=keys).to_numpy().astype(np.int64)


def group_equal(index: Index, candidates: np.ndarray, num_fixed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Group documents with the same normalised text.

    Args:
        candidates: bool of shape [documents], which ones take part.
        num_fixed: see `best_first`.

    Returns:
        (documents, representatives): int64 numbers of the documents that have a better equal, ascending, and of the
        best of each one's group.
    """
    documents = np.flatnonzero(candidates)
    high = index.column("hash_high")[documents]
    order = np.argsort(high, kind="stable")
    high = high[order]
    same = np.zeros(len(high) + 1, np.bool_)
    same[1:-1] = high[1:] == high[:-1]
    repeated = np.sort(documents[order[same[1:] | same[:-1]]])
    if not len(repeated):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    ranks = np.empty(len(repeated), np.int64)
    ranks[best_first(index, repeated, num_fixed)] = np.arange(len(repeated))
    high, low = index.take("hash_high", repeated), index.take("hash_low", repeated)
    order = np.lexsort((ranks, low, high))
    high, low, members = high[order], low[order], repeated[order]
    starts = np.concatenate([[True], (high[1:] != high[:-1]) | (low[1:] != low[:-1])])
    representatives = members[starts][np.cumsum(starts) - 1]
    others = np.flatnonzero(members != representatives)
    others = others[np.argsort(members[others])]
    return members[others], representatives[others]


@kernel
def _decide(begin, end, edge_starts, better, alive, chosen):
    for place in range(begin, end):
        for edge in range(edge_starts[place], edge_starts[place + 1]):
            if alive[better[edge]]:
                alive[place] = False
                chosen[place] = edge
                break


@dataclass
class Edges:
    """Verified pairs of documents.

    Attributes:
        low, high: int64 document numbers.
        similarities: float64.
        methods: uint8, index into `REASONS`.
    """

    low: np.ndarray
    high: np.ndarray
    similarities: np.ndarray
    methods: np.ndarray


@dataclass
class LargeBuckets:
    """Buckets whose pairs were not listed.

    Attributes:
        method: index into `REASONS`.
        members: int64 document numbers; `ends`: where each bucket ends.
    """

    method: int
    members: np.ndarray
    ends: np.ndarray


def choose_survivors(
    index: Index,
    edges: Edges,
    buckets: list[LargeBuckets],
    verifier: Verifier,
    max_comparisons: int,
    num_fixed: int = 0,
) -> Decisions:
    """Go through all documents that have a candidate, best first, and remove what resembles one that stays.

    In a large bucket a document is compared with the best `max_comparisons` of the bucket that stay; so a bucket of
    alike documents costs one comparison a document, and one of unlike documents never more than that many.

    Args:
        num_fixed: so many of the first documents stay whatever they resemble.
    """
    involved = np.unique(np.concatenate([edges.low, edges.high, *[group.members for group in buckets]]))
    if not len(involved):
        nothing = np.zeros(0, np.int64)
        return Decisions(nothing, nothing, nothing.astype(np.uint8), nothing.astype(np.float64))
    order = best_first(index, involved, num_fixed)
    place_of = np.empty(len(involved), np.int64)
    place_of[order] = np.arange(len(involved))

    def places(documents: np.ndarray) -> np.ndarray:
        return place_of[np.searchsorted(involved, documents)]

    one, two = places(edges.low), places(edges.high)
    better, worse = np.minimum(one, two), np.maximum(one, two)
    by_worse = np.lexsort((edges.methods, better, worse))
    better, worse = better[by_worse], worse[by_worse]
    edge_starts = np.searchsorted(worse, np.arange(len(involved) + 1))
    alive = np.ones(len(involved), np.bool_)
    chosen = np.full(len(involved), -1, np.int64)
    survivors = np.full(len(involved), -1, np.int64)
    methods = np.zeros(len(involved), np.uint8)
    similarities = np.zeros(len(involved), np.float64)

    numbers = involved[order]
    crowd = _Crowd(numbers, verifier, _held_documents(index, buckets, verifier), max_comparisons)
    done = 0
    for place, own in _bucket_lists(buckets, places):
        _decide(done, place + 1, edge_starts, better, alive, chosen)
        done = place + 1
        if not alive[place]:
            continue
        found = crowd.compare(place, own) if numbers[place] >= num_fixed else None
        if found is None:
            crowd.add(place, own)
        else:
            alive[place] = False
            survivors[place], methods[place], similarities[place] = found
    _decide(done, len(involved), edge_starts, better, alive, chosen)

    by_edge = np.flatnonzero(chosen >= 0)
    taken = by_worse[chosen[by_edge]]
    survivors[by_edge] = better[chosen[by_edge]]
    methods[by_edge], similarities[by_edge] = edges.methods[taken], edges.similarities[taken]
    removed = np.flatnonzero(~alive)
    return Decisions(numbers[removed], numbers[survivors[removed]], methods[removed], similarities[removed]).sorted()


def _bucket_lists(
    buckets: list[LargeBuckets], places: Callable[[np.ndarray], np.ndarray]
) -> list[tuple[int, list[tuple[int, int]]]]:
    """Return for each document in a large bucket, best first, its place and its (bucket, method)s."""
    lists: dict[int, list[tuple[int, int]]] = {}
    number = 0
    for group in buckets:
        begin = 0
        for end in group.ends.tolist():
            for place in places(group.members[begin:end]).tolist():
                lists.setdefault(place, []).append((number, group.method))
            begin = end
            number += 1
    return sorted(lists.items())


def _held_documents(index: Index, buckets: list[LargeBuckets], verifier: Verifier) -> HeldDocuments | None:
    """Load what large buckets are compared by, if it fits into the memory allowed."""
    members = [group.members for group in buckets if group.method == FUZZY]
    if not members:
        return None
    documents = np.unique(np.concatenate(members))
    width = index.signatures(documents[:1]).shape[1]
    if HeldDocuments.bytes_needed(index, documents, width) > verifier.memory:
        return None
    return HeldDocuments(index, documents, verifier.threshold)


class _Crowd:
    """The documents of large buckets that stay so far, and the comparison of one more with them."""

    # The best of those that stay are tried first: in a bucket of alike documents one of them is the answer.
    _AT_FIRST = 16

    def __init__(
        self, numbers: np.ndarray, verifier: Verifier, held: HeldDocuments | None, max_comparisons: int
    ) -> None:
        self.numbers = numbers
        self.max_comparisons = max_comparisons
        self.staying: dict[int, list[int]] = {}
        self.methods: list[tuple[int, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = [
            (FUZZY, held.fuzzy if held is not None else verifier.fuzzy),
            (REORDERED, verifier.reordered),
        ]

    def add(self, place: int, own: list[tuple[int, int]]) -> None:
        """Note that a document stays in its buckets."""
        for bucket, _ in own:
            staying = self.staying.setdefault(bucket, [])
            if len(staying) < self.max_comparisons:
                staying.append(place)

    def compare(self, place: int, own: list[tuple[int, int]]) -> tuple[int, int, float] | None:
        """Compare one document with those that stay in its large buckets.

        Returns:
            (place, method, similarity) of the best that it resembles, or None.
        """
        for method, decide in self.methods:
            others = np.array(
                sorted({other for bucket, kind in own if kind == method for other in self.staying.get(bucket, ())}),
                np.int64,
            )
            for some in (others[: self._AT_FIRST], others[self._AT_FIRST :]):
                if not len(some):
                    continue
                similarities = decide(np.full(len(some), self.numbers[place]), self.numbers[some])
                passed = np.flatnonzero(similarities >= 0)
                if len(passed):
                    return int(some[passed[0]]), method, float(similarities[passed[0]])
        return None
