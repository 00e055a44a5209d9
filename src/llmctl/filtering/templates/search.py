"""Run the search for templates over a corpus, and tell what was found."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from llmctl import console
from llmctl.artifacts.manifest import STATE_FOLDER
from llmctl.config.schema import to_mapping
from llmctl.filtering.collection import Collected, Corpus, stored_findings
from llmctl.filtering.scores import StoredScores
from llmctl.filtering.templates.config import TemplateConfig
from llmctl.text.families import Family, FamilyLimits, TokenStore, find_families, show_skeleton

COLUMNS = ("template_family", "template_size", "template_place", "template_slot_share")
REPORT_NAME = "templates.json"
SKETCHES_FOLDER = f"{STATE_FOLDER}/sketches"
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
    limits = FamilyLimits(config.min_family, config.max_slot_share, config.min_skeleton)
    families = find_families(store, corpus.out.root / SKETCHES_FOLDER, limits)
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
