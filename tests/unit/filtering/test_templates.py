"""Template content: planted families are found whole, nothing else is, for any way of running."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from llmctl.artifacts.manifest import Manifest
from llmctl.config.load import build
from llmctl.errors import UserError
from llmctl.filtering.config import FilterConfig, FilterOptions
from llmctl.filtering.stage import run
from llmctl.text.families import show_skeleton
from llmctl.text.skeletons import NUMBER, align, common_lengths, token_sequences, token_spans

THINGS = [
    "garden",
    "coffee",
    "kitchen",
    "leather",
    "travel",
    "office",
    "music",
    "winter",
    "silver",
    "cotton",
    "table",
    "lamp",
    "chair",
    "bottle",
    "camera",
]
PLACES = ["London", "Paris", "Berlin", "Boston", "Madrid", "Rome", "Oslo", "Dublin", "Vienna", "Prague"]
ZH_THINGS = ["手机", "茶叶", "空调", "家具", "白酒", "玉石", "瓷器", "丝绸", "自行车", "电动车"]
ZH_PLACES = ["北京", "上海", "广州", "深圳", "成都", "杭州", "武汉", "西安"]
AD = (
    "Buy {thing} {thing} online in {place} today at the best price from only {number} dollars. We deliver your new "
    "{thing} to {place} within {number} hours, free of charge. Read what our customers say and order now."
)
API = (
    "The function {thing}_{number} is defined in module {thing}. It takes {number} arguments and returns a value.\n\n"
    "Raises an error if the value of {thing} is not valid. This page was generated from the source of {thing}."
)
ZH_AD = "想在{zh_place}购买{zh_thing}吗？我们提供最优惠的{zh_thing}，价格仅为{number}元起，{zh_place}地区免费送货上门。"
TEMPLATES = {"ad": AD, "api": API, "zh": ZH_AD}
VOCABULARY = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("n", "r", "s", "t", "ld", "mb")]


def fill(template: str, rng: random.Random) -> str:
    choices = {"thing": THINGS, "place": PLACES, "zh_thing": ZH_THINGS, "zh_place": ZH_PLACES}
    return re.sub(
        r"\{(\w+)\}",
        lambda slot: str(rng.randrange(2, 999)) if slot[1] == "number" else rng.choice(choices[slot[1]]),
        template,
    )


def prose(rng: random.Random) -> str:
    """Words in no order that repeats, the frequent ones as frequent as in a language."""
    return " ".join(VOCABULARY[min(int(rng.paretovariate(0.6)), len(VOCABULARY)) - 1] for _ in range(80))


def corpus(folder: Path, size: int = 12) -> Path:
    rng = random.Random(5)
    records = [{"id": f"prose-{n}", "text": prose(rng)} for n in range(60)]
    for name, template in TEMPLATES.items():
        records += [{"id": f"{name}-{n}", "text": fill(template, rng)} for n in range(size)]
    rng.shuffle(records)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({**record, "source": "crawl"}, ensure_ascii=False) + "\n" for record in records]
    for part in range(2):
        (folder / f"{part}.jsonl").write_text("".join(lines[part::2]), encoding="utf-8")
    return folder


def configuration(**values: Any) -> FilterConfig:
    fixed = {"preset": ["none"], "detect_language": "off", "read": {"block_bytes": 4000}}
    return build(FilterConfig, {**fixed, **values})


def payload(manifest: Manifest) -> dict[str, str]:
    return {record.path: record.sha256 for record in manifest.files}


def column(manifest: Manifest, folder: str, name: str) -> list[Any]:
    return [value for path in manifest.paths(f"{folder}/") for value in pq.read_table(path)[name].to_pylist()]


@pytest.fixture
def options() -> FilterOptions:
    return FilterOptions(workers=1)


def test_planted_families_are_found_whole_and_one_of_each_stays(tmp_path: Path, options: FilterOptions) -> None:
    manifest = run(corpus(tmp_path / "in"), tmp_path / "out", configuration(templates="drop"), options)
    kept = column(manifest, "data", "id")
    assert sum(name.startswith("prose") for name in kept) == 60
    assert sorted(name.split("-")[0] for name in kept if not name.startswith("prose")) == ["ad", "api", "zh"]
    assert manifest.statistics["by_reason"] == {"template": 33}
    assert manifest.statistics["templates"] == {"families": 3, "documents": 36}
    assert set(column(manifest, "removed", "threshold")) == {1.0}
    assert sorted(column(manifest, "removed", "value")) == sorted([float(place) for place in range(2, 13)] * 3)

    families = json.loads((tmp_path / "out" / "templates.json").read_text())["families"]
    skeletons = " ".join(family["skeleton"] for family in families)
    assert "Buy {…} online in {…} today" in skeletons
    assert "想在{…}购买{…}吗" in skeletons
    assert all(family["size"] == 12 and family["slots"] for family in families)


def test_reported_families_remove_nothing(tmp_path: Path, options: FilterOptions) -> None:
    manifest = run(corpus(tmp_path / "in"), tmp_path / "out", configuration(templates="report"), options)
    assert manifest.statistics["records"]["removed"] == 0
    sizes = column(manifest, "attributes", "template_size")
    assert (sizes.count(12.0), sizes.count(None)) == (36, 60)


def test_limits_decide_what_a_family_is(tmp_path: Path, options: FilterOptions) -> None:
    source = corpus(tmp_path / "in")
    larger = run(source, tmp_path / "a", configuration(templates="drop", template={"min_family": 13}), options)
    assert larger.statistics["templates"] == {"families": 0, "documents": 0}
    fuller = run(source, tmp_path / "b", configuration(templates="drop", template={"max_slot_share": 0.1}), options)
    assert fuller.statistics["templates"]["families"] == 0
    more = configuration(templates="drop", rules={"template": {"max": 5}})
    assert run(source, tmp_path / "c", more, options).statistics["by_reason"] == {"template": 21}


def test_sources_may_keep_their_templates(tmp_path: Path, options: FilterOptions) -> None:
    chosen = configuration(templates="drop", sources={"crawl": {"template": "off"}})
    assert run(corpus(tmp_path / "in"), tmp_path / "out", chosen, options).statistics["records"]["removed"] == 0


def test_reused_scores_need_no_new_pass_and_give_the_same_bytes(
    tmp_path: Path, options: FilterOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = corpus(tmp_path / "in")
    run(source, tmp_path / "first", configuration(templates="report"), options)
    fresh = run(source, tmp_path / "fresh", configuration(templates="drop"), options)
    monkeypatch.setattr("llmctl.filtering.templates.search.find_families", None)  # a new pass would fail
    reusing = FilterOptions(workers=1, reuse_scores=str(tmp_path / "first"))
    reused = run(source, tmp_path / "reused", configuration(templates="drop"), reusing)
    assert payload(reused) == payload(fresh)


def test_a_changed_corpus_is_searched_anew(tmp_path: Path, options: FilterOptions) -> None:
    source = corpus(tmp_path / "in")
    run(source, tmp_path / "first", configuration(templates="report"), options)
    (source / "1.jsonl").unlink()
    reusing = FilterOptions(workers=1, reuse_scores=str(tmp_path / "first"))
    manifest = run(source, tmp_path / "second", configuration(templates="drop"), reusing)
    assert manifest.statistics["templates"]["families"] == 0  # six of each are left


def test_a_killed_run_goes_on_with_what_the_pass_has_read(
    tmp_path: Path, options: FilterOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = corpus(tmp_path / "in")
    whole = run(source, tmp_path / "whole", configuration(templates="drop", clusters=True), options)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("llmctl.filtering.stage.filter_block", stop)
        run(source, tmp_path / "killed", configuration(templates="drop", clusters=True), options)
    monkeypatch.setattr("llmctl.filtering.collection.tokenise_block", stop)  # all blocks are read already
    resumed = run(source, tmp_path / "killed", configuration(templates="drop", clusters=True), options)
    assert payload(resumed) == payload(whole)


def test_an_empty_corpus_has_no_families(tmp_path: Path, options: FilterOptions) -> None:
    (tmp_path / "in.jsonl").write_text("")
    try:
        manifest = run(tmp_path / "in.jsonl", tmp_path / "out", configuration(templates="drop"), options)
    except UserError as refused:
        assert "in.jsonl" in refused.problem  # an input without records is refused before
    else:
        assert manifest.statistics["templates"] == {"families": 0, "documents": 0}


@pytest.mark.slow
def test_workers_and_hash_seeds_change_nothing(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in")
    seen = set()
    for number, (workers, seed) in enumerate(((1, "0"), (2, "1"))):
        output = tmp_path / str(number)
        arguments = ["filter", source, output, "--preset", "none", "--templates", "drop", "--workers", workers]
        arguments += ["--set", "read.block_bytes=4000", "--detect-language", "off", "--quiet"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-m", "llmctl", *map(str, arguments)], check=True, env=environment)
        seen.add((output / "manifest.json").read_text())
    assert len(seen) == 1


def test_tokens_are_words_characters_and_numbers() -> None:
    text = "The v2 API 购买 the".encode()
    tokens, starts, stops = token_spans(text)
    assert [text[a:b].decode() for a, b in zip(starts, stops, strict=True)] == ["The", "v2", "API", "购", "买", "the"]
    assert tokens[0] == tokens[5]
    assert tokens[1] == NUMBER
    assert list(tokens & 1) == [0, 0, 0, 1, 1, 0]


def test_common_subsequences_are_the_longest() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        one, two = (rng.integers(4, 9, rng.integers(0, 30)).astype(np.uint32) for _ in range(2))
        table = np.zeros((len(one) + 1, len(two) + 1), int)
        for i, a in enumerate(one):
            for j, b in enumerate(two):
                table[i + 1, j + 1] = table[i, j] + 1 if a == b else max(table[i, j + 1], table[i + 1, j])
        assert common_lengths(one, two, np.array([0, len(two)]))[0] == table[-1, -1]
        in_one, in_two = align(one, two)
        assert len(in_one) == table[-1, -1]
        assert (one[in_one] == two[in_two]).all()
        assert (np.diff(in_one) > 0).all() and (np.diff(in_two) > 0).all()


def test_a_skeleton_is_shown_with_its_slots() -> None:
    text = "Buy blue lamps in New York now!"
    skeleton = token_sequences(np.frombuffer(b"buy in now", np.uint8), np.array([0, 10]))[0]
    assert show_skeleton(text, skeleton) == ("Buy {…} in {…} now!", ["blue lamps", "New York"])
