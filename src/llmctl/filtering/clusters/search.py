"""Run the clustering over a corpus, and tell what kinds of documents it has."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl import console
from llmctl.artifacts.manifest import STATE_FOLDER
from llmctl.config.schema import to_mapping
from llmctl.filtering.clusters.config import ClusterConfig
from llmctl.filtering.clusters.model import FEATURE_BITS, ClusterModel, Fitted, fit
from llmctl.filtering.collection import COLUMNS_FOLDER, Collected, Corpus, save_state, stored_findings
from llmctl.filtering.scores import StoredScores
from llmctl.runtime.pool import Unit, UnitResult, run_units
from llmctl.text.families import TokenStore
from llmctl.text.features import feature_numbers
from llmctl.text.skeletons import token_spans

if TYPE_CHECKING:
    from llmctl.filtering.evaluate import Verdict

COLUMNS = ("cluster",)
REPORT_NAME = "clusters.json"
RULE = "cluster"
MODEL_FOLDER = f"{STATE_FOLDER}/cluster-model"
_VERSION = 1
_TYPICAL = 5  # documents of a cluster that are looked at, for its terms
_SHOWN_TYPICAL = 3
_TERMS = 10
_PRINTED = 20
_EXCERPT_CHARS = 200
_ARRAYS = ("weights", "components", "references", "labels")


def find_clusters(corpus: Corpus, config: ClusterConfig, scores: StoredScores | None) -> Collected:
    """Find the clusters of the corpus, and each document's; 0 for documents of no cluster."""
    settings = json.dumps([_VERSION, to_mapping(config), corpus.digest], sort_keys=True)
    identity = hashlib.sha256(settings.encode()).hexdigest()[:32]
    stored = stored_findings(scores, corpus, "clusters", identity, REPORT_NAME)
    if stored is not None:
        return Collected("clusters", identity, COLUMNS, None, REPORT_NAME, stored)
    store = TokenStore(corpus.tokens())
    documents = sample_documents(int(store.firsts[-1]), config)
    findings: dict[str, Any] = {"sample": len(documents), "clusters": []}
    if len(documents) > 2:
        tokens, ends = store.sequences(documents)
        fitted = fit(tokens, ends, config)
        sizes = assign_blocks(corpus, store, fitted, documents, config)
        findings["clusters"] = describe(corpus, store, fitted, documents, sizes)
    else:
        corpus.save_columns("clusters", np.zeros((1, int(store.firsts[-1]))), store.firsts)
    folder = str(corpus.out.root / COLUMNS_FOLDER / "clusters")
    return Collected("clusters", identity, COLUMNS, folder, REPORT_NAME, findings)


def sample_documents(count: int, config: ClusterConfig) -> np.ndarray:
    """Return the numbers of the sampled documents, in random order; int64."""
    generator = np.random.Generator(np.random.PCG64(config.seed))
    return generator.choice(count, min(count, config.sample), replace=False, shuffle=True).astype(np.int64)


@dataclass(frozen=True)
class AssignContext:
    """What the documents of a block get their clusters with.

    Attributes:
        root: the output folder.
        words: of a document, that count.
        tokens: per block the files of its tokens.
    """

    root: str
    words: int
    tokens: dict[str, tuple[str, str]]


def assign_blocks(
    corpus: Corpus, store: TokenStore, fitted: Fitted, documents: np.ndarray, config: ClusterConfig
) -> Counter[int]:
    """Write the clusters of all documents, block by block; return how many documents each cluster has."""
    root = corpus.out.root
    for name in _ARRAYS:
        save_state(root, f"{MODEL_FOLDER}/{name}.npy", getattr(fitted.model, name))
    order = np.argsort(documents)
    save_state(root, f"{MODEL_FOLDER}/sample.npy", np.stack([documents[order], fitted.labels[order].astype(np.int64)]))
    pairs = corpus.tokens()
    paths = {name: (str(tokens), str(ends)) for name, (tokens, ends) in zip(corpus.names, pairs, strict=True)}
    results = run_units(
        assign_block,
        [
            Unit(name, (int(begin), int(end)), Path(paths[name][0]).stat().st_size, corpus.digest)
            for name, begin, end in zip(corpus.names, store.firsts, store.firsts[1:], strict=False)
        ],
        AssignContext(str(root), config.words, paths),
        corpus.out,
        phase="clusters",
        label="assigning clusters",
        most_workers=None if len(corpus.names) > 4 else 1,
    )
    sizes: Counter[int] = Counter()
    for _, result in results:
        sizes.update({int(number): count for number, count in result.data["sizes"].items()})
    return sizes


