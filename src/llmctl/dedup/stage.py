"""Run deduplication: sign every block, find and verify candidates, choose survivors, write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from llmctl.dedup.against import INDEX_FOLDER, REMOVED_NAME, Earlier, band_earlier, open_earlier
from llmctl.dedup.bands import NO_BANDS, Bands, choose_bands, recall_curve
from llmctl.dedup.config import DedupConfig
from llmctl.dedup.index import Index, IndexFile
from llmctl.dedup.reports import find_clusters, find_places, largest_clusters, write_clusters, write_pairs
from llmctl.dedup.searching import SMALL_BYTES, Search
from llmctl.dedup.signatures import STAGED_FOLDER, SignContext, describe_index, save_array, sign_block, warm_up
from llmctl.dedup.survivors import (
    EMPTY_TEXT,
    EXACT,
    FUZZY,
    REORDERED,
    Decisions,
    choose_survivors,
    group_equal,
    join_decisions,
)
from llmctl.dedup.templates import TemplateMethod, Templates
from llmctl.dedup.verification import Verifier
from llmctl.dedup.writing import WriteContext, save_decisions, write_block
from llmctl.errors import UserError
from llmctl.runtime.pool import Unit, UnitResult, run_units
from llmctl.text.shingles import EMPTY

MOST_DOCUMENTS = 2**32


def run(
    source: Path | str,
    output: Path | str,
    config: DedupConfig,
    options: RunOptions,
    against: Sequence[Path] = (),
) -> Manifest | None:
    """Find duplicates in `source` and write one of each to `output`.

    Args:
        source: an artifact of kind ``documents``, or raw files.
        output: folder to write.
        against: earlier outputs of this stage; what resembles one of their documents is removed as well.

    Returns:
        The manifest of the output; None after a dry run.

    Raises:
        UserError: a mistake in paths or configuration.
    """
    opened = open_input(source, role="source", kinds=("documents",))
    bands = NO_BANDS
    if "fuzzy" in config.method or config.keep_index or against:
        bands = choose_bands(config.threshold, config.num_perm, config.min_recall)
    earlier = open_earlier(against, describe_index(config, bands))
    inputs = [opened, *(corpus.source for corpus in earlier)]
    with open_output(output, kind="documents", stage="dedup", config=config, inputs=inputs, options=options) as out:
        if out.finished is not None:
            return out.finished
        describe_plan(inputs, output, config, bands, options)
        if options.dry_run:
            return None
        return _Run(out, opened, earlier, config, bands).finish()


def describe_plan(
    inputs: list[Input], output: Path | str, config: DedupConfig, bands: Bands, options: RunOptions
) -> None:
    """Say what is read and written, and how many of the duplicates the bands find."""
    source = inputs[0]
    curve = recall_curve(bands, config.threshold) if "fuzzy" in config.method else []
    if options.dry_run:
        console.info(
            f"would read {len(source.files):,} files ({source.total_bytes / 1e6:,.1f} MB) of {source.name} "
            f"and write data/, removed/, invalid/, pairs.parquet, clusters.parquet"
            f"{', index/' if config.keep_index else ''} to {output}"
        )
    if curve:
        console.info(
            f"duplicates by {', '.join(config.method)}; Jaccard ≥ {config.threshold:g} of {config.ngram_size}-word or "
            f"{config.char_ngram_size}-character shingles; {bands.num_bands} bands × {bands.rows_per_band} of "
            f"{bands.num_perm} permutations, every candidate verified"
        )
        shown = "  ".join(f"{similarity:.2f}: {recall:.4f}" for similarity, recall in curve)
        console.info(f"chance that a pair of this similarity is compared: {shown}")
    else:
        console.info(f"duplicates by {', '.join(config.method)}")
    for corpus in inputs[1:]:
        console.info(f"also against the documents of {corpus.name}")
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

    def __init__(self, out: Output, source: Input, earlier: list[Earlier], config: DedupConfig, bands: Bands) -> None:
        self.out, self.source, self.earlier, self.config, self.bands = out, source, earlier, config, bands
        self.memory = max(config.memory // out.options.num_workers, 16_000_000)
        self.index_folder = INDEX_FOLDER if config.keep_index else f"{STATE_FOLDER}/{INDEX_FOLDER}"
        self.num_fixed = sum(corpus.num_documents for corpus in earlier)
        self.templates: dict[str, Any] | None = None

    def finish(self) -> Manifest:
        """Run all phases and write the manifest."""
        signed = self.sign()
        band_earlier(self.earlier, self.out, self.bands)
        # What the later phases depend on: if a block had to be signed anew, they are done anew as well.
        contents = repr([(unit.name, result.data["content_hash"]) for unit, result in signed])
        self.key = sha256(contents.encode()).hexdigest()[:16]
        self.names = [unit.name for unit, _ in signed]
        self.index = self._open_index(signed)
        decisions, counts = self.decide()
        save_decisions(self.out.root, decisions)
        written = self.write(signed)
        return self.report(signed, written, decisions, counts)

    def _open_index(self, signed: list[tuple[Unit, UnitResult]]) -> Index:
        own = [
            IndexFile(str(self.out.root / self.index_folder / f"{unit.name}.arrow"), tuple(result.data["batch_rows"]))
            for unit, result in signed
        ]
        index = Index([file for corpus in self.earlier for file in corpus.files] + own)
        if index.num_documents >= MOST_DOCUMENTS:
            raise UserError(
                f"{index.num_documents:,} documents are more than {MOST_DOCUMENTS:,}",
                "deduplicate parts of the corpus, each --against those before it",
            )
        return index

    def sign(self) -> list[tuple[Unit, UnitResult]]:
        """First pass over the text."""
        context = SignContext(str(self.out.root), self.index_folder, self.config, self.bands)
        times = {file.path: (file.bytes, file.mtime_ns) for file in self.source.files}
        warm_up(context)
        return run_units(
            sign_block,
            self._sign_units(times),
            context,
            self.out,
            phase="sign",
            label="reading",
            total_bytes=self.source.total_bytes,
        )

    def _sign_units(self, times: dict[str, tuple[int, int]]) -> Iterator[Unit]:
        """Yield the blocks with a key that changes when a file is changed between a kill and the next start."""
        block: Block
        for block in plan_blocks(self.source, self.config.read):
            files = sorted({segment.file for segment in block.segments})
            state = repr([(file, times.get(file)) for file in files])
            yield Unit(block.name, block, block.input_bytes, sha256(state.encode()).hexdigest()[:16])

    def decide(self) -> tuple[Decisions, dict[str, int]]:
        """Return who goes, from the index alone, and how many pairs were compared."""
        index, config = self.index, self.config
        empty = index.column("kind") == EMPTY
        active = ~empty
        first = 0
        for corpus in self.earlier:
            active[first + corpus.removed] = False
            first += corpus.num_documents
        # Equal texts are duplicates by every method but `template`, which wants a whole family of them.
        comparable = active if config.method != ["template"] else np.zeros(len(active), np.bool_)
        others, representatives = group_equal(index, comparable, self.num_fixed)
        active[others] = False
        search = Search(
            self.out,
            index,
            [name for corpus in self.earlier for name in corpus.blocks] + self.names,
            config=config,
            bands=self.bands,
            num_fixed=self.num_fixed,
            key=self.key,
            memory=self.memory,
        )
        found = search.run(active)
        verifier = Verifier(index, config.threshold, config.reordered_threshold, config.memory // 2)
        chosen = choose_survivors(index, found.edges, found.buckets, verifier, config.max_comparisons, self.num_fixed)
        new = others >= self.num_fixed
        equal = _follow(others[new], representatives[new], chosen, _name_of_equal(config))
        gone = np.flatnonzero(empty) if config.empty == "remove" else np.zeros(0, np.int64)
        gone = gone[gone >= self.num_fixed]
        nothing = Decisions(
            gone, np.full(len(gone), -1), np.full(len(gone), EMPTY_TEXT, np.uint8), np.full(len(gone), np.nan)
        )
        counts = found.counts
        if "template" in config.method:
            templates = self.find_templates(join_decisions([chosen, equal]))
            return join_decisions([templates.decisions, nothing]), counts
        return join_decisions([chosen, equal, nothing]), counts

    def find_templates(self, decided: Decisions) -> Templates:
        """Remove template content among the documents that stay so far."""
        method = TemplateMethod(self.out, self.index, self.names, self.config, self.num_fixed, self.key)
        found = method.run(decided)
        self.templates = found.families
        return found

    def write(self, signed: list[tuple[Unit, UnitResult]]) -> list[tuple[Unit, UnitResult]]:
        """Write what stays and what goes."""
        context = WriteContext(str(self.out.root), tuple(self.index.files), self.config)
        firsts = self.index.file_firsts()[len(self.index.files) - len(signed) :]
        units = [
            Unit(
                unit.name,
                (int(firsts[number]), result.data),
                (self.out.root / STAGED_FOLDER / f"{unit.name}.arrow").stat().st_size,
                self.key,
            )
            for number, (unit, result) in enumerate(signed)
        ]
        total = sum(unit.input_bytes for unit in units)
        return run_units(
            write_block,
            units,
            context,
            self.out,
            phase="write",
            label="writing",
            total_bytes=total,
            most_workers=1 if total < SMALL_BYTES else None,
        )

    def report(
        self,
        signed: list[tuple[Unit, UnitResult]],
        written: list[tuple[Unit, UnitResult]],
        decisions: Decisions,
        counts: dict[str, int],
    ) -> Manifest:
        """Write pairs, clusters and the manifest, and say what was found."""
        accounting = merge_all(Accounting.from_mapping(result.data["accounting"]) for _, result in written)
        accounting.check()
        block_files = [files for corpus in self.earlier for files in corpus.block_files()]
        places = find_places(self.index, block_files + [result.data["files"] for _, result in signed])
        clusters = find_clusters(decisions)
        root = self.out.root
        files: list[FileRecord] = [record for _, result in [*signed, *written] for record in result.files]
        files = [record for record in files if not record.path.startswith(f"{STATE_FOLDER}/")]
        files += [write_pairs(root, decisions, places), write_clusters(root, clusters, places)]
        if self.config.keep_index:
            files.append(save_array(root, f"{INDEX_FOLDER}/{REMOVED_NAME}", decisions.documents - self.num_fixed))
        largest = largest_clusters(clusters, places)
        statistics: dict[str, Any] = {
            **accounting.to_mapping(),
            "shingles": describe_index(self.config, self.bands),
            "bands": {
                "num_bands": self.bands.num_bands,
                "rows_per_band": self.bands.rows_per_band,
                "recall_at_threshold": round(self.bands.recall(self.config.threshold), 6),
            }
            if "fuzzy" in self.config.method
            else None,
            "compared": counts,
            "clusters": len(clusters.survivors),
            "largest_clusters": largest,
            **({"templates": self.templates} if self.templates is not None else {}),
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
    codes = {"exact": EXACT, "fuzzy": FUZZY, "reordered": REORDERED, "template": EXACT}
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
