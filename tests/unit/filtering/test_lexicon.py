"""Lists of words and phrases: what counts as a find, whose list applies, and what `safety` says of itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmctl.artifacts.manifest import Manifest
from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.cli.app import run as run_command
from llmctl.config.common import RunOptions
from llmctl.filtering import lexicon
from llmctl.filtering.classifiers.config import ClassifierConfig
from llmctl.filtering.classifiers.stage import run as train
from llmctl.filtering.config import FilterConfig, FilterOptions
from llmctl.filtering.rules import load_rule
from llmctl.filtering.stage import run
from llmctl.text.buffers import text_buffers
from llmctl.text.phrases import compile_phrases, count_phrases


def count(texts: list[str], *phrases: str) -> list[int]:
    return count_phrases(*text_buffers(pa.array(texts, pa.large_string())), compile_phrases(phrases)).tolist()


def test_phrases_match_whole_words_in_any_case() -> None:
    assert count(["Cat cats concat CAT. cat's", "scat", "cat", ""], "cat") == [3, 0, 1, 0]
    assert count(["DO  not\n\tDistribute", "do not distributed", "donot distribute"], "do not distribute") == [1, 0, 0]
    assert count(["ПРИВЕТ мир, приветы", "café cafés CAFÉ"], "привет", "café") == [1, 2]


def test_phrases_of_scripts_without_spaces_match_anywhere() -> None:
    assert count(["内部资料，严禁外传。此内部资料", "猫cat猫"], "内部资料", "严禁外传", "cat") == [3, 1]


def test_longer_and_shorter_phrases_that_end_together_count_once() -> None:
    assert count(["a trade secret", "trade secret", "xsecret"], "secret", "trade secret") == [1, 1, 0]
    assert count(["abcd bcd"], "abcd", "bcd", "cd") == [2]
    assert count(["anything"]) == [0]


def test_counts_are_those_of_regular_expressions() -> None:
    draw = np.random.default_rng(5)
    phrases = ["ab", "ba b", "aab", "b", "abab"]
    pattern = re.compile("|".join(rf"\b{re.escape(phrase)}\b" for phrase in ("ab", "aab", "abab")))
    texts = ["".join(draw.choice(list("ab  .-_"), 60)) for _ in range(200)]
    assert count(texts, "ab", "aab", "abab") == [len(pattern.findall(text)) for text in texts]
    assert sum(count(texts, *phrases)) > 0


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


def table(manifest: Manifest, folder: str) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in manifest.paths(f"{folder}/")])


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    records = [
        {"id": "rude", "text": "You bloody fucking idiot, get lost.", "source": "forum"},
        {"id": "novel", "text": "He said shit once, " + "and then he went on and on. " * 40, "source": "books"},
        {"id": "memo", "text": "STRICTLY\nCONFIDENTIAL: the figures of the third quarter.", "source": "forum"},
        {"id": "内部", "text": "本文为内部资料，请勿传播给他人。", "source": "books"},
        {"id": "fine", "text": "The figures of the third quarter were distributed.", "source": "forum"},
    ]
    return write(tmp_path / "in.jsonl", records)


def test_the_preset_safety_says_what_it_checks(talk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["filter", str(talk), str(tmp_path / "out"), "--preset", "safety", "--workers", "1"]
    assert run_command(command) == 0
    talk_of_it = capsys.readouterr().err
    assert "not checked, as no such classifier is given: severe_toxicity > 0.4, legal_risk > 0.7" in talk_of_it
    removed = pa.concat_tables([pq.read_table(path) for path in (tmp_path / "out/removed").iterdir()]).to_pylist()
    assert {row["id"]: row["reason"] for row in removed} == {
        "rude": "abusive_words",
        "memo": "restriction_notices",
        "内部": "restriction_notices",
    }


def test_a_classifier_of_that_name_gets_the_limit_of_the_preset(talk: Path, tmp_path: Path) -> None:
    good = [{"text": f"The figures of quarter {n} were good. {chr(97 + n)}", "label": "0"} for n in range(20)]
    bad = [{"text": f"You idiot, get lost {chr(97 + n)}", "label": "1"} for n in range(20)]
    data = write(tmp_path / "labels.jsonl", [*good, *bad])
    train(tmp_path / "model", ClassifierConfig(features=12), RunOptions(workers=1), data=data)
    config = FilterConfig(preset=["safety"], rules={"abusive_words": "off"})
    given = [f"severe_toxicity={tmp_path / 'model'}"]
    manifest = run(talk, tmp_path / "out", config, FilterOptions(workers=1), classifiers=given)
    removed = {row["id"]: row for row in table(manifest, "removed").to_pylist()}
    assert (removed["rude"]["reason"], removed["rude"]["threshold"]) == ("classifier.severe_toxicity", 0.4)


def test_lists_by_source_and_stored_counts(talk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {"restriction_notices": {"phrases": ["third quarter"]}}
    sources = {"books": {"restriction_notices": {"phrases": ["传播"]}, "abusive_words": {"max": 0}}}
    config = FilterConfig(preset=["none"], rules=rules, sources=sources, read=ReadOptions(block_bytes=1024))
    manifest = run(talk, tmp_path / "out", config, FilterOptions(workers=1))
    assert set(table(manifest, "data")["id"].to_pylist()) == {"rude"}

    def refuse(*_: object) -> None:
        raise AssertionError("phrases are counted again")

    monkeypatch.setattr(lexicon, "count_phrases", refuse)
    sources["books"]["abusive_words"]["max"] = 100
    again = FilterConfig(preset=["none"], rules=rules, sources=sources, read=ReadOptions(block_bytes=1024))
    reused = run(talk, tmp_path / "two", again, FilterOptions(workers=1, reuse_scores=str(tmp_path / "out")))
    assert set(table(reused, "data")["id"].to_pylist()) == {"rude", "novel"}


def test_shipped_lists_are_clean() -> None:
    for rule, field in (("abusive_words", "WORDS"), ("restriction_notices", "PHRASES")):
        entries = getattr(load_rule(rule), field)
        assert len(entries) == len(set(entries)) > 30
        assert all(entry == entry.strip().lower() for entry in entries)
