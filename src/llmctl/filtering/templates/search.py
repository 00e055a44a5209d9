"""Run the search for templates over a corpus, and tell what was found."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmctl import console
from llmctl.artifacts.manifest import STATE_FOLDER
from llmctl.config.schema import to_mapping
from llmctl.filtering.collection import Collected, Corpus, save_state, stored_findings
from llmctl.filtering.scores import StoredScores
from llmctl.filtering.templates.config import TemplateConfig
from llmctl.runtime.pool import Unit, UnitResult, run_units
from llmctl.text.families import (
    LEAST_SHARED,
    NUM_BANDS,
    ROWS_PER_BAND,
    Family,
    FamilyLimits,
    FamilySearch,
    TokenStore,
    show_skeleton,
)
from llmctl.text.skeletons import FREQUENCY_BITS, SKETCH_SIZE, count_documents, count_hashes, shared_bands, sketches

COLUMNS = ("template_family", "template_size", "template_place", "template_slot_share")
REPORT_NAME = "templates.json"
SKETCHES_FOLDER = f"{STATE_FOLDER}/sketches"
FREQUENCIES_NAME = f"{STATE_FOLDER}/token-frequencies.npy"
_VERSION = 1
_SHOWN = 100  # families whose skeleton is in the report
_PRINTED = 8
_SKELETON_CHARS = 2000
_SLOT_CHARS = 80


def find_templates(corpus: Corpus, config: TemplateConfig, scores: StoredScores | None) -> Collected:
    """Find the families of the corpus; each document's family, its size, the document's place in it, its slot share.

    Families are numbered from 1, the largest first; documents of no family have NaN.
    """
    settings = json.dumps([_VERSION, to_mapping(config), corpus.digest], sort_keys=True)
    identity = hashlib.sha256(settings.encode()).hexdigest()[:32]
    stored = stored_findings(scores, corpus, "templates", identity, REPORT_NAME)
    if stored is not None:
        return Collected("templates", identity, COLUMNS, None, REPORT_NAME, stored)
    store = TokenStore(corpus.tokens())
    sketch_blocks(corpus, config)
    documents, hashes = find_candidates(corpus, store, config)
    limits = FamilyLimits(config.min_family, config.max_slot_share, config.min_skeleton)
    families = FamilySearch(store, limits, documents, hashes).run()
    columns = np.full((len(COLUMNS), int(store.firsts[-1])), np.nan)
    for number, family in enumerate(families, 1):
        size = len(family.members)
        columns[:, family.members] = [
            np.full(size, number),
            np.full(size, size),
            np.arange(size) + 1.0,
            family.slot_shares,
        ]
    folder = corpus.save_columns("templates", columns, store.firsts)
    findings = {"documents": int(store.firsts[-1]), "families": describe(corpus, store, families)}
    return Collected("templates", identity, COLUMNS, folder, REPORT_NAME, findings)


@dataclass(frozen=True)
class SketchContext:
    """What sketches are made with."""

    root: str
    min_family: int
    tokens: dict[str, tuple[str, str]]


def sketch_blocks(corpus: Corpus, config: TemplateConfig) -> None:
    """Write the sketches of every block, from its tokens and their frequencies in the corpus."""
    root = corpus.out.root
    pairs = corpus.tokens()
    frequencies = np.zeros(1 << FREQUENCY_BITS, np.uint32)
    for tokens, ends in pairs:
        frequencies += count_documents(np.load(tokens), np.load(ends), FREQUENCY_BITS)
    save_state(root, FREQUENCIES_NAME, frequencies)
    paths = {name: (str(tokens), str(ends)) for name, (tokens, ends) in zip(corpus.names, pairs, strict=True)}
    run_units(
        sketch_block,
        [Unit(name, None, Path(paths[name][0]).stat().st_size, corpus.digest) for name in corpus.names],
        SketchContext(str(root), config.min_family, paths),
        corpus.out,
        phase="sketches",
        label="looking for templates",
        most_workers=None if len(corpus.names) > 4 else 1,
    )


def sketch_block(unit: Unit, context: SketchContext) -> UnitResult:
    """Write the sketches of the documents of one block."""
    root = Path(context.root)
    tokens, ends = (np.load(path) for path in context.tokens[unit.name])
    frequencies = np.load(root / FREQUENCIES_NAME, mmap_mode="r")
    values, value_ends = sketches(tokens, ends, frequencies, FREQUENCY_BITS, context.min_family, SKETCH_SIZE)
    files = [
        save_state(root, f"{SKETCHES_FOLDER}/{unit.name}-values.npy", values),
        save_state(root, f"{SKETCHES_FOLDER}/{unit.name}-ends.npy", value_ends),
    ]
    return UnitResult(files, {"hashes": len(values)})


def find_candidates(corpus: Corpus, store: TokenStore, config: TemplateConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return the documents (ascending numbers) that share most of their sketch with others, and their band hashes."""
    folder = corpus.out.root / SKETCHES_FOLDER
    total = sum(len(np.load(folder / f"{name}-values.npy", mmap_mode="r")) for name in corpus.names)
    bits = min(max((4 * total).bit_length(), 16), 27)
    counts = np.zeros(1 << bits, np.uint16)
    for name in corpus.names:
        count_hashes(np.load(folder / f"{name}-values.npy"), counts, bits)
    documents, hashes = [np.zeros(0, np.int64)], [np.zeros((NUM_BANDS, 0), np.uint64)]
    for name, first in zip(corpus.names, store.firsts, strict=False):
        values, ends = np.load(folder / f"{name}-values.npy"), np.load(folder / f"{name}-ends.npy")
        rows, bands = shared_bands(
            values, ends, counts, bits, config.min_family, LEAST_SHARED, NUM_BANDS, ROWS_PER_BAND
        )
        documents.append(rows + first)
        hashes.append(bands)
    return np.concatenate(documents), np.concatenate(hashes, axis=1)


