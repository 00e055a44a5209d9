"""Corpora that were deduplicated before: they stay as they are, and new documents are compared with their index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmctl.artifacts.inputs import Input, open_input
from llmctl.artifacts.output import Output
from llmctl.dedup.bands import Bands
from llmctl.dedup.index import Index, IndexFile
from llmctl.dedup.signatures import BANDS_FOLDER, save_state
from llmctl.errors import UserError
from llmctl.runtime.pool import Unit, UnitResult, run_units
from llmctl.text.minhash import band_hashes

INDEX_FOLDER = "index"
REMOVED_NAME = "removed.npy"


@dataclass
class Earlier:
    """An earlier corpus.

    Attributes:
        source: the opened artifact.
        blocks: names of its blocks in this run.
        files: its index.
        names: per block the paths of the documents' files, with the corpus's name before them.
        counts: per block how many documents each of these files gave.
        removed: int64, numbers within the corpus of the documents that are not in it any more.
    """

    source: Input
    blocks: list[str]
    files: list[IndexFile]
    names: list[list[str]]
    counts: list[list[int]]
    removed: np.ndarray

    @property
    def num_documents(self) -> int:
        """Return the number of documents in the index."""
        return sum(file.rows for file in self.files)

    def block_files(self) -> list[list[list[Any]]]:
        """Return per block its files with their documents, as the first pass gives them."""
        return [
            [[name, count] for name, count in zip(names, counts, strict=True)]
            for names, counts in zip(self.names, self.counts, strict=True)
        ]


def open_earlier(paths: Sequence[Path], description: dict[str, str]) -> list[Earlier]:
    """Open the indexes of earlier corpora.

    Args:
        paths: outputs of ``llmctl dedup``.
        description: how this run makes shingles and signatures.

    Raises:
        UserError: a folder without an index, or with one that was made in another way.
    """
    return [_open_one(path, f"against-{number}", description) for number, path in enumerate(paths)]


def _open_one(path: Path, role: str, description: dict[str, str]) -> Earlier:
    source = open_input(path, role=role, kinds=("documents",), raw=False, payload=f"{INDEX_FOLDER}/")
    assert source.manifest is not None
    statistics = source.manifest.statistics
    names = {Path(file.path).name for file in source.files}
    blocks = statistics.get("index_blocks", [])
    if not {REMOVED_NAME, *(f"{block['name']}.arrow" for block in blocks)} <= names:
        raise UserError(
            f"{path} has no shingle index to compare with", "give an output of `llmctl dedup` made with --keep-index"
        )
    made = statistics.get("shingles", {})
    different = [f"{key}: {made.get(key)} → {value}" for key, value in description.items() if made.get(key) != value]
    if different:
        raise UserError(
            f"the index of {path} was made in another way ({'; '.join(different)})",
            "deduplicate both corpora with the same shingles, permutations and seed",
        )
    removed = np.load(source.root / INDEX_FOLDER / REMOVED_NAME, allow_pickle=False)
    return Earlier(
        source=source,
        blocks=[f"{role}-{block['name']}" for block in blocks],
        files=[
            IndexFile(str(source.root / INDEX_FOLDER / f"{block['name']}.arrow"), tuple(block["batch_rows"]))
            for block in blocks
        ],
        names=[[f"{source.name}/{name}" for name, _ in block["files"]] for block in blocks],
        counts=[[count for _, count in block["files"]] for block in blocks],
        removed=removed.astype(np.int64),
    )


@dataclass(frozen=True)
class BandContext:
    """What the bands of an earlier corpus are computed with."""

    root: str
    bands: Bands


def band_block(unit: Unit, context: BandContext) -> UnitResult:
    """Write the band hashes of one block of an index (``unit.payload``)."""
    parts = [np.zeros((context.bands.num_bands, 0), np.uint64)]
    for _, batch in Index([unit.payload]).batches():
        batch.validate(full=True)  # the file may come from anywhere
        signatures = batch.column("signature").flatten().to_numpy().reshape(batch.num_rows, -1)
        kinds = batch.column("kind").to_numpy()
        parts.append(band_hashes(signatures, kinds, context.bands.num_bands, context.bands.rows_per_band))
    hashes = np.concatenate(parts, axis=1)
    return UnitResult([save_state(Path(context.root), f"{BANDS_FOLDER}/{unit.name}.npy", hashes)])


def band_earlier(earlier: list[Earlier], out: Output, bands: Bands) -> None:
    """Write the band hashes of all earlier corpora."""
    units = [
        Unit(name, file, Path(file.path).stat().st_size)
        for corpus in earlier
        for name, file in zip(corpus.blocks, corpus.files, strict=True)
    ]
    if units:
        run_units(band_block, units, BandContext(str(out.root), bands), out, phase="bands", label="reading indexes")
