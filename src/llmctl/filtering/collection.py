"""Look at the whole corpus before any document is judged, for what no document shows by itself: templates, clusters.

A pass reads every block, keeps what it needs under ``_state/``, and leaves columns for each block there. `filter_block`
takes them like the columns of any detector (`filtering.detections`), so they stand in ``attributes/`` and a later run
with ``--reuse-scores`` needs no new pass, as long as the corpus and the settings of the pass are the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl.artifacts.files import FileRecord, atomic_file
from llmctl.artifacts.manifest import STATE_FOLDER, read_manifest
from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.artifacts.raw.read import read_block
from llmctl.errors import RunFailed, UserError
from llmctl.filtering.detections import DETECTIONS_KEY, Columns, Detector
from llmctl.filtering.scores import ATTRIBUTES_FOLDER, StoredScores
from llmctl.runtime.pool import Unit, UnitResult, run_units
from llmctl.text.buffers import text_buffers
from llmctl.text.skeletons import token_sequences

if TYPE_CHECKING:
    import pyarrow as pa

    from llmctl.artifacts.output import Output

TOKENS_FOLDER = f"{STATE_FOLDER}/tokens"
COLUMNS_FOLDER = f"{STATE_FOLDER}/columns"
_EXCERPT_CHARS = 20_000


@dataclass(frozen=True)
class Collected:
    """What a pass over the corpus found.

    Attributes:
        name: of the pass.
        identity: what its columns depend on: the corpus and the settings.
        columns: names of the columns.
        folder: where they lie, one file a block; None where an earlier run has them.
        report: the payload file that tells about the findings.
        findings: what it tells.
    """

    name: str
    identity: str
    columns: tuple[str, ...]
    folder: str | None
    report: str
    findings: dict[str, Any] = field(hash=False)

    def detector(self, part: str) -> Detector:
        """Return a detector that gives the columns of one block."""

        def detect(table: pa.Table) -> Columns:
            if self.folder is None:
                raise RunFailed(f"the {self.name} of {part} are not in the earlier run", "leave --reuse-scores out")
            values = np.load(Path(self.folder) / f"{part}.npy")
            if values.shape[1] != table.num_rows:
                raise RunFailed("the input was changed during the run", "run the same command again")
            return dict(zip(self.columns, values, strict=True))

        return Detector(self.name, self.identity, self.columns, detect)


@dataclass
class Corpus:
    """The blocks of a corpus, for passes over all of it.

    Attributes:
        out: the claimed output.
        units: gives the blocks as units of work, anew at each call.
        read: how raw files are read.
        names: of the blocks, in order.
        digest: of the bytes of all blocks.
        total_bytes: of the input, for progress.
    """

    out: Output
    units: Callable[[], Any]
    read: ReadOptions
    total_bytes: int
    names: list[str] = field(default_factory=list)
    digest: str = ""
    _tokens: list[tuple[Path, Path]] | None = None

    def __post_init__(self) -> None:
        digest = hashlib.sha256()
        for unit in self.units():
            self.names.append(unit.name)
            digest.update(f"{unit.name}\0{unit.key}\0".encode())
        self.digest = digest.hexdigest()[:32]

    def tokens(self) -> list[tuple[Path, Path]]:
        """Read all blocks once; return per block the files of its tokens and of where each document's tokens end."""
        if self._tokens is not None:
            return self._tokens
        context = CorpusContext(str(self.out.root), self.read)
        run_units(
            tokenise_block,
            self.units(),
            context,
            self.out,
            phase="tokens",
            label="reading",
            total_bytes=self.total_bytes,
        )
        folder = self.out.root / TOKENS_FOLDER
        self._tokens = [(folder / f"{name}-tokens.npy", folder / f"{name}-ends.npy") for name in self.names]
        return self._tokens

    def excerpts(self, rows: Mapping[str, Sequence[int]], phase: str) -> dict[tuple[str, int], tuple[str, str]]:
        """Return id and text of some documents, by block and row."""
        wanted = {name: sorted(set(numbers)) for name, numbers in rows.items() if numbers}
        key = hashlib.sha256(json.dumps([self.digest, wanted], sort_keys=True).encode()).hexdigest()[:16]
        units = (
            Unit(unit.name, (unit.payload, wanted[unit.name]), 0, key) for unit in self.units() if unit.name in wanted
        )
        context = CorpusContext(str(self.out.root), self.read)
        results = run_units(read_excerpts, units, context, self.out, phase=phase, label="looking at examples")
        return {
            (unit.name, row): (identifier, text)
            for unit, result in results
            for row, identifier, text in result.data["excerpts"]
        }

    def save_columns(self, name: str, columns: np.ndarray, firsts: np.ndarray) -> str:
        """Write columns, float64 of shape [columns, documents], block by block; return their folder."""
        for block, begin, end in zip(self.names, firsts, firsts[1:], strict=False):
            save_state(self.out.root, f"{COLUMNS_FOLDER}/{name}/part-{block}.npy", columns[:, begin:end])
        return str(self.out.root / COLUMNS_FOLDER / name)


@dataclass(frozen=True)
class CorpusContext:
    """What blocks are read with."""

    root: str
    read: ReadOptions


def save_state(root: Path, relative: str, array: np.ndarray) -> FileRecord:
    """Write an array of the run's state."""
    with atomic_file(root / relative) as out:
        np.lib.format.write_array(out, np.ascontiguousarray(array), allow_pickle=False)
    return out.record(relative)


def tokenise_block(unit: Unit, context: CorpusContext) -> UnitResult:
    """Write the tokens of the documents of one block."""
    batch = read_block(unit.payload, context.read)
    tokens, ends = token_sequences(*text_buffers(batch.table.column("text")))
    root = Path(context.root)
    files = [
        save_state(root, f"{TOKENS_FOLDER}/{unit.name}-tokens.npy", tokens),
        save_state(root, f"{TOKENS_FOLDER}/{unit.name}-ends.npy", ends),
    ]
    return UnitResult(files, {"documents": batch.table.num_rows})


def read_excerpts(unit: Unit, context: CorpusContext) -> UnitResult:
    """Read a block again for some of its rows. ``unit.payload`` is (block, rows)."""
    block, rows = unit.payload
    table = read_block(block, context.read).table
    found = table.take(rows) if max(rows) < table.num_rows else table.slice(0, 0)
    texts = [text[:_EXCERPT_CHARS] for text in found.column("text").to_pylist()]
    return UnitResult(
        [], {"excerpts": [list(row) for row in zip(rows, found.column("id").to_pylist(), texts, strict=False)]}
    )


def stored_findings(
    scores: StoredScores | None, corpus: Corpus, name: str, identity: str, report: str
) -> dict[str, Any] | None:
    """Return what the same pass found in an earlier run over the same corpus; None if there is no such run."""
    if scores is None or not corpus.names:
        return None
    try:
        if (
            _stored_identity(Path(scores.root) / ATTRIBUTES_FOLDER / f"part-{corpus.names[0]}.parquet", name)
            != identity
        ):
            return None
        paths = read_manifest(Path(scores.root)).paths(report)
        found = json.loads(paths[0].read_bytes()) if paths else None
    except (OSError, ValueError, UserError):  # pyarrow's exceptions are ValueErrors
        return None
    return found if isinstance(found, dict) else None


def _stored_identity(path: Path, name: str) -> str | None:
    import pyarrow.parquet as pq

    identities = json.loads((pq.read_schema(path).metadata or {}).get(DETECTIONS_KEY, b"{}"))
    return identities.get(name) if isinstance(identities, dict) else None