def describe(corpus: Corpus, store: TokenStore, families: list[Family]) -> list[dict[str, Any]]:
    """Return every family with its size; the largest with their skeleton, as its first member shows it."""
    places: list[tuple[str, int]] = []
    rows: dict[str, list[int]] = {}
    for family in families[:_SHOWN]:
        block = int(np.searchsorted(store.firsts, family.members[0], side="right")) - 1
        places.append((corpus.names[block], int(family.members[0] - store.firsts[block])))
        rows.setdefault(places[-1][0], []).append(places[-1][1])
    texts = corpus.excerpts(rows, "template-examples")
    described = []
    for number, family in enumerate(families):
        entry: dict[str, Any] = {
            "family": number + 1,
            "size": len(family.members),
            "skeleton_words": len(family.skeleton),
            "median_slot_share": round(float(np.median(family.slot_shares)), 4),
        }
        if number < len(places) and places[number] in texts:
            identifier, text = texts[places[number]]
            skeleton, slots = show_skeleton(text, family.skeleton)
            entry |= {
                "example_id": identifier,
                "skeleton": skeleton[:_SKELETON_CHARS],
                "slots": [slot[:_SLOT_CHARS] for slot in slots[:20]],
            }
        described.append(entry)
    return described


def statistics(found: Collected) -> dict[str, Any]:
    """Return the sums that stand in the manifest."""
    families = found.findings["families"]
    return {"families": len(families), "documents": sum(family["size"] for family in families)}


def report(found: Collected) -> None:
    """Print how many documents are template content, and the largest families."""
    families = found.findings["families"]
    covered, documents = sum(family["size"] for family in families), found.findings["documents"]
    console.info(f"templates: {covered:,} of {documents:,} documents in {len(families):,} families ({REPORT_NAME})")
    if families:
        rows = [
            (
                family["family"],
                family["size"],
                f"{100 * family['median_slot_share']:.0f}%",
                " ".join(family.get("skeleton", "").split())[:90],
            )
            for family in families[:_PRINTED]
        ]
        console.table("templates", ("family", "documents", "in slots", "skeleton"), rows)
