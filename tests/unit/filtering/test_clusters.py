"""Clusters by density: planted kinds are found whole and apart, and a drop removes them and nothing else."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from llmctl.artifacts.manifest import Manifest
from llmctl.config.load import build
from llmctl.errors import UserError
from llmctl.filtering.clusters.choosing import cluster_numbers, with_drop_list
from llmctl.filtering.clusters.config import ClusterConfig
from llmctl.filtering.clusters.model import fit
from llmctl.filtering.config import FilterConfig, FilterOptions
from llmctl.filtering.rules.cluster import Parameters, value
from llmctl.filtering.stage import run
from llmctl.text.skeletons import token_sequences

COMMON = ["the", "of", "and", "to", "in", "for", "with", "this", "that", "from"]
KINDS = {
    "casino": ["casino", "bonus", "jackpot", "slots", "roulette", "poker", "bet", "spins", "blackjack", "deposit"],
    "garden": ["soil", "rose", "prune", "compost", "seedling", "mulch", "hedge", "bulb", "lawn", "greenhouse"],
    "law": ["court", "appeal", "statute", "plaintiff", "verdict", "counsel", "tribunal", "clause", "liable", "breach"],
    "loan": ["贷款", "无抵押", "快速放款", "利率低", "额度高", "征信", "黑户", "咨询热线", "加微信", "低息"],
}
SIZES = {"casino": 40, "garden": 60, "law": 80, "loan": 30}


def document(kind: str, rng: random.Random) -> str:
    words = [rng.choice(KINDS[kind] if rng.random() < 0.6 else COMMON) for _ in range(rng.randrange(50, 90))]
    return "".join(word for word in words if word not in COMMON) if kind == "loan" else " ".join(words)


def corpus(path: Path) -> Path:
    rng = random.Random(2)
    records = [(f"{kind}-{n}", document(kind, rng)) for kind, size in SIZES.items() for n in range(size)]
    # Casino pages are short: the rest of the policy removes most of them, so their cluster is hardly usable.
    records = [(name, " ".join(text.split()[:40]) if name.startswith("casino") else text) for name, text in records]
    rng.shuffle(records)
    rows = [json.dumps({"id": name, "text": text, "source": "crawl"}, ensure_ascii=False) for name, text in records]
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def configuration(**values: Any) -> FilterConfig:
    fixed = {
        "preset": ["none"],
        "rules": {"word_count": {"min": 45, "max": None}},
        "detect_language": "off",
        "read": {"block_bytes": 20_000},
        "cluster": {"min_size": 15, "neighbours": 5, "dimensions": 8},
    }
    return build(FilterConfig, {**fixed, **values})


def column(manifest: Manifest, folder: str, name: str) -> list[Any]:
    return [item for path in manifest.paths(f"{folder}/") for item in pq.read_table(path)[name].to_pylist()]


def findings(output: Path) -> dict[str, Any]:
    return json.loads((output / "clusters.json").read_text())


@pytest.fixture
def options() -> FilterOptions:
    return FilterOptions(workers=1)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Manifest]:
    """A corpus, and its output with clusters."""
    folder = tmp_path_factory.mktemp("clusters")
    source = corpus(folder / "in.jsonl")
    manifest = run(source, folder / "first", configuration(clusters=True), FilterOptions(workers=1))
    return source, folder / "first", manifest


def test_planted_kinds_are_clusters_of_their_own(first: tuple[Path, Path, Manifest]) -> None:
    _, output, manifest = first
    pairs = Counter(
        (name.split("-")[0], int(number))
        for name, number in zip(
            column(manifest, "attributes", "id"), column(manifest, "attributes", "cluster"), strict=True
        )
    )
    found = findings(output)["clusters"]
    assert [entry["documents"] for entry in found] == [80, 60, 40, 30]
    assert pairs == {("law", 1): 80, ("garden", 2): 60, ("casino", 3): 40, ("loan", 4): 30}
    assert set(found[1]["terms"]) <= set(KINDS["garden"])
    assert any(term in "".join(KINDS["loan"]) for term in found[3]["terms"])
    assert found[0]["typical"][0]["id"].startswith("law")
    assert "cluster" not in manifest.statistics["by_reason"]


def test_usable_share_is_told_before_and_after_a_drop(
    first: tuple[Path, Path, Manifest], tmp_path: Path, options: FilterOptions
) -> None:
    source, output, manifest = first
    casino = findings(output)["clusters"][2]
    assert (casino["usable"], casino["usable_share"]) == (0, 0.0)
    before = manifest.statistics["clusters"]["usable_share"]
    assert before == {"before": round(170 / 210, 6), "after": round(170 / 210, 6)}

    options.reuse_scores = str(output)
    dropped = run(source, tmp_path / "out", configuration(drop_clusters=["3"]), options)
    assert dropped.statistics["clusters"]["usable_share"] == {"before": round(170 / 210, 6), "after": 1.0}
    assert dropped.statistics["clusters"]["documents"] == {"before": 210, "after": 170}


def test_a_drop_removes_that_kind_and_nothing_else(
    first: tuple[Path, Path, Manifest], tmp_path: Path, options: FilterOptions
) -> None:
    source, output, _ = first
    chosen = configuration(drop_clusters=["2,4"], rules={})
    manifest = run(source, tmp_path / "fresh", chosen, options)
    assert manifest.statistics["by_reason"] == {"cluster": 90}
    assert {name.split("-")[0] for name in column(manifest, "removed", "id")} == {"garden", "loan"}
    assert set(column(manifest, "removed", "value")) == {2.0, 4.0}
    # An earlier run over the same corpus gives the same bytes without a new pass.
    options.reuse_scores = str(output)
    reused = run(source, tmp_path / "reused", chosen, options)
    assert [file.sha256 for file in reused.files] == [file.sha256 for file in manifest.files]


def test_reuse_needs_no_new_clustering(
    first: tuple[Path, Path, Manifest], tmp_path: Path, options: FilterOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output, _ = first
    monkeypatch.setattr("llmctl.filtering.clusters.search.fit", None)
    options.reuse_scores = str(output)
    manifest = run(source, tmp_path / "out", configuration(drop_clusters=["1"]), options)
    assert manifest.statistics["by_reason"] == {"cluster": 80, "word_count": 40}


def test_clusters_of_little_use_are_dropped_by_rule(
    first: tuple[Path, Path, Manifest], tmp_path: Path, options: FilterOptions
) -> None:
    source, output, _ = first
    options.reuse_scores = str(output)
    manifest = run(source, tmp_path / "out", configuration(min_cluster_usable=0.5), options)
    assert manifest.statistics["clusters"]["dropped"] == [3]
    assert manifest.config["drop_clusters"] == ["3"]
    with pytest.raises(UserError, match="earlier output"):
        with_drop_list(configuration(min_cluster_usable=0.5), None)


def test_what_is_no_cluster_is_refused(
    first: tuple[Path, Path, Manifest], tmp_path: Path, options: FilterOptions
) -> None:
    assert cluster_numbers(["3, 7", "2"]) == [2, 3, 7]
    for wrong in ("0", "x", "-1", "2.5"):
        with pytest.raises(UserError, match="is no cluster"):
            configuration(drop_clusters=[wrong])
    source, output, _ = first
    options.reuse_scores = str(output)
    with pytest.raises(UserError, match="there is no cluster 99"):
        run(source, tmp_path / "out", configuration(drop_clusters=["99"]), options)


def test_the_rule_cluster_names_the_dropped() -> None:
    clusters = {"cluster": np.array([0.0, 1.0, 2.0, 3.0])}
    assert value(clusters, Parameters(drop=["1", "3"])).tolist() == [0, 1, 0, 3]


def test_documents_outside_the_sample_take_the_cluster_of_their_neighbours(
    first: tuple[Path, Path, Manifest], tmp_path: Path, options: FilterOptions
) -> None:
    source, _, _ = first
    small = {"sample": 120, "min_size": 10, "neighbours": 5, "dimensions": 8}
    manifest = run(source, tmp_path / "out", configuration(clusters=True, cluster=small), options)
    kinds = [name.split("-")[0] for name in column(manifest, "attributes", "id")]
    numbers = column(manifest, "attributes", "cluster")
    for kind, size in SIZES.items():
        (number, count), *_ = Counter(n for k, n in zip(kinds, numbers, strict=True) if k == kind and n).most_common(1)
        assert count >= 0.95 * size  # recall
        assert count >= 0.95 * numbers.count(number)  # precision
    assert findings(tmp_path / "out")["sample"] == 120


def test_a_corpus_of_a_few_documents_has_no_clusters(tmp_path: Path, options: FilterOptions) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n{"text": "two words"}\n{"text": ""}\n')
    manifest = run(tmp_path / "in.jsonl", tmp_path / "out", configuration(clusters=True, rules={}), options)
    assert manifest.statistics["clusters"]["clusters"] == 0
    assert set(column(manifest, "attributes", "cluster")) == {0.0}


def test_a_sample_without_a_word_has_no_clusters() -> None:
    data = b"...!!!"
    tokens, ends = token_sequences(np.frombuffer(data, np.uint8), np.array([0, 3, 4, 6]))
    assert fit(tokens, ends, ClusterConfig()).labels.tolist() == [0, 0, 0]


@pytest.mark.slow
def test_workers_threads_and_hash_seeds_change_nothing(first: tuple[Path, Path, Manifest], tmp_path: Path) -> None:
    seen = set()
    for number, (workers, threads, seed) in enumerate(((1, "1", "0"), (2, "2", "1"))):
        output = tmp_path / str(number)
        arguments = ["filter", first[0], output, "--preset", "none", "--clusters", "--workers", workers, "--quiet"]
        settings = ["read.block_bytes=20000", "cluster.min_size=15", "cluster.sample=150", "cluster.dimensions=8"]
        arguments += [part for setting in settings for part in ("--set", setting)]
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
        }
        subprocess.run([sys.executable, "-m", "llmctl", *map(str, arguments)], check=True, env=environment)
        seen.add((output / "manifest.json").read_text())
    assert len(seen) == 1