def assign_block(unit: Unit, context: AssignContext) -> UnitResult:
    """Write the clusters of one block. ``unit.payload`` is the range of its documents' numbers."""
    from threadpoolctl import threadpool_limits

    begin, end = unit.payload
    root = Path(context.root)
    model = ClusterModel(*(np.load(root / MODEL_FOLDER / f"{name}.npy") for name in _ARRAYS))
    tokens, ends = (np.load(path) for path in context.tokens[unit.name])
    with threadpool_limits(1):
        labels = model.assign(model.place(tokens, ends, context.words))
    sample, known = np.load(root / MODEL_FOLDER / "sample.npy")
    first, last = np.searchsorted(sample, [begin, end])
    labels[sample[first:last] - begin] = known[first:last]
    file = save_state(root, f"{COLUMNS_FOLDER}/clusters/part-{unit.name}.npy", labels[None, :].astype(np.float64))
    sizes = {str(number): int(count) for number, count in enumerate(np.bincount(labels)) if count}
    return UnitResult([file], {"sizes": sizes})


def describe(
    corpus: Corpus, store: TokenStore, fitted: Fitted, documents: np.ndarray, sizes: Mapping[int, int]
) -> list[dict[str, Any]]:
    """Return every cluster with its size, the terms that it has more than others, and typical documents."""
    typical: dict[int, list[tuple[str, int]]] = {}
    rows: dict[str, list[int]] = {}
    for number in range(1, int(fitted.labels.max(initial=0)) + 1):
        members = np.flatnonzero(fitted.labels == number)
        likeness = fitted.vectors[members] @ fitted.vectors[members].mean(axis=0)
        for member in members[np.lexsort((documents[members], -likeness))][:_TYPICAL]:
            block = int(np.searchsorted(store.firsts, documents[member], side="right")) - 1
            place = corpus.names[block], int(documents[member] - store.firsts[block])
            typical.setdefault(number, []).append(place)
            rows.setdefault(place[0], []).append(place[1])
    texts = corpus.excerpts(rows, "cluster-examples")
    everywhere = np.asarray(fitted.features.mean(axis=0)).ravel()
    described = []
    for number, places in typical.items():
        here = np.asarray(fitted.features[fitted.labels == number].mean(axis=0)).ravel()
        found = [texts[place] for place in places if place in texts]
        described.append(
            {
                "cluster": number,
                "documents": sizes.get(number, 0),
                "terms": cluster_terms([text for _, text in found], here - everywhere),
                "typical": [
                    {"id": identifier, "text": text[:_EXCERPT_CHARS]} for identifier, text in found[:_SHOWN_TYPICAL]
                ],
            }
        )
    return described


def cluster_terms(texts: Iterable[str], scores: np.ndarray) -> list[str]:
    """Return the words of the texts (pairs of characters in scripts without spaces) with the highest scores."""
    keys: dict[str, int] = {}
    for text in texts:
        data = text.encode()
        tokens, starts, stops = token_spans(data)
        for place in np.flatnonzero(tokens > 3):
            token, following = int(tokens[place]), int(tokens[place + 1]) if place + 1 < len(tokens) else 0
            if not token & 1:
                keys.setdefault(data[starts[place] : stops[place]].decode().lower(), token)
            elif following & 1 and starts[place + 1] == stops[place]:
                keys.setdefault(data[starts[place] : stops[place + 1]].decode(), token << 32 | following)
    terms = sorted(keys)
    if not terms:
        return []
    values = scores[feature_numbers(np.array([keys[term] for term in terms], np.uint64), FEATURE_BITS)]
    best = np.lexsort((np.arange(len(terms)), -values))[:_TERMS]
    return [terms[place] for place in best if values[place] > 0]


