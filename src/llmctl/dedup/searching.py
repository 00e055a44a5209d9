"""Run the search for duplicates over the index: candidates by bands and by paragraphs, then their verification."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmctl.artifacts.output import Output
from llmctl.dedup.bands import Bands
from llmctl.dedup.candidates import (
    BUCKETS_FOLDER,
    PAIRS_FOLDER,
    CandidateContext,
    PrefixContext,
    choose_prefixes,
    paragraph_frequencies,
    search_band,
    search_paragraphs,
)
from llmctl.dedup.config import DedupConfig
from llmctl.dedup.index import Index
from llmctl.dedup.signatures import save_state
from llmctl.dedup.survivors import FUZZY, REORDERED, Edges, LargeBuckets
from llmctl.dedup.verification import EDGE_TYPE, EDGES_FOLDER, VerifyContext, plan_ranges, verify_range
from llmctl.runtime.pool import Unit, run_units

ACTIVE_NAME = "_state/active.npy"
FREQUENCIES_NAME = "_state/frequencies.npy"
PAIRS_PER_UNIT = 250_000
# Less than this is done before worker processes have started.
SMALL_BYTES = 100_000_000
SMALL_PAIRS = 500_000


@dataclass
class Found:
    """What the search gives.

    Attributes:
        edges: verified pairs.
        buckets: buckets that are too large to list their pairs.
        counts: how many candidates and verified pairs there were, by method.
    """

    edges: Edges
    buckets: list[LargeBuckets]
    counts: dict[str, int]


class Search:
    """The search over all documents of one run.

    Args:
        out: the claimed output.
        index: of all documents, those of earlier corpora first.
        blocks: names of the index's blocks.
        num_fixed: documents of earlier corpora; they are not compared with each other.
        key: what the units depend on beside the configuration.
        memory: bytes for each worker.
    """

    def __init__(
        self,
        out: Output,
        index: Index,
        blocks: list[str],
        *,
        config: DedupConfig,
        bands: Bands,
        num_fixed: int,
        key: str,
        memory: int,
    ) -> None:
        self.out, self.index, self.blocks = out, index, blocks
        self.config, self.bands = config, bands
        self.num_fixed, self.key, self.memory = num_fixed, key, memory

    def run(self, active: np.ndarray) -> Found:
        """Search for candidates and verify them, by all methods asked for.

        Args:
            active: bool of shape [documents]; the others are out already.
        """
        save_state(self.out.root, ACTIVE_NAME, active)
        parts: list[np.ndarray] = [np.zeros(0, EDGE_TYPE)]
        methods: list[np.ndarray] = [np.zeros(0, np.uint8)]
        buckets: list[LargeBuckets] = []
        counts: dict[str, int] = {}
        for method, code in (("fuzzy", FUZZY), ("reordered", REORDERED)):
            if method not in self.config.method:
                continue
            names = self.search_bands() if method == "fuzzy" else self.search_paragraphs()
            verified = self.verify(method, names)
            for name, _ in verified:
                parts.append(np.load(self.out.root / EDGES_FOLDER / f"{name}.npy"))
                methods.append(np.full(len(parts[-1]), code, np.uint8))
            large = self.large_buckets(names, code)
            buckets += large
            counts[f"{method}_candidates"] = sum(data["candidates"] for _, data in verified)
            counts[f"{method}_large_buckets"] = sum(len(group.ends) for group in large)
            counts[f"{method}_pairs"] = sum(data["verified"] for _, data in verified)
        joined = np.concatenate(parts)
        edges = Edges(
            joined["low"].astype(np.int64),
            joined["high"].astype(np.int64),
            joined["similarity"].copy(),
            np.concatenate(methods),
        )
        return Found(edges, buckets, counts)

    def large_buckets(self, names: list[str], method: int) -> list[LargeBuckets]:
        """Load the large buckets that the search put aside."""
        folder = self.out.root / BUCKETS_FOLDER
        groups = [
            LargeBuckets(method, np.load(folder / f"{name}-members.npy"), np.load(folder / f"{name}-ends.npy"))
            for name in names
        ]
        return [group for group in groups if len(group.members)]

    def _context(self) -> CandidateContext:
        return CandidateContext(
            root=str(self.out.root),
            blocks=tuple(self.blocks),
            firsts=tuple(int(first) for first in self.index.file_firsts()[:-1]),
            active=str(self.out.root / ACTIVE_NAME),
            max_bucket=self.config.max_bucket,
            memory=self.memory,
        )

    def search_bands(self) -> list[str]:
        """Search all bands; return the names of their pair files."""
        width = len(str(self.bands.num_bands - 1))
        size = 8 * self.index.num_documents
        units = [Unit(f"band-{band:0{width}d}", band, size, self.key) for band in range(self.bands.num_bands)]
        run_units(
            search_band,
            units,
            self._context(),
            self.out,
            phase="search",
            label="searching bands",
            total_bytes=size * len(units),
            most_workers=1 if size * len(units) < SMALL_BYTES else None,
        )
        return [unit.name for unit in units]

    def search_paragraphs(self) -> list[str]:
        """Search for documents that share rare paragraphs; return the name of their pair file."""
        root = self.out.root
        save_state(root, FREQUENCIES_NAME, paragraph_frequencies(self.index))
        context = PrefixContext(
            str(root), str(root / ACTIVE_NAME), str(root / FREQUENCIES_NAME), self.config.reordered_threshold
        )
        units = [
            Unit(name, (file, int(first)), Path(file.path).stat().st_size, self.key)
            for name, file, first in zip(self.blocks, self.index.files, self.index.file_firsts()[:-1], strict=True)
        ]
        total = sum(unit.input_bytes for unit in units)
        chosen = run_units(
            choose_prefixes,
            units,
            context,
            self.out,
            phase="prefixes",
            label="comparing paragraphs",
            total_bytes=total,
            most_workers=1 if total < 10 * SMALL_BYTES else None,
        )
        entries = sum(result.data["entries"] for _, result in chosen)
        unit = Unit("paragraphs", entries, 16 * entries, self.key)
        run_units(search_paragraphs, [unit], self._context(), self.out, phase="search", label="searching paragraphs")
        return [unit.name]

    def verify(self, method: str, names: list[str]) -> list[tuple[str, dict[str, Any]]]:
        """Decide the candidate pairs of one method; return the names of the edge files with their counts."""
        pairs = [np.load(self.out.root / PAIRS_FOLDER / f"{name}.npy", mmap_mode="r") for name in names]
        ranges = plan_ranges(pairs, self.index.num_documents, PAIRS_PER_UNIT)
        context = VerifyContext(
            root=str(self.out.root),
            files=tuple(self.index.files),
            pairs=tuple(names),
            num_fixed=self.num_fixed,
            threshold=self.config.threshold,
            reordered_threshold=self.config.reordered_threshold,
            memory=self.memory // 2,
        )
        units = [Unit(f"{method}-{first:010d}", (method, first, end), 0, self.key) for first, end in ranges]
        results = run_units(
            verify_range,
            units,
            context,
            self.out,
            phase="verify",
            label=f"verifying {method} pairs",
            most_workers=1 if sum(map(len, pairs)) < SMALL_PAIRS else None,
        )
        return [(unit.name, result.data) for unit, result in results]
