"""Run deduplication: sign every block, find and verify candidates, choose survivors, write."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from llmctl import console
from llmctl.artifacts.accounting import Accounting, merge_all
from llmctl.artifacts.files import FileRecord
from llmctl.artifacts.inputs import Input, open_input
from llmctl.artifacts.manifest import STATE_FOLDER, Manifest
from llmctl.artifacts.output import Output, open_output
from llmctl.artifacts.raw.blocks import Block
from llmctl.artifacts.raw.plan import plan_blocks
from llmctl.config.common import RunOptions
from llmctl.dedup.bands import Bands, choose_bands, recall_curve
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
from llmctl.dedup.index import Index, IndexFile
from llmctl.dedup.reports import find_clusters, find_places, largest_clusters, write_clusters, write_pairs
from llmctl.dedup.signatures import STAGED_FOLDER, SignContext, describe_index, save_array, sign_block
from llmctl.dedup.survivors import (
    EMPTY_TEXT,
    EXACT,
    FUZZY,
    REORDERED,
    Decisions,
    Edges,
    LargeBuckets,
    choose_survivors,
    group_equal,
)
from llmctl.dedup.verification import EDGES_FOLDER, Verifier, VerifyContext, plan_ranges, verify_range
from llmctl.dedup.writing import WriteContext, save_decisions, write_block
from llmctl.errors import UserError
from llmctl.runtime.pool import Unit, UnitResult, run_units
from llmctl.text.shingles import EMPTY

ACTIVE_NAME = "_state/active.npy"
FREQUENCIES_NAME = "_state/frequencies.npy"
INDEX_FOLDER = "index"
MOST_DOCUMENTS = 2**32
PAIRS_PER_UNIT = 2_000_000


def run(source: Path | str, output: Path | str, config: DedupConfig, options: RunOptions) -> Manifest | None:
    """Find duplicates in `source` and write one of each to `output`.

    Args:
        source: an artifact of kind ``documents``, or raw files.
        output: folder to write.

    Returns:
        The manifest of the output; None after a dry run.

    Raises:
        UserError: a mistake in paths or configuration, or an executor that is not there.
    """
    if options.executor == "ray":
        raise UserError(
            "dedup cannot run on Ray yet", "leave --executor away; the extra `llmctl[ray]` will bring this command too"
        )
    opened = open_input(source, role="source", kinds=("documents",))
    bands = choose_bands(config.threshold, config.num_perm, config.min_recall)
    with open_output(output, kind="documents", stage="dedup", config=config, inputs=[opened], options=options) as out:
        if out.finished is not None:
            return out.finished
        describe_plan(opened, output, config, bands, options)
        if options.dry_run:
            return None
        return _Run(out, opened, config, bands).finish()


def describe_plan(source: Input, output: Path | str, config: DedupConfig, bands: Bands, options: RunOptions) -> None:
    """Say what is read and written, and how many of the duplicates the bands find."""
    curve = recall_curve(bands, config.threshold)
    if options.dry_run:
        console.info(
            f"would read {len(source.files):,} files ({source.total_bytes / 1e6:,.1f} MB) of {source.name} "
            f"and write data/, removed/, invalid/, pairs.parquet, clusters.parquet to {output}"
        )
    console.info(
        f"duplicates by {', '.join(config.method)}; Jaccard ≥ {config.threshold:g} of {config.ngram_size}-word or "
        f"{config.char_ngram_size}-character shingles; {bands.num_bands} bands × {bands.rows_per_band} of "
        f"{bands.num_perm} permutations, every candidate verified"
    )
    if "fuzzy" in config.method:
        shown = "  ".join(f"{similarity:.2f}: {recall:.4f}" for similarity, recall in curve)
        console.info(f"chance that a pair of this similarity is compared: {shown}")
    if options.dry_run:
        console.result(
            f"{output}: nothing written (dry run)",
            dry_run=True,
            source=str(source.root),
            files=len(source.files),
            bytes=source.total_bytes,
            output=str(output),
            bands={"num_bands": bands.num_bands, "rows_per_band": bands.rows_per_band, "num_perm": bands.num_perm},
            recall_curve=[{"similarity": similarity, "recall": recall} for similarity, recall in curve],
        )


class _Run:
    """One run over one input; the phases in order."""

    def __init__(self, out: Output, source: Input, config: DedupConfig, bands: Bands) -> None:
        self.out, self.source, self.config, self.bands = out, source, config, bands
        self.memory = max(config.memory // out.options.num_workers, 16_000_000)
        self.index_folder = INDEX_FOLDER if config.keep_index else f"{STATE_FOLDER}/{INDEX_FOLDER}"

    def blocks(self) -> Iterator[Block]:
        """Return the blocks of the input."""
        return plan_blocks(self.source, self.config.read)

    def _state_of(self, block: Block) -> str:
        """Return what changes when a file of the block is changed between a kill and the next start."""
        times = {file.path: (file.bytes, file.mtime_ns) for file in self.source.files}
        files = sorted({segment.file for segment in block.segments})
        return sha256(repr([(file, times.get(file)) for file in files]).encode()).hexdigest()[:16]

    def finish(self) -> Manifest:
        """Run all phases and write the manifest."""
        signed = self.sign()
        # What the later phases depend on: if a block had to be signed anew, they are done anew as well.
        contents = repr([(unit.name, result.data["content_hash"]) for unit, result in signed])
        self.key = sha256(contents.encode()).hexdigest()[:16]
        self.blocks_signed = [unit.name for unit, _ in signed]
        data = [result.data for _, result in signed]
        files = tuple(
            IndexFile(str(self.out.root / self.index_folder / f"{name}.arrow"), tuple(part["batch_rows"]))
            for name, part in zip(self.blocks_signed, data, strict=True)
        )
        self.index = Index(files)
        if self.index.num_documents >= MOST_DOCUMENTS:
            raise UserError(
                f"{self.index.num_documents:,} documents are more than {MOST_DOCUMENTS:,}",
                "deduplicate parts of the corpus first",
            )
        decisions, searched = self.decide()
        save_decisions(self.out.root, decisions)
        written = self.write(data)
        return self.report(signed, written, decisions, data, searched)

    # -- phases ---------------------------------------------------------------------------------------------------

    def sign(self) -> list[tuple[Unit, UnitResult]]:
        """First pass over the text."""
        context = SignContext(str(self.out.root), self.index_folder, self.config, self.bands)
        units = (Unit(block.name, block, block.input_bytes, self._state_of(block)) for block in self.blocks())
        return run_units(
            sign_block, units, context, self.out, phase="sign", label="reading", total_bytes=self.source.total_bytes
        )

    def decide(self) -> tuple[Decisions, dict[str, int]]:
        """Return who goes, from the index alone."""
        index, config = self.index, self.config
        empty = index.column("kind") == EMPTY
        others, representatives = group_equal(index, ~empty)
        active = ~empty
        active[others] = False
        save_array(self.out.root, ACTIVE_NAME, active)
        edges, buckets, searched = self.find_edges()
        verifier = Verifier(index, config.threshold, config.reordered_threshold, config.memory // 2)
        chosen = choose_survivors(index, edges, buckets, verifier, config.max_comparisons)
        equal = _follow(others, representatives, chosen, _name_of_equal(config))
        gone = np.flatnonzero(empty) if config.empty == "remove" else np.zeros(0, np.int64)
        nothing = Decisions(
            gone, np.full(len(gone), -1), np.full(len(gone), EMPTY_TEXT, np.uint8), np.full(len(gone), np.nan)
        )
        parts = [chosen, equal, nothing]
        joined = Decisions(
            np.concatenate([part.documents for part in parts]),
            np.concatenate([part.survivors for part in parts]),
            np.concatenate([part.methods for part in parts]),
            np.concatenate([part.similarities for part in parts]),
        )
        return joined.sorted(), searched

    def find_edges(self) -> tuple[Edges, list[LargeBuckets], dict[str, int]]:
        """Search for candidates and verify them, by all methods asked for."""
        low: list[np.ndarray] = []
        high: list[np.ndarray] = []
        similarities: list[np.ndarray] = []
        methods: list[np.ndarray] = []
        buckets: list[LargeBuckets] = []
        searched: dict[str, int] = {}
        for method, code in (("fuzzy", FUZZY), ("reordered", REORDERED)):
            if method not in self.config.method:
                continue
            found = self.search_bands() if method == "fuzzy" else self.search_paragraphs()
            names = [f"{phase}" for phase in found]
            for result in self.verify(method, names):
                edges = np.load(self.out.root / EDGES_FOLDER / f"{result[0]}.npy")
                low.append(edges["low"].astype(np.int64))
                high.append(edges["high"].astype(np.int64))
                similarities.append(edges["similarity"])
                methods.append(np.full(len(edges), code, np.uint8))
                searched[f"{method}_candidates"] = searched.get(f"{method}_candidates", 0) + result[1]["candidates"]
                searched[f"{method}_pairs"] = searched.get(f"{method}_pairs", 0) + result[1]["verified"]
            for name in names:
                members = np.load(self.out.root / BUCKETS_FOLDER / f"{name}-members.npy")
                if len(members):
                    ends = np.load(self.out.root / BUCKETS_FOLDER / f"{name}-ends.npy")
                    buckets.append(LargeBuckets(code, members, ends))
                    searched[f"{method}_large_buckets"] = searched.get(f"{method}_large_buckets", 0) + len(ends)
        empty = np.zeros(0, np.int64)
        edges_found = Edges(
            np.concatenate([empty, *low]),
            np.concatenate([empty, *high]),
            np.concatenate([empty.astype(np.float64), *similarities]),
            np.concatenate([empty.astype(np.uint8), *methods]),
        )
        return edges_found, buckets, dict(sorted(searched.items()))

    def _candidate_context(self) -> CandidateContext:
        return CandidateContext(
            root=str(self.out.root),
            blocks=tuple(self.blocks_signed),
            firsts=tuple(int(first) for first in self.index.file_firsts()[:-1]),
            active=str(self.out.root / ACTIVE_NAME),
            max_bucket=self.config.max_bucket,
            memory=self.memory,
        )

    def search_bands(self) -> list[str]:
        """Return the names of the pair files of all bands."""
        width = len(str(self.bands.num_bands - 1))
        size = 8 * self.index.num_documents
        units = [Unit(f"band-{band:0{width}d}", band, size, self.key) for band in range(self.bands.num_bands)]
        run_units(
            search_band,
            units,
            self._candidate_context(),
            self.out,
            phase="search",
            label="searching bands",
            total_bytes=size * len(units),
        )
        return [unit.name for unit in units]

    def search_paragraphs(self) -> list[str]:
        """Return the name of the pair file of re-ordered candidates."""
        root = self.out.root
        save_array(root, FREQUENCIES_NAME, paragraph_frequencies(self.index))
        context = PrefixContext(
            str(root), str(root / ACTIVE_NAME), str(root / FREQUENCIES_NAME), self.config.reordered_threshold
        )
        firsts = self.index.file_firsts()
        units = [
            Unit(name, (file, int(first)), Path(file.path).stat().st_size, self.key)
            for name, file, first in zip(self.blocks_signed, self.index.files, firsts[:-1], strict=True)
        ]
        chosen = run_units(choose_prefixes, units, context, self.out, phase="prefixes", label="comparing paragraphs")
        entries = sum(result.data["entries"] for _, result in chosen)
        unit = Unit("paragraphs", entries, 16 * entries, self.key)
        run_units(
            search_paragraphs, [unit], self._candidate_context(), self.out, phase="search", label="searching paragraphs"
        )
        return [unit.name]

    def verify(self, method: str, names: list[str]) -> list[tuple[str, dict[str, Any]]]:
        """Decide the candidate pairs of one method; return the names of the edge files with their counts."""
        pairs = [np.load(self.out.root / PAIRS_FOLDER / f"{name}.npy", mmap_mode="r") for name in names]
        ranges = plan_ranges(pairs, self.index.num_documents, PAIRS_PER_UNIT)
        context = VerifyContext(
            root=str(self.out.root),
            files=tuple(self.index.files),
            pairs=tuple(names),
            threshold=self.config.threshold,
            reordered_threshold=self.config.reordered_threshold,
            memory=self.memory // 2,
        )
        units = [Unit(f"{method}-{first:010d}", (method, first, end), 0, self.key) for first, end in ranges]
        results = run_units(verify_range, units, context, self.out, phase="verify", label=f"verifying {method} pairs")
        return [(unit.name, result.data) for unit, result in results]

    def write(self, data: list[dict[str, Any]]) -> list[tuple[Unit, UnitResult]]:
        """Second pass over the text."""
        firsts = self.index.file_firsts()
        context = WriteContext(str(self.out.root), tuple(self.index.files), self.config)
        units = [
            Unit(
                name,
                (int(firsts[number]), data[number]),
                (self.out.root / STAGED_FOLDER / f"{name}.arrow").stat().st_size,
                self.key,
            )
            for number, name in enumerate(self.blocks_signed)
        ]
        total = sum(unit.input_bytes for unit in units)
        return run_units(write_block, units, context, self.out, phase="write", label="writing", total_bytes=total)

    def report(
        self,
        signed: list[tuple[Unit, UnitResult]],
        written: list[tuple[Unit, UnitResult]],
        decisions: Decisions,
        data: list[dict[str, Any]],
        searched: dict[str, int],
    ) -> Manifest:
        """Write pairs, clusters and the manifest, and say what was found."""
        accounting = merge_all(Accounting.from_mapping(result.data["accounting"]) for _, result in written)
        accounting.check()
        places = find_places(self.index, data)
        clusters = find_clusters(decisions)
        root = self.out.root
        files: list[FileRecord] = [record for _, result in [*signed, *written] for record in result.files]
        files = [record for record in files if not record.path.startswith(f"{STATE_FOLDER}/")]
        files += [write_pairs(root, decisions, places), write_clusters(root, clusters, places)]
        largest = largest_clusters(clusters, places)
        statistics = {
            **accounting.to_mapping(),
            "shingles": describe_index(self.config, self.bands),
            "bands": {
                "num_bands": self.bands.num_bands,
                "rows_per_band": self.bands.rows_per_band,
                "recall_at_threshold": round(self.bands.recall(self.config.threshold), 6),
            },
            "compared": searched,
            "clusters": len(clusters.survivors),
            "largest_clusters": largest,
            "index_blocks": [
                {"name": unit.name, "batch_rows": result.data["batch_rows"], "files": result.data["files"]}
                for unit, result in signed
            ],
        }
        accounting.warn()
        if largest:
            console.table(
                "largest clusters",
                ["documents", "kept", "of", "lowest similarity"],
                [[row["size"], row["survivor_id"], row["survivor_file"], row["lowest_similarity"]] for row in largest],
            )
        return self.out.finish(files, statistics)


def _name_of_equal(config: DedupConfig) -> int:
    """Return the method that equal texts are removed by: the strictest one asked for."""
    codes = {"exact": EXACT, "fuzzy": FUZZY, "reordered": REORDERED}
    return codes[config.method[0]]


def _follow(others: np.ndarray, representatives: np.ndarray, chosen: Decisions, method: int) -> Decisions:
    """Return the decisions about texts that equal a better one: they go for whom it goes, if it goes."""
    survivors = representatives.copy()
    methods = np.full(len(others), method, np.uint8)
    similarities = np.ones(len(others))
    if len(chosen.documents) and len(others):
        places = np.minimum(np.searchsorted(chosen.documents, representatives), len(chosen.documents) - 1)
        gone = np.flatnonzero(chosen.documents[places] == representatives)
        survivors[gone] = chosen.survivors[places[gone]]
        methods[gone] = chosen.methods[places[gone]]
        similarities[gone] = chosen.similarities[places[gone]]
    return Decisions(others, survivors, methods, similarities)
