"""Presets, overrides and policies by source."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmctl.config.load import load
from llmctl.errors import UserError
from llmctl.filtering.config import FilterConfig
from llmctl.filtering.evaluate import Evaluator
from llmctl.filtering.policy import policy_of, preset_names, resolve_policies
from llmctl.text.statistics import ALL_COLUMNS


def policies(**values: Any) -> Any:
    return resolve_policies(FilterConfig(**values))


def test_the_default_is_the_preset_general() -> None:
    default = policies()[0]
    assert next(iter(default.rules)) == "empty"
    assert default.rules["word_count"].min == 50
    assert "stop_words" not in default.rules
    assert default.to_mapping() == policies(preset=["general"])[0].to_mapping()


def test_no_preset_still_removes_empty_documents() -> None:
    assert list(policies(preset=["none"])[0].rules) == ["empty"]
    assert list(policies(preset=["none"], rules={"empty": False})[0].rules) == []


def test_a_later_preset_wins_and_an_included_one_comes_first() -> None:
    assert policies(preset=["gopher", "fineweb2-zh"])[0].rules["mean_word_length"].min == 1
    assert policies(preset=["fineweb2-zh", "gopher"])[0].rules["mean_word_length"].min == 3
    fineweb = policies(preset=["fineweb"])[0].rules
    assert list(fineweb).index("stop_words") < list(fineweb).index("end_mark_lines")
    assert list(fineweb)[-1] == "nothing_left"


def test_c4_has_the_numbers_of_its_own_code() -> None:
    rules = policies(preset=["c4"])[0].rules
    assert (rules["line_few_words"].min, rules["sentences"].min) == (5, 3)


def test_overrides_change_add_and_switch_off() -> None:
    rules = policies(
        preset=["gopher"],
        rules={
            "word_count": {"min": 5},
            "stop_words": False,
            "bullet_lines": "off",
            "garbled": True,
            "char_count": None,
        },
    )[0].rules
    assert (rules["word_count"].min, rules["word_count"].max) == (5, 100_000)
    assert "stop_words" not in rules
    assert "bullet_lines" not in rules
    assert rules["garbled"].max == 0.005
    assert rules["char_count"].max == 190_000


def test_a_limit_can_be_taken_away() -> None:
    assert policies(rules={"word_count": {"max": None}})[0].rules["word_count"].max is None


def test_sources_change_the_default_policy() -> None:
    found = policies(
        preset=["gopher"],
        rules={"word_count": {"min": 20}},
        sources={
            "wiki": {"word_count": {"min": 3}, "stop_words": "off"},
            "social_*": {"word_count": {"min": 100}},
            "social_zh": {"preset": "fineweb2-zh"},
        },
    )
    assert [policy.pattern for policy in found] == ["*", "wiki", "social_*", "social_zh"]
    assert [policy.rules["word_count"].min for policy in found] == [20, 3, 100, 50]
    assert "stop_words" not in found[1].rules
    assert found[3].rules["mean_word_length"].max == 5
    assert [policy_of(name, found) for name in ("wiki", "social_en", "social_zh", "wikipedia", "")] == [1, 2, 3, 0, 0]


@pytest.mark.parametrize(
    ("values", "problem", "hint"),
    [
        ({"preset": ["c5"]}, "unknown preset `c5`", "c4"),
        ({"rules": {"word_cuont": {"min": 1}}}, "unknown filter rule `word_cuont`", "`word_count`"),
        ({"rules": {"word_count": {"mim": 1}}}, "unknown configuration key `rules.word_count.mim`", "word_count.min"),
        ({"rules": {"word_count": {"min": "x"}}}, "`rules.word_count.min` must be a number", "Fewest words"),
        ({"rules": {"word_count": {"min": -1}}}, "at least 0", "Fewest"),
        ({"rules": {"bullet_lines": {"max": 1.5}}}, "at most 1", "bullet"),
        ({"rules": {"word_count": 50}}, "`rules.word_count` must be", "off"),
        ({"rules": {"word_count": {"text": "edites"}}}, "edites", "edited"),
        ({"rules": {"line_end_mark": {"max": 1}}}, "rules.line_end_mark.max", ""),
        ({"sources": {"wiki": 5}}, "`sources.wiki` must be", ""),
        ({"sources": {"wiki": {"word_cont": False}}}, "unknown filter rule `word_cont`", "word_count"),
        ({"sources": {"wiki": {"preset": "c5"}}}, "unknown preset `c5`", "c4"),
    ],
)
def test_mistakes_are_refused_with_the_nearest_known_name(values: dict[str, Any], problem: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        load(FilterConfig, None, (), values)
    assert problem in caught.value.problem
    assert hint in (caught.value.hint or "")


def test_yaml_off_reaches_the_rule() -> None:
    config = load(FilterConfig, None, ["rules.word_count=off", "sources.wiki.garbled=off", "rules.sentences.min=2"])
    found = resolve_policies(config)
    assert "word_count" not in found[0].rules
    assert "garbled" not in found[1].rules
    assert found[0].rules["sentences"].min == 2


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_resolves(name: str) -> None:
    assert len(policies(preset=[name])[0].rules) >= 3


def test_each_document_is_held_against_the_limits_of_its_own_source() -> None:
    evaluator = Evaluator(
        policies(
            preset=["none"],
            rules={"word_count": {"min": 10, "max": None}},
            sources={
                "a": {"word_count": {"min": 20}},
                "b": {"word_count": "off", "stop_words": {"words": ["der"]}},
                "c": {"word_count": {"scripts": "unspaced"}},
            },
        )
    )
    columns = {name: np.zeros(4, np.int64) for name in ALL_COLUMNS}
    columns["num_words"] = np.full(4, 15)
    columns["distinct_stop_words"] = np.array([9, 9, 1, 9])
    columns["letters"] = np.full(4, 60)
    verdicts = evaluator.verdicts(columns, columns, np.array([0, 1, 2, 3], np.int32))
    assert verdicts["word_count"].failed.tolist() == [False, True, False, False]
    assert verdicts["word_count"].threshold[1] == 20
    assert verdicts["stop_words"].failed.tolist() == [False, False, True, False]
    assert evaluator.lists_of(np.array([0, 2])).tolist() == [[-1, -1], [0, -1]]
