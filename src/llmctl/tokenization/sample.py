"""Take a seeded sample of texts, by source in proportion, that depends on the documents and not on the run.

Each document falls into one of `NUM_BUCKETS` buckets by a hash of its id and the seed. A first pass counts the bytes
of each bucket, a second takes whole buckets, from the first on, until a source's share is full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl import console
from llmctl.artifacts.raw.blocks import Block, ReadOptions
from llmctl.artifacts.raw.read import read_block
from llmctl.runtime.pool import Unit, UnitResult
from llmctl.text.buffers import text_buffers

if TYPE_CHECKING:
    import pyarrow as pa

NUM_BUCKETS = 1024


@dataclass(frozen=True)
class ScanContext:
    """What the first pass needs."""

    read: ReadOptions
    seed: int


def buckets_of(ids: pa.ChunkedArray | pa.Array, seed: int) -> np.ndarray:
    """Return the bucket of each document, int64 of shape [rows]."""
    import xxhash

    hashes = (xxhash.xxh3_64_intdigest(name.encode(), seed) for name in ids.to_pylist())
    return np.fromiter(hashes, np.uint64, len(ids)).astype(np.int64) & (NUM_BUCKETS - 1)


def scan_block(unit: Unit, context: ScanContext) -> UnitResult:
    """Count the bytes of text of each source and bucket in one block."""
    table = read_block(unit.payload, context.read).table
    buckets = buckets_of(table.column("id"), context.seed)
    sizes = np.diff(text_buffers(table.column("text"))[1])
    names = table.column("source").combine_chunks().dictionary_encode()
    codes = np.asarray(names.indices)
    sources: dict[str, dict[str, int]] = {}
    for code, source in enumerate(names.dictionary.to_pylist()):
        chosen = codes == code
        histogram = np.zeros(NUM_BUCKETS, np.int64)
        np.add.at(histogram, buckets[chosen], sizes[chosen])
        # Documents without text count nothing and change nothing.
        sources[source] = {str(bucket): int(histogram[bucket]) for bucket in np.flatnonzero(histogram)}
    return UnitResult(data={"sources": sources})


@dataclass(frozen=True)
class SamplePlan:
    """Which documents are in a sample.

    Attributes:
        limits: {source: (first bucket, end bucket, bytes)}: documents in these buckets, up to `bytes` of text.
        total_bytes: text that the sample is drawn from.
    """

    limits: Mapping[str, tuple[int, int, int]]
    total_bytes: int

    @property
    def sample_bytes(self) -> int:
        """Return the text of the sample."""
        return sum(size for _, _, size in self.limits.values())


def plan_sample(
    scans: Iterable[Mapping[str, Any]],
    max_bytes: int,
    *,
    first: int = 0,
    end: int = NUM_BUCKETS,
    wanted: Callable[[str], bool] = lambda source: True,
) -> SamplePlan:
    """Share out `max_bytes` over the sources in proportion to their text.

    Args:
        scans: the data of `scan_block` for every block.
        max_bytes: text of the sample at most.
        first, end: range of buckets to draw from; ranges that do not overlap give samples that do not.
        wanted: which sources to draw from.
    """
    histograms: dict[str, Counter[int]] = {}
    for scan in scans:
        for source, buckets in scan["sources"].items():
            if wanted(source):
                counts = {int(bucket): size for bucket, size in buckets.items() if first <= int(bucket) < end}
                histograms.setdefault(source, Counter()).update(counts)
    total = sum(histogram.total() for histogram in histograms.values())
    limits = {}
    for source, histogram in sorted(histograms.items()):
        size = histogram.total()
        quota = size if total <= max_bytes else size * max_bytes // total
        limits[source] = (first, _end_bucket(histogram, quota, first, end), quota)
    return SamplePlan(limits, total)


def _end_bucket(histogram: Mapping[int, int], quota: int, first: int, end: int) -> int:
    filled = 0
    for bucket in range(first, end):
        if filled >= quota:
            return bucket
        filled += histogram.get(bucket, 0)
    return end


def sample_texts(blocks: Iterable[Block], plan: SamplePlan, context: ScanContext, label: str) -> Iterator[str]:
    """Yield the texts of a sample in the order of the input; the last of a source may be cut to fit."""
    return (text for _, text in sample_several(blocks, [plan], context, label))


def sample_several(
    blocks: Iterable[Block], plans: Sequence[SamplePlan], context: ScanContext, label: str
) -> Iterator[tuple[int, str]]:
    """Yield the texts of several samples that do not overlap, read in one pass, each with the number of its plan."""
    left = [{source: size for source, (_, _, size) in plan.limits.items()} for plan in plans]
    with console.progress(label, sum(plan.sample_bytes for plan in plans)) as shown:
        for block in blocks:
            if not any(any(sizes.values()) for sizes in left):
                return
            table = read_block(block, context.read).table
            buckets = buckets_of(table.column("id"), context.seed)
            sources = table.column("source").to_pylist()
            texts = table.column("text")
            for number, row in _chosen(plans, left, sources, buckets):
                source = sources[row]
                text, size = _fit(texts[row].as_py(), left[number][source])
                if size:
                    left[number][source] -= size
                    shown.advance(size)
                    yield number, text


def _chosen(
    plans: Sequence[SamplePlan], left: Sequence[Mapping[str, int]], sources: Sequence[str], buckets: np.ndarray
) -> Iterator[tuple[int, int]]:
    """Yield (plan, row) of the documents that are in a sample, in the order of the rows."""
    nowhere = (0, 0, 0)
    owner = np.full(len(sources), -1, np.int64)
    for number, plan in enumerate(plans):
        limits = [plan.limits.get(source, nowhere) if left[number].get(source) else nowhere for source in sources]
        bounds = np.array(limits, np.int64).reshape(-1, 3)
        owner[(bounds[:, 0] <= buckets) & (buckets < bounds[:, 1])] = number
    for row in np.flatnonzero(owner >= 0):
        yield int(owner[row]), int(row)


def _fit(text: str, left_bytes: int) -> tuple[str, int]:
    """Cut a text to at most `left_bytes` of UTF-8; return it with what it takes of them."""
    if left_bytes == 0:
        return "", 0
    data = text.encode()
    if len(data) <= left_bytes:
        return text, len(data)
    # A character that does not fit ends the source's share: it must not wait for a shorter one.
    return data[:left_bytes].decode("utf-8", "ignore"), left_bytes
