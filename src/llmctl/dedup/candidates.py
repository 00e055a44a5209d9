"""Find the pairs worth comparing: documents under one band hash, or with a rare paragraph in common.

Small buckets give all their pairs. Large ones, where that would be quadratic, are kept as lists of members, and each
member is compared only with the members that stay (`survivors`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmctl.artifacts.files import FileRecord
from llmctl.dedup.index import Index, IndexFile
from llmctl.dedup.signatures import BANDS_FOLDER, save_state
from llmctl.runtime.pool import Unit, UnitResult
from llmctl.text.compile import kernel

PAIRS_FOLDER = "_state/pairs"
BUCKETS_FOLDER = "_state/buckets"
PREFIX_FOLDER = "_state/prefixes"
# Sorting needs the hash, its place and both sorted.
_BYTES_PER_ENTRY = 40


@dataclass(frozen=True)
class CandidateContext:
    """What every band is searched with.

    Attributes:
        root: the output folder.
        blocks: names of the blocks, in order.
        firsts: number of the first document of each block.
        active: path of a bool array; documents that are out already (empty, or equal to a better one) are False.
        memory: bytes for sorting, in each worker.
    """

    root: str
    blocks: tuple[str, ...]
    firsts: tuple[int, ...]
    active: str
    max_bucket: int
    memory: int


@kernel
def _measure_buckets(hashes, max_bucket):
    pairs, members, buckets = 0, 0, 0
    begin = 0
    while begin < len(hashes):
        end = begin + 1
        while end < len(hashes) and hashes[end] == hashes[begin]:
            end += 1
        size = end - begin
        if size > max_bucket:
            members += size
            buckets += 1
        else:
            pairs += size * (size - 1) // 2
        begin = end
    return pairs, members, buckets


@kernel
def _fill_buckets(hashes, documents, max_bucket, pairs, members, ends):
    num_pairs, num_members, num_buckets = 0, 0, 0
    begin = 0
    while begin < len(hashes):
        end = begin + 1
        while end < len(hashes) and hashes[end] == hashes[begin]:
            end += 1
        if end - begin > max_bucket:
            for position in range(begin, end):
                members[num_members] = documents[position]
                num_members += 1
            ends[num_buckets] = num_members
            num_buckets += 1
        else:
            for one in range(begin, end):
                for two in range(one + 1, end):
                    low = np.uint64(min(documents[one], documents[two]))
                    high = np.uint64(max(documents[one], documents[two]))
                    if low != high:
                        pairs[num_pairs] = low << np.uint64(32) | high
                        num_pairs += 1
        begin = end
    return num_pairs


@dataclass
class Buckets:
    """What the buckets of one set of hashes give.

    Attributes:
        pairs: uint64, ``low << 32 | high`` with document numbers, sorted, distinct.
        members: int64 document numbers of large buckets, ascending in each bucket.
        ends: int64, where each large bucket ends in `members`.
    """

    pairs: np.ndarray
    members: np.ndarray
    ends: np.ndarray


def find_buckets(hashes: np.ndarray, documents: np.ndarray, max_bucket: int) -> Buckets:
    """Bring documents with equal hashes together.

    Args:
        hashes: uint64 of shape [n].
        documents: int64 document numbers, of shape [n].
        max_bucket: the largest bucket of which all pairs are wanted.
    """
    order = np.argsort(hashes)
    hashes, documents = hashes[order], documents[order]
    num_pairs, num_members, num_buckets = _measure_buckets(hashes, max_bucket)
    pairs = np.empty(num_pairs, np.uint64)
    members, ends = np.empty(num_members, np.int64), np.empty(num_buckets, np.int64)
    filled = _fill_buckets(hashes, documents, max_bucket, pairs, members, ends)
    begin = 0
    for end in ends:  # argsort is not stable
        members[begin:end].sort()
        begin = end
    return Buckets(np.unique(pairs[:filled]), members, ends)


def _join(parts: list[Buckets]) -> Buckets:
    shifted, base = [], 0
    for part in parts:
        shifted.append(part.ends + base)
        base += len(part.members)
    return Buckets(
        np.unique(np.concatenate([part.pairs for part in parts])),
        np.concatenate([part.members for part in parts]),
        np.concatenate(shifted),
    )


def _save(context: CandidateContext, name: str, found: Buckets) -> UnitResult:
    root = Path(context.root)
    files: list[FileRecord] = [save_state(root, f"{PAIRS_FOLDER}/{name}.npy", found.pairs)]
    files.append(save_state(root, f"{BUCKETS_FOLDER}/{name}-members.npy", found.members))
    files.append(save_state(root, f"{BUCKETS_FOLDER}/{name}-ends.npy", found.ends))
    return UnitResult(files, {"pairs": len(found.pairs), "large_buckets": len(found.ends)})


def num_partitions(entries: int, memory: int) -> int:
    """Return into how many ranges of hashes (a power of two) the entries are cut to be sorted in memory."""
    count = 1
    while entries * _BYTES_PER_ENTRY > memory * count:
        count *= 2
    return count


def _in_partition(hashes: np.ndarray, partition: int, partitions: int) -> np.ndarray:
    if partitions == 1:
        return np.ones(len(hashes), np.bool_)
    return (hashes >> np.uint64(64 - partitions.bit_length() + 1)) == partition


def search_band(unit: Unit, context: CandidateContext) -> UnitResult:
    """Find the candidates of one band (``unit.payload``)."""
    band: int = unit.payload
    active = np.load(context.active, mmap_mode="r")
    partitions = num_partitions(len(active), context.memory)
    parts = []
    for partition in range(partitions):
        hashes, documents = [], []
        for block, first in zip(context.blocks, context.firsts, strict=True):
            column = np.load(Path(context.root, BANDS_FOLDER, f"{block}.npy"), mmap_mode="r")[band]
            rows = np.flatnonzero(active[first : first + len(column)] & _in_partition(column, partition, partitions))
            hashes.append(column[rows])
            documents.append(rows + first)
        parts.append(find_buckets(np.concatenate(hashes), np.concatenate(documents), context.max_bucket))
    return _save(context, unit.name, _join(parts))


# -- paragraphs -------------------------------------------------------------------------------------------------

_FREQUENCY_BITS = 22


@kernel
def _count_hashes(values, table, shift):
    for value in values:
        table[value >> shift] += np.uint32(1)


def paragraph_frequencies(index: Index) -> np.ndarray:
    """Return how often paragraphs occur, by the leading bits of their hashes (collisions only cost time); uint32."""
    table = np.zeros(1 << _FREQUENCY_BITS, np.uint32)
    for _, batch in index.batches():
        _count_hashes(batch.column("paragraphs").flatten().to_numpy(), table, np.uint64(64 - _FREQUENCY_BITS))
    return table


@kernel
def _prefixes(values, weights, offsets, active, table, shift, threshold, hashes, rows):
    filled = 0
    for row in range(len(offsets) - 1):
        begin, end = offsets[row], offsets[row + 1]
        if not active[row] or end - begin < 2:
            continue
        order = np.argsort(values[begin:end])
        count = 0
        own = np.empty(end - begin, np.uint64)
        own_weights = np.empty(end - begin, np.int64)
        total: Any = 0
        for place in order:
            value, weight = values[begin + place], np.int64(weights[begin + place])
            total += weight
            if count and own[count - 1] == value:
                own_weights[count - 1] += weight
            else:
                own[count] = value
                own_weights[count] = weight
                count += 1
        if count < 2:
            continue
        frequency = np.empty(count, np.int64)
        for place in range(count):
            frequency[place] = table[own[place] >> shift]
        # Stable, hence (frequency, hash): one order for all documents.
        rarest = np.argsort(frequency, kind="mergesort")
        rest = total
        for place in rarest:
            if rest <= threshold * total:
                break
            hashes[filled] = own[place]
            rows[filled] = row
            filled += 1
            rest -= own_weights[place]
    return filled


@dataclass(frozen=True)
class PrefixContext:
    """What the rare paragraphs of a block are chosen with."""

    root: str
    active: str
    frequencies: str
    threshold: float


def choose_prefixes(unit: Unit, context: PrefixContext) -> UnitResult:
    """Write the rarest paragraphs of each document of one block, as many as two similar documents must share one of.

    If the paragraphs shared weigh more than ``threshold`` of a document, the rarest of them is among those that weigh
    1 - threshold together with all rarer ones (prefix filtering: Bayardo, Ma, Srikant, "Scaling Up All Pairs
    Similarity Search", 2007). ``unit.payload`` is (index file, number of its first document).
    """
    file: IndexFile
    file, first = unit.payload
    active = np.load(context.active, mmap_mode="r")
    table = np.load(context.frequencies, mmap_mode="r")
    all_hashes, all_documents = [], []
    for begin, batch in Index([file]).batches():
        column = batch.column("paragraphs")
        values, offsets = column.values.to_numpy(), column.offsets.to_numpy()
        weights = batch.column("paragraph_weights").values.to_numpy()
        hashes, rows = np.empty(len(values), np.uint64), np.empty(len(values), np.int64)
        own = np.asarray(active[first + begin : first + begin + batch.num_rows])
        shift = np.uint64(64 - _FREQUENCY_BITS)
        filled = _prefixes(values, weights, offsets, own, table, shift, context.threshold, hashes, rows)
        all_hashes.append(hashes[:filled])
        all_documents.append(rows[:filled] + first + begin)
    root = Path(context.root)
    joined = np.concatenate([np.zeros(0, np.uint64), *all_hashes])
    documents = np.concatenate([np.zeros(0, np.int64), *all_documents]).astype(np.uint64)
    files = [save_state(root, f"{PREFIX_FOLDER}/{unit.name}.npy", np.stack([joined, documents]))]
    return UnitResult(files, {"entries": len(joined)})


def search_paragraphs(unit: Unit, context: CandidateContext) -> UnitResult:
    """Find the candidates that share a rare paragraph. ``unit.payload`` is the number of entries in all blocks."""
    partitions = num_partitions(unit.payload, context.memory)
    parts = []
    for partition in range(partitions):
        hashes, documents = [], []
        for block in context.blocks:
            entries = np.load(Path(context.root, PREFIX_FOLDER, f"{block}.npy"), mmap_mode="r")
            rows = np.flatnonzero(_in_partition(entries[0], partition, partitions))
            hashes.append(entries[0][rows])
            documents.append(entries[1][rows].astype(np.int64))
        parts.append(find_buckets(np.concatenate(hashes), np.concatenate(documents), context.max_bucket))
    return _save(context, unit.name, _join(parts))
