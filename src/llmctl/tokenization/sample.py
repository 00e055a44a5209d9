"""Take a seeded sample of texts, by source in proportion, that depends on the documents and not on the run.

Each document falls into one of `NUM_BUCKETS` buckets by a hash of its id and the seed. A first pass counts the bytes
of each bucket, a second takes whole buckets, from the first on, until a source's share is full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
    """Which documents are in the sample.

    Attributes:
        limits: {source: (buckets, bytes)}: documents in the first `buckets` buckets, up to `bytes` of text.
        total_bytes: text of the whole input.
    """

    limits: Mapping[str, tuple[int, int]]
    total_bytes: int

    @property
    def sample_bytes(self) -> int:
        """Return the text of the sample."""
        return sum(size for _, size in self.limits.values())


def plan_sample(scans: Iterable[Mapping[str, Any]], max_bytes: int) -> SamplePlan:
    """Share out `max_bytes` over the sources in proportion to their text."""
    histograms: dict[str, Counter[int]] = {}
    for scan in scans:
        for source, buckets in scan["sources"].items():
            histogram = histograms.setdefault(source, Counter())
            histogram.update({int(bucket): size for bucket, size in buckets.items()})
    total = sum(sum(histogram.values()) for histogram in histograms.values())
    limits = {}
    for source, histogram in sorted(histograms.items()):
        size = sum(histogram.values())
        quota = size if total <= max_bytes else size * max_bytes // total
        limits[source] = (_buckets_for(histogram, quota), quota)
    return SamplePlan(limits, total)


def _buckets_for(histogram: Mapping[int, int], quota: int) -> int:
    filled = 0
    for bucket in range(NUM_BUCKETS):
        if filled >= quota:
            return bucket
        filled += histogram.get(bucket, 0)
    return NUM_BUCKETS


def sample_texts(blocks: Iterable[Block], plan: SamplePlan, context: ScanContext, label: str) -> Iterator[str]:
    """Yield the texts of the sample in the order of the input; the last of a source may be cut to fit."""
    left = {source: size for source, (_, size) in plan.limits.items()}
    with console.progress(label, plan.sample_bytes) as shown:
        for block in blocks:
            if not any(left.values()):
                return
            table = read_block(block, context.read).table
            buckets = buckets_of(table.column("id"), context.seed)
            sources = table.column("source").to_pylist()
            limit = np.array([plan.limits[source][0] if left[source] else 0 for source in sources], np.int64)
            texts = table.column("text")
            for row in np.flatnonzero(buckets < limit):
                source = sources[row]
                text, size = _fit(texts[int(row)].as_py(), left[source])
                if size:
                    left[source] -= size
                    shown.advance(size)
                    yield text


def _fit(text: str, left_bytes: int) -> tuple[str, int]:
    """Cut a text to at most `left_bytes` of UTF-8 and return it with its size."""
    if left_bytes == 0:
        return "", 0
    data = text.encode()
    if len(data) <= left_bytes:
        return text, len(data)
    cut = data[:left_bytes].decode("utf-8", "ignore")
    # A character that does not fit ends the source's share: it must not wait for a shorter one.
    return cut, left_bytes