# -- what is usable -----------------------------------------------------------------------------------------------


def count_usable(detected: Mapping[str, np.ndarray], verdicts: Mapping[str, Verdict]) -> dict[str, list[int]] | None:
    """Return for each cluster of a block how many documents it has and how many pass all rules but the clusters'.

    None without clusters.
    """
    if "cluster" not in detected:
        return None
    labels = detected["cluster"].astype(np.int64)
    usable = np.ones(len(labels), np.bool_)
    for name, verdict in verdicts.items():
        if name != RULE:
            usable &= ~verdict.failed
    documents, passing = np.bincount(labels), np.bincount(labels[usable], minlength=int(labels.max(initial=0)) + 1)
    return {str(number): [int(documents[number]), int(passing[number])] for number in np.flatnonzero(documents)}


def add_usable(found: Collected, parts: Iterable[dict[str, list[int]] | None], dropped: Sequence[int]) -> None:
    """Complete the findings: usable documents of each cluster, and the usable share before and after the drop."""
    counts: dict[int, list[int]] = {}
    for part in parts:
        for number, (documents, usable) in (part or {}).items():
            have = counts.setdefault(int(number), [0, 0])
            have[0] += documents
            have[1] += usable
    findings = found.findings
    for entry in findings["clusters"]:
        documents, usable = counts.get(entry["cluster"], [0, 0])
        entry["usable"] = usable
        entry["usable_share"] = _share(usable, documents)
        entry["dropped"] = entry["cluster"] in dropped
    outside = counts.get(0, [0, 0])
    findings["outside"] = {
        "documents": outside[0],
        "usable": outside[1],
        "usable_share": _share(outside[1], outside[0]),
    }
    before = [sum(column) for column in zip(*counts.values(), strict=True)] or [0, 0]
    left = [numbers for number, numbers in counts.items() if number not in dropped]
    after = [sum(column) for column in zip(*left, strict=True)] or [0, 0]
    findings["usable_share"] = {"before": _share(before[1], before[0]), "after": _share(after[1], after[0])}
    findings["documents"] = {"before": before[0], "after": after[0]}


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def statistics(found: Collected) -> dict[str, Any]:
    """Return the sums that stand in the manifest."""
    return {
        "clusters": len(found.findings["clusters"]),
        "dropped": [entry["cluster"] for entry in found.findings["clusters"] if entry["dropped"]],
        "documents": found.findings["documents"],
        "usable_share": found.findings["usable_share"],
    }


def report(found: Collected) -> None:
    """Print the clusters with their size, usable share and terms, and the usable share before and after."""
    findings = found.findings
    total = findings["documents"]["before"]
    clusters = findings["clusters"]
    console.info(
        f"clusters: {len(clusters):,} on a sample of {findings['sample']:,}; {findings['outside']['documents']:,} of "
        f"{total:,} documents in none ({REPORT_NAME})"
    )
    rows = [
        (
            str(entry["cluster"]) + (" dropped" if entry["dropped"] else ""),
            entry["documents"],
            f"{100 * _share(entry['documents'], total):.1f}%",
            f"{100 * entry['usable_share']:.1f}%",
            ", ".join(entry["terms"][:7]),
            entry["typical"][0]["id"] if entry["typical"] else None,
        )
        for entry in clusters[:_PRINTED]
    ]
    if rows:
        title = "clusters" if len(clusters) <= _PRINTED else f"clusters (the largest {_PRINTED} of {len(clusters)})"
        console.table(title, ("cluster", "documents", "share", "usable", "terms", "typical"), rows)
    before, after = findings["usable_share"]["before"], findings["usable_share"]["after"]
    line = f"usable (passes every other rule): {100 * before:.1f}% of {total:,} documents"
    if any(entry["dropped"] for entry in clusters):
        line += f"; {100 * after:.1f}% of the {findings['documents']['after']:,} outside the dropped clusters"
    console.info(line)
