"""Decide which documents go into which shard, from their sizes alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llmctl.sharding.formats import FORMATS
from llmctl.sharding.records import RECORD_OVERHEAD_BYTES
from llmctl.sharding.source import Part

if TYPE_CHECKING:
    import pyarrow as pa

# Planned sizes are upper bounds, so that no shard is larger than asked.


@dataclass
class Documents:
    """All documents of a `tokens` artifact, one entry each, in its order.

    Attributes:
        sources: names, sorted.
        source: int32, index into `sources`.
        part: int32, number of the block; `row`: int64, row of the block's table.
        num_tokens, num_bytes: int64.
        size: int64, bytes of the record with its frame, at most.
    """

    sources: list[str]
    source: np.ndarray
    part: np.ndarray
    row: np.ndarray
    num_tokens: np.ndarray
    num_bytes: np.ndarray
    size: np.ndarray


@dataclass(frozen=True)
class PlannedShard:
    """One file to write.

    Attributes:
        path: relative to the artifact.
        documents: int64, numbers of its documents in the order of their records.
    """

    path: str
    source: str
    documents: np.ndarray
    tokens: int


def read_documents(parts: Sequence[Part], itemsize: int) -> Documents:
    """Read what the plan needs of every block's table."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    names: dict[str, int] = {}
    columns: list[list[np.ndarray]] = []
    for number, part in enumerate(parts):
        table = pq.read_table(part.table)
        codes = _codes(table.column("source"), names)
        text_bytes = sum(
            pc.fill_null(pc.binary_length(table.column(name)), 0).to_numpy() for name in ("id", "source", "lang")
        )
        tokens = table.column("num_tokens").to_numpy()
        columns.append(
            [
                codes,
                np.full(table.num_rows, number, np.int32),
                np.arange(table.num_rows, dtype=np.int64),
                tokens,
                table.column("num_bytes").to_numpy(),
                tokens * itemsize + text_bytes + RECORD_OVERHEAD_BYTES,
            ]
        )
    dtypes = (np.int32, np.int32, np.int64, np.int64, np.int64, np.int64)
    joined = [
        np.concatenate([column[position] for column in columns] or [np.zeros(0)]).astype(dtype)
        for position, dtype in enumerate(dtypes)
    ]
    ordered = sorted(names)
    rank = np.array([ordered.index(name) for name in names] or [0], np.int32)
    return Documents(ordered, rank[joined[0]], *joined[1:])


def _codes(column: pa.ChunkedArray, names: dict[str, int]) -> np.ndarray:
    encoded = column.combine_chunks().dictionary_encode()
    known = [names.setdefault(name, len(names)) for name in encoded.dictionary.to_pylist()]
    return np.array(known or [0], np.int32)[np.asarray(encoded.indices)]


def plan_shards(
    documents: Documents, shard_size: int, shuffle: bool, seed: int, format: str = "tfrecord"
) -> list[PlannedShard]:
    """Cut each source into files of equal size, none larger than `shard_size` unless one document is.

    The order of the documents is kept, or shuffled within the source; those longer than a shard come last, each in
    a file of its own.
    """
    slugs = unique_slugs(documents.sources)
    shards = []
    for number, source in enumerate(documents.sources):
        chosen = np.flatnonzero(documents.source == number)
        if shuffle:
            chosen = chosen[shuffled(len(chosen), f"{seed} {source}")]
        groups = _cut(chosen, documents.size, shard_size)
        for position, group in enumerate(groups):
            path = FORMATS[format].path(slugs[source], position, len(groups))
            shards.append(PlannedShard(path, source, group, int(documents.num_tokens[group].sum())))
    return shards


def shuffled(count: int, key: str) -> np.ndarray:
    """Return a permutation of 0…count-1 that depends on `count` and `key` alone, on any version of numpy.

    The numbers are sorted by a counter-based generator (splitmix64, Steele et al. 2014).
    """
    import xxhash

    state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state += np.uint64(xxhash.xxh3_64_intdigest(key.encode()))
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(state ^ (state >> np.uint64(31)), kind="stable")


def _cut(chosen: np.ndarray, size: np.ndarray, shard_size: int) -> list[np.ndarray]:
    long = size[chosen] > shard_size
    groups = _fill(chosen[~long], size, shard_size)
    return groups + [chosen[position : position + 1] for position in np.flatnonzero(long)]


def _fill(chosen: np.ndarray, size: np.ndarray, shard_size: int) -> list[np.ndarray]:
    if len(chosen) == 0:
        return []
    ends = np.cumsum(size[chosen])
    total = int(ends[-1])
    # Equal shares, so that no file is a small rest; the share grows until the last document fits.
    num_shards = -(-total // shard_size)
    share = -(-total // num_shards)
    while True:
        cuts = _greedy(ends, min(share, shard_size))
        if len(cuts) <= num_shards or share >= shard_size:
            return np.split(chosen, cuts[:-1])
        share += share // 200 + 1


def _greedy(ends: np.ndarray, limit: int) -> list[int]:
    """Return the end of each group when each takes as many documents as fit into `limit` bytes."""
    cuts: list[int] = []
    start, base = 0, 0
    while start < len(ends):
        start = max(int(np.searchsorted(ends, base + limit, side="right")), start + 1)
        base = int(ends[start - 1])
        cuts.append(start)
    return cuts


def unique_slugs(sources: Sequence[str]) -> dict[str, str]:
    """Return for each source a name that is safe in file names; different sources get different names."""
    slugs: dict[str, str] = {}
    taken: set[str] = set()
    for source in sources:
        base = re.sub(r"[^a-z0-9._]+", "-", source.lower()).strip("-.")[:80] or "source"
        slug, number = base, 1
        while slug in taken:
            number += 1
            slug = f"{base}-{number}"
        taken.add(slug)
        slugs[source] = slug
    return slugs
