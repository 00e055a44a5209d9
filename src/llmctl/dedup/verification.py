"""Decide candidate pairs: exact Jaccard similarity of shingle sets, and of paragraphs weighted by their lengths."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmctl.dedup.candidates import PAIRS_FOLDER
from llmctl.dedup.index import Index, IndexFile
from llmctl.dedup.signatures import save_state
from llmctl.runtime.pool import Unit, UnitResult
from llmctl.text.compile import inline_kernel, kernel

EDGES_FOLDER = "_state/edges"
EDGE_TYPE = np.dtype([("low", np.uint32), ("high", np.uint32), ("similarity", np.float64)])
# A pair whose signatures agree in fewer places than the threshold, less this many standard deviations, is not
# compared further. Its similarity reaches the threshold with a probability below 1e-4 (3.2e-5 for a normal
# distribution); this can only leave a duplicate in, never remove a document.
DEVIATIONS = 4.0
_PAIRS_AT_ONCE = 32_768


@kernel
def count_agreements(signatures, low, high, low_sizes, high_sizes, threshold):
    """Return in how many places the signatures of each pair agree; -1 where the set sizes alone rule the pair out.

    Args:
        signatures: uint32 of shape [documents, num_perm].
        low, high: int64, rows of `signatures` of each pair.
        low_sizes, high_sizes: int64, sizes of the shingle sets of each pair.
        threshold: Jaccard similarity that is at most min(size) / max(size).
    """
    agreements = np.empty(len(low), np.int64)
    width = signatures.shape[1]
    for pair in range(len(low)):
        small = min(low_sizes[pair], high_sizes[pair])
        large = max(low_sizes[pair], high_sizes[pair])
        if small < threshold * large * (1.0 - 1e-12):
            agreements[pair] = -1
            continue
        one, two = signatures[low[pair]], signatures[high[pair]]
        count: Any = 0
        for k in range(width):
            count += np.int64(one[k] == two[k])
        agreements[pair] = count
    return agreements


@kernel
def jaccard_of_sets(values, offsets, low, high, threshold):
    """Return the exact Jaccard similarity of pairs of sorted sets, -1 where it is below the threshold.

    Args:
        values: uint64, all sets one after the other, each ascending and without repetitions.
        offsets: int64 of shape [sets + 1].
        low, high: int64, the two sets of each pair.
    """
    similarities = np.empty(len(low), np.float64)
    for pair in range(len(low)):
        one, one_end = offsets[low[pair]], offsets[low[pair] + 1]
        two, two_end = offsets[high[pair]], offsets[high[pair] + 1]
        total = (one_end - one) + (two_end - two)
        # inter / (total - inter) >= threshold needs at most this many values that stand in one set alone.
        allowed = total - 2 * np.int64(math.floor(threshold * total / (1.0 + threshold) - 1e-6))
        shared = 0
        while one < one_end and two < two_end and allowed >= 0:
            a, b = values[one], values[two]
            if a == b:
                shared += 1
                one += 1
                two += 1
            elif a < b:
                one += 1
                allowed -= 1
            else:
                two += 1
                allowed -= 1
        union = total - shared
        similarity = shared / union if union else 0.0
        similarities[pair] = similarity if allowed >= 0 and similarity >= threshold else -1.0
    return similarities


@inline_kernel
def _weighted_jaccard(one, one_weights, two, two_weights):
    order_one, order_two = np.argsort(one, kind="mergesort"), np.argsort(two, kind="mergesort")
    total: Any = 0
    shared: Any = 0
    for weight in one_weights:
        total += np.int64(weight)
    for weight in two_weights:
        total += np.int64(weight)
    place_one, place_two = 0, 0
    while place_one < len(one) and place_two < len(two):
        a, b = one[order_one[place_one]], two[order_two[place_two]]
        if a == b:
            shared += np.int64(one_weights[order_one[place_one]])
            place_one += 1
            place_two += 1
        elif a < b:
            place_one += 1
        else:
            place_two += 1
    union = total - shared
    return shared / union if union else 0.0


@inline_kernel
def _stands_in_other_order(one, two):
    """Tell whether the paragraphs that both have (the n-th of equal ones with the n-th) stand in another order."""
    order_one, order_two = np.argsort(one, kind="mergesort"), np.argsort(two, kind="mergesort")
    partner = np.full(len(one), -1, np.int64)
    place_one, place_two = 0, 0
    while place_one < len(one) and place_two < len(two):
        a, b = one[order_one[place_one]], two[order_two[place_two]]
        if a == b:
            partner[order_one[place_one]] = order_two[place_two]
            place_one += 1
            place_two += 1
        elif a < b:
            place_one += 1
        else:
            place_two += 1
    last: Any = -1
    for place in partner:
        if place >= 0:
            if place < last:
                return True
            last = place
    return False


@kernel
def reordered_similarity(values, weights, offsets, low, high, threshold):
    """Return the length-weighted Jaccard similarity of the paragraphs of pairs, -1 where the pair is no re-ordering.

    Sum over paragraphs of the smaller count times length, divided by the sum of the larger count times length. A pair
    counts only if this is above the threshold and the paragraphs in common stand in another order.

    Args:
        values: uint64, paragraph hashes of all documents in the order in which they stand.
        weights: uint32, their lengths.
        offsets: int64 of shape [documents + 1].
        low, high: int64, the two documents of each pair.
    """
    similarities = np.empty(len(low), np.float64)
    for pair in range(len(low)):
        one = values[offsets[low[pair]] : offsets[low[pair] + 1]]
        two = values[offsets[high[pair]] : offsets[high[pair] + 1]]
        similarity = _weighted_jaccard(
            one,
            weights[offsets[low[pair]] : offsets[low[pair] + 1]],
            two,
            weights[offsets[high[pair]] : offsets[high[pair] + 1]],
        )
        if similarity > threshold and _stands_in_other_order(one, two):
            similarities[pair] = similarity
        else:
            similarities[pair] = -1.0
    return similarities


class Verifier:
    """Compares documents by number.

    Args:
        index: the shingle index of all documents.
        threshold, reordered_threshold: as in `DedupConfig`.
        memory: bytes for the sets that are in memory at a time.
    """

    def __init__(self, index: Index, threshold: float, reordered_threshold: float, memory: int) -> None:
        self.index = index
        self.threshold = threshold
        self.reordered_threshold = reordered_threshold
        self.memory = memory

    def fuzzy(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return the exact similarity of each pair of documents, -1 where it is below the threshold."""
        similarities = np.full(len(low), -1.0)
        for begin in range(0, len(low), _PAIRS_AT_ONCE):
            chosen = slice(begin, begin + _PAIRS_AT_ONCE)
            likely = np.flatnonzero(self._likely(low[chosen], high[chosen])) + begin
            for group in self._groups("shingles", low[likely], high[likely]):
                documents, rows = np.unique(
                    np.concatenate([low[likely[group]], high[likely[group]]]), return_inverse=True
                )
                values, offsets = self.index.lists("shingles", documents)
                half = len(rows) // 2
                similarities[likely[group]] = jaccard_of_sets(values, offsets, rows[:half], rows[half:], self.threshold)
        return similarities

    def _likely(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        documents, rows = np.unique(np.concatenate([low, high]), return_inverse=True)
        half = len(low)
        sizes = self.index.list_sizes("shingles", documents)
        signatures = self.index.signatures(documents)
        agreements = count_agreements(
            signatures, rows[:half], rows[half:], sizes[rows[:half]], sizes[rows[half:]], self.threshold
        )
        return agreements >= fewest_agreements(self.threshold, signatures.shape[1])

    def reordered(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return the similarity by paragraphs of each pair of documents, -1 where the pair is no re-ordering."""
        similarities = np.full(len(low), -1.0)
        for group in self._groups("paragraphs", low, high):
            documents, rows = np.unique(np.concatenate([low[group], high[group]]), return_inverse=True)
            values, offsets = self.index.lists("paragraphs", documents)
            weights, _ = self.index.lists("paragraph_weights", documents)
            half = len(rows) // 2
            similarities[group] = reordered_similarity(
                values, weights, offsets, rows[:half], rows[half:], self.reordered_threshold
            )
        return similarities

    def _groups(self, name: str, low: np.ndarray, high: np.ndarray) -> Iterator[np.ndarray]:
        """Yield runs of pairs whose lists fit into the memory allowed."""
        if not len(low):
            return
        documents, rows = np.unique(np.concatenate([low, high]), return_inverse=True)
        sizes = self.index.list_sizes(name, documents)[rows]
        half = len(low)
        # An upper bound: a document that several pairs share is counted for each of them.
        needed = np.cumsum(8 * (sizes[:half] + sizes[half:]))
        groups = needed // max(self.memory, 1)
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        for begin, end in zip(starts, np.append(starts[1:], half), strict=True):
            yield np.arange(begin, end)


class HeldDocuments:
    """Compares documents whose signatures and shingle sets are in memory, one against many.

    Args:
        index: the shingle index of all documents.
        documents: int64, ascending numbers of the documents to hold.
        threshold: as in `DedupConfig`.
    """

    def __init__(self, index: Index, documents: np.ndarray, threshold: float) -> None:
        self.documents = documents
        self.threshold = threshold
        self.signatures = index.signatures(documents)
        self.values, self.offsets = index.lists("shingles", documents)
        self.sizes = np.diff(self.offsets)
        self.fewest = fewest_agreements(threshold, self.signatures.shape[1])

    @staticmethod
    def bytes_needed(index: Index, documents: np.ndarray, num_perm: int) -> int:
        """Return the memory that holding these documents takes."""
        return 4 * num_perm * len(documents) + 8 * int(index.list_sizes("shingles", documents).sum())

    def fuzzy(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return the exact similarity of each pair of documents, -1 where it is below the threshold."""
        one, two = np.searchsorted(self.documents, low), np.searchsorted(self.documents, high)
        agreements = count_agreements(self.signatures, one, two, self.sizes[one], self.sizes[two], self.threshold)
        similarities = np.full(len(low), -1.0)
        likely = np.flatnonzero(agreements >= self.fewest)
        if len(likely):
            similarities[likely] = jaccard_of_sets(self.values, self.offsets, one[likely], two[likely], self.threshold)
        return similarities


def fewest_agreements(threshold: float, num_perm: int) -> int:
    """Return the agreements of two signatures below which a pair is not compared further (see `DEVIATIONS`)."""
    if threshold >= 1.0:
        return num_perm
    deviation = math.sqrt(threshold * (1.0 - threshold) / num_perm)
    return max(0, math.floor((threshold - DEVIATIONS * deviation) * num_perm))


@dataclass(frozen=True)
class VerifyContext:
    """What pairs are decided with.

    Attributes:
        root: the output folder.
        files: the index, in order.
        pairs: names of the pair files to read.
        num_fixed: so many of the first documents belong to another corpus and are not compared with each other.
        memory: bytes in each worker.
    """

    root: str
    files: tuple[IndexFile, ...]
    pairs: tuple[str, ...]
    num_fixed: int
    threshold: float
    reordered_threshold: float
    memory: int


def verify_range(unit: Unit, context: VerifyContext) -> UnitResult:
    """Decide all pairs whose first document is in a range. ``unit.payload`` is (method, first, end)."""
    method, first, end = unit.payload
    bounds = np.array([first << 32, end << 32], np.uint64)
    parts = [np.zeros(0, np.uint64)]
    for name in context.pairs:
        keys = np.load(Path(context.root, PAIRS_FOLDER, f"{name}.npy"), mmap_mode="r")
        begin, stop = np.searchsorted(keys, bounds)
        parts.append(np.asarray(keys[begin:stop]))
    keys = np.unique(np.concatenate(parts))
    keys = keys[(keys & np.uint64(0xFFFFFFFF)) >= context.num_fixed]
    low, high = (keys >> np.uint64(32)).astype(np.int64), (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    verifier = Verifier(Index(context.files), context.threshold, context.reordered_threshold, context.memory)
    similarities = (verifier.fuzzy if method == "fuzzy" else verifier.reordered)(low, high)
    passed = np.flatnonzero(similarities >= 0)
    edges = np.empty(len(passed), EDGE_TYPE)
    edges["low"], edges["high"], edges["similarity"] = low[passed], high[passed], similarities[passed]
    files = [save_state(Path(context.root), f"{EDGES_FOLDER}/{unit.name}.npy", edges)]
    return UnitResult(files, {"candidates": len(keys), "verified": len(edges)})


def plan_ranges(pairs: list[np.ndarray], num_documents: int, pairs_at_once: int) -> list[tuple[int, int]]:
    """Cut the documents into ranges with about `pairs_at_once` candidate pairs each, by the pairs' first documents.

    Args:
        pairs: sorted keys ``low << 32 | high``.
    """
    step = max(1, num_documents // 4096)
    edges = np.append(np.arange(0, num_documents, step, dtype=np.uint64), np.uint64(num_documents))
    counts = np.zeros(len(edges) - 1, np.int64)
    for keys in pairs:
        counts += np.diff(np.searchsorted(keys, edges << np.uint64(32)))
    ranges, first, filled = [], 0, 0
    for position, count in enumerate(counts):
        if filled and filled + count > pairs_at_once:
            ranges.append((first, int(edges[position])))
            first, filled = int(edges[position]), 0
        filled += int(count)
    if filled:
        ranges.append((first, num_documents))
    return ranges
