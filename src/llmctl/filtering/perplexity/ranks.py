"""Score a whole corpus and rank each source's documents, before any is judged."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmctl import console
from llmctl.artifacts.manifest import STATE_FOLDER
from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.artifacts.raw.read import read_block
from llmctl.filtering.collection import Collected, Corpus, save_state, stored_findings
from llmctl.filtering.models import ModelFolder
from llmctl.filtering.perplexity.model import COLUMNS as SCORES
from llmctl.filtering.perplexity.model import perplexities_under
from llmctl.filtering.scores import StoredScores
from llmctl.runtime.pool import Unit, UnitResult, run_units

NAME = "perplexity"
RANKS = ("perplexity_rank", "variation_rank")
COLUMNS = (*SCORES, *RANKS)
REPORT_NAME = "perplexity.json"
SCORES_FOLDER = f"{STATE_FOLDER}/perplexity"
MIN_RANKED = 50  # documents of a source, under which a rank says nothing
PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


@dataclass(frozen=True)
class ScoreContext:
    """What blocks are scored with."""

    root: str
    read: ReadOptions
    model: ModelFolder


def rank_documents(corpus: Corpus, model: ModelFolder, scores: StoredScores | None) -> Collected:
    """Score every document and rank it in its source; 24 bytes of memory a document."""
    identity = hashlib.sha256(f"{model.fingerprint} {corpus.digest}".encode()).hexdigest()[:32]
    stored = stored_findings(scores, corpus, NAME, identity, REPORT_NAME)
    if stored is not None:
        return Collected(NAME, identity, COLUMNS, None, REPORT_NAME, stored)
    results = run_units(
        score_block,
        corpus.units(),
        ScoreContext(str(corpus.out.root), corpus.read, model),
        corpus.out,
        phase=NAME,
        label="perplexity",
        total_bytes=corpus.total_bytes,
    )
    folder = corpus.out.root / SCORES_FOLDER
    names = sorted({name for _, result in results for name in result.data["sources"]})
    parts, sources = [], []
    for unit, result in results:
        block = np.load(folder / f"{unit.name}.npy")
        numbers = np.array([names.index(name) for name in result.data["sources"]], np.int32)
        sources.append(numbers[block[2].astype(np.int64)])
        parts.append(block[:2])
    scored = np.concatenate(parts, axis=1) if parts else np.zeros((2, 0))
    source_of_document = np.concatenate(sources) if sources else np.zeros(0, np.int32)
    columns = np.concatenate([scored, np.full(scored.shape, np.nan)])
    findings: dict[str, Any] = {"model": model.fingerprint, "sources": []}
    for number, name in enumerate(names):
        rows = np.flatnonzero(source_of_document == number)
        columns[2:, rows] = [ranks(values) for values in scored[:, rows]]
        findings["sources"].append({"source": name, "documents": len(rows), **_describe(scored[:, rows])})
    firsts = np.cumsum([0, *(part.shape[1] for part in parts)])
    return Collected(NAME, identity, COLUMNS, corpus.save_columns(NAME, columns, firsts), REPORT_NAME, findings)


def score_block(unit: Unit, context: ScoreContext) -> UnitResult:
    """Write perplexity, its variation and the number of the source of every document of a block."""
    batch = read_block(unit.payload, context.read)
    found = perplexities_under(batch.table.column("text"), context.model.root, context.model.fingerprint)
    names = sorted(set(batch.table.column("source").to_pylist()))
    place = {name: number for number, name in enumerate(names)}
    numbers = [place[name] for name in batch.table.column("source").to_pylist()]
    array = np.stack([*found.values(), np.array(numbers, np.float64)])
    file = save_state(Path(context.root), f"{SCORES_FOLDER}/{unit.name}.npy", array)
    return UnitResult([file], {"sources": names})


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of every value in (0, 1), equal values alike; NaN stays, and so do too few values to rank."""
    found = np.full(len(values), np.nan)
    known = np.flatnonzero(~np.isnan(values))
    if len(known) < MIN_RANKED:
        return found
    ordered = np.sort(values[known])
    below = np.searchsorted(ordered, values[known], "left")
    until = np.searchsorted(ordered, values[known], "right")
    found[known] = (below + until) / (2 * len(known))
    return found


def _describe(scored: np.ndarray) -> dict[str, Any]:
    described: dict[str, Any] = {}
    for name, values in zip(SCORES, scored, strict=True):
        known = values[~np.isnan(values)]
        points = np.percentile(known, PERCENTILES) if len(known) else ()
        described[name] = {
            "judged": len(known),
            "percentiles": {
                str(percent): round(float(value), 4) for percent, value in zip(PERCENTILES, points, strict=False)
            },
        }
    return described


def statistics(found: Collected) -> dict[str, Any]:
    """Return what the manifest tells."""
    return {"sources": len(found.findings["sources"])}


def report(found: Collected) -> None:
    """Print the perplexities by source."""
    few = [row["source"] for row in found.findings["sources"] if row["perplexity"]["judged"] < MIN_RANKED]
    rows = [
        (row["source"], row["documents"], *(row["perplexity"]["percentiles"].get(p, "–") for p in ("5", "50", "95")))
        for row in found.findings["sources"]
    ]
    console.table("perplexity", ("source", "documents", "5 %", "median", "95 %"), rows[:20])
    if few:
        console.warning(
            f"not ranked, with fewer than {MIN_RANKED} documents to rank: {', '.join(few[:5])}"
            + (f" and {len(few) - 5} more" if len(few) > 5 else ""),
            "group small sources: --set read.source=NAME",
        )
