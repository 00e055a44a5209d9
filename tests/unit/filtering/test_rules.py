"""Every rule at, under and over its published limit, and on texts that it is made for."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from llmctl.config.schema import fields_of
from llmctl.filtering import languages
from llmctl.filtering.block import measure
from llmctl.filtering.clusters import search as clusters
from llmctl.filtering.config import FilterConfig
from llmctl.filtering.evaluate import Evaluator, Verdict, deciding_rule
from llmctl.filtering.perplexity import ranks as perplexity
from llmctl.filtering.policy import Policy, preset_names, read_preset, resolve_policies
from llmctl.filtering.rule import LineParameters
from llmctl.filtering.rules import is_line_rule, load_rule, rule_names
from llmctl.filtering.templates import search as templates
from llmctl.text.lines import ACTIONS
from llmctl.text.statistics import ALL_COLUMNS

DETECTED = {
    *languages.COLUMNS,
    "classifier",
    "num_abusive_words",
    "num_bad_words",
    "num_restriction_notices",
    "url_blocked",
    "sensitive_entities",
    *perplexity.COLUMNS,
    *templates.COLUMNS,
    *clusters.COLUMNS,
}
DOCUMENT_RULES = [name for name in rule_names() if not is_line_rule(name)]

# rule → (columns that are the same in all cases, the column that varies, its values under, at and over a limit,
# whether each is removed)
Case = tuple[dict[str, float], str, tuple[float, float, float], tuple[bool, bool, bool]]
TOO_LOW, TOO_HIGH = (True, False, False), (False, False, True)
LIMITS: dict[str, list[Case]] = {
    "template": [({}, "template_place", (0, 1, 2), TOO_HIGH)],
    "cluster": [({}, "cluster", (1, 2, 3), (False, False, False))],  # nothing goes unless named; see test_clusters.py
    "language": [({"detected_language": 22}, "language_score", (0.49, 0.5, 0.51), TOO_LOW)],
    "abusive_words": [({"num_words": 1000}, "num_abusive_words", (9, 10, 11), TOO_HIGH)],
    "bad_words": [({}, "num_bad_words", (0, 0, 1), TOO_HIGH)],
    "blocked_urls": [({}, "url_blocked", (0, 0, 1), TOO_HIGH)],
    "restriction_notices": [({}, "num_restriction_notices", (0, 0, 1), TOO_HIGH)],
    "perplexity": [],  # limits are the user's; test_perplexity.py has them
    "perplexity_rank": [({}, "perplexity_rank", (0.6666, 0.6667, 0.6668), TOO_HIGH)],
    "machine_text": [({"perplexity_rank": 0}, "variation_rank", (0.04, 0.05, 0.06), TOO_LOW)],
    # Counts and masks unless told to drop.
    "sensitive_entities": [({}, "sensitive_entities", (0, 0, 1), (False, False, False))],
    "classifier": [],  # the limits are each classifier's; test_classifiers.py has them
    "empty": [({}, "num_words", (0, 1, 2), TOO_LOW)],
    "nothing_left": [({}, "num_words", (0, 1, 2), TOO_LOW)],
    "word_count": [
        ({}, "num_words", (49, 50, 51), TOO_LOW),
        ({}, "num_words", (99_999, 100_000, 100_001), TOO_HIGH),
    ],
    "char_count": [({}, "num_chars", (189_999, 190_000, 190_001), TOO_HIGH)],
    "mean_word_length": [
        ({"num_words": 100}, "word_chars", (299, 300, 301), TOO_LOW),
        ({"num_words": 100}, "word_chars", (999, 1000, 1001), TOO_HIGH),
    ],
    "hash_word_ratio": [({"num_words": 100}, "num_hashes", (9, 10, 11), TOO_HIGH)],
    "ellipsis_word_ratio": [({"num_words": 100}, "num_ellipses", (9, 10, 11), TOO_HIGH)],
    "bullet_lines": [({"num_lines": 100}, "bullet_lines", (89, 90, 91), TOO_HIGH)],
    "ellipsis_lines": [({"num_lines": 100}, "ellipsis_lines", (29, 30, 31), TOO_HIGH)],
    "alpha_words": [({"num_tokens": 100}, "alpha_words", (79, 80, 81), TOO_LOW)],
    "stop_words": [({}, "distinct_stop_words", (1, 2, 3), TOO_LOW)],
    "function_words": [({"num_words": 100}, "num_function_words", (9, 10, 11), TOO_LOW)],
    "sentences": [({}, "num_sentences", (2, 3, 4), TOO_LOW)],
    "curly_bracket": [({}, "curly_brackets", (0, 0, 1), TOO_HIGH)],
    "lorem_ipsum": [({}, "lorem_ipsum", (0, 0, 1), TOO_HIGH)],
    "long_lines": [({}, "long_lines", (2, 3, 4), TOO_LOW)],
    "duplicate_lines": [({"num_lines": 100}, "duplicate_lines", (29, 30, 31), TOO_HIGH)],
    "duplicate_paragraphs": [({"num_paragraphs": 100}, "duplicate_paragraphs", (29, 30, 31), TOO_HIGH)],
    "duplicate_line_chars": [({"num_chars": 100}, "duplicate_line_chars", (19, 20, 21), TOO_HIGH)],
    "duplicate_paragraph_chars": [({"num_chars": 100}, "duplicate_paragraph_chars", (19, 20, 21), TOO_HIGH)],
    **{
        f"top_{size}gram": [
            (
                {"num_words": 50, "stored_chars": 100},
                f"top_{size}gram_chars",
                (limit - 1, limit, limit + 1),
                TOO_HIGH,
            )
        ]
        for size, limit in ((2, 20), (3, 18), (4, 16))
    },
    **{
        f"duplicate_{size}gram": [
            (
                {"num_words": 50, "stored_chars": 100},
                f"duplicate_{size}gram_chars",
                (limit - 1, limit, limit + 1),
                TOO_HIGH,
            )
        ]
        for size, limit in ((5, 15), (6, 14), (7, 13), (8, 12), (9, 11), (10, 10))
    },
    "end_mark_lines": [({"num_lines": 100}, "end_mark_lines", (11, 12, 13), TOO_LOW)],
    "short_lines": [({"num_lines": 100}, "short_lines", (66, 67, 68), TOO_HIGH)],
    "repeated_line_chars": [({"num_chars": 110, "newlines": 10}, "duplicate_line_chars", (0, 1, 2), TOO_HIGH)],
    "newline_word_ratio": [({"num_words": 100}, "newlines", (29, 30, 31), TOO_HIGH)],
    "removed_words": [({"original.num_words": 100}, "num_words", (94, 95, 96), TOO_LOW)],  # 6, 5 and 4 % are gone
    "special_chars": [
        ({"num_chars": 100, "punctuation": 10, "symbols": 10, "whitespace": 10}, "digits", (9, 10, 11), TOO_HIGH)
    ],
    "char_repetition": [({"num_10char_grams": 100}, "repeated_10char_grams", (19, 20, 21), TOO_HIGH)],
    "word_repetition": [({"num_5grams": 100}, "repeated_5grams", (29, 30, 31), TOO_HIGH)],
    "garbled": [({"num_chars": 1000, "replacement_chars": 2, "control_chars": 1}, "mojibake", (1, 2, 3), TOO_HIGH)],
}


def judge(rule: str, columns: dict[str, np.ndarray]) -> Verdict:
    evaluator = Evaluator([Policy("*", {rule: load_rule(rule).Parameters()})])
    original = {name: np.zeros(3, np.int64) for name in ALL_COLUMNS}
    edited = dict(original)
    for name, values in columns.items():
        if name.startswith("original."):
            original[name.removeprefix("original.")] = values
        else:
            edited[name] = values
            original.setdefault(name, values)
            if load_rule(rule).Parameters().text == "original":
                original[name] = values
    return evaluator.verdicts(original, edited, np.zeros(3, np.int32))[rule]


@pytest.mark.parametrize("rule", DOCUMENT_RULES)
def test_a_document_on_the_limit_stays_and_beyond_it_goes(rule: str) -> None:
    assert rule in LIMITS, "a rule needs a test at, under and over its limit"
    for fixed, column, values, removed in LIMITS[rule]:
        columns = {name: np.full(3, value, np.int64) for name, value in fixed.items()}
        columns[column] = np.array(values)
        assert judge(rule, columns).failed.tolist() == list(removed)


@pytest.mark.parametrize("rule", DOCUMENT_RULES)
def test_every_limit_is_tested(rule: str) -> None:
    limits = [name for name in ("min", "max") if getattr(load_rule(rule).Parameters(), name, None) is not None]
    assert len(LIMITS[rule]) == len(limits)


@pytest.mark.parametrize("rule", rule_names())
def test_every_rule_has_a_page_and_describes_its_parameters(rule: str) -> None:
    module = load_rule(rule)
    assert module.__doc__ and len(module.__doc__.strip().splitlines()) >= 3
    assert dataclasses.is_dataclass(module.Parameters)
    for field in fields_of(module.Parameters):
        assert field.opt.help.endswith("."), field.name
    if is_line_rule(rule):
        assert rule in ACTIONS
        assert issubclass(module.Parameters, LineParameters)
        assert module.limit(module.Parameters()) > 0
    else:
        known = set(ALL_COLUMNS) | DETECTED | {f"original.{name}" for name in ALL_COLUMNS}
        assert set(module.COLUMNS) <= known


@pytest.mark.parametrize("rule", DOCUMENT_RULES)
def test_a_rule_reads_only_the_columns_it_declares(rule: str) -> None:
    module = load_rule(rule)
    declared = {name: np.ones(2, np.int64) for name in module.COLUMNS}
    if rule == "removed_words":
        declared["original.num_words"] = np.ones(2, np.int64)
    assert module.value(declared, module.Parameters()).shape == (2,)


def test_every_line_action_is_a_rule() -> None:
    assert {name for name in rule_names() if is_line_rule(name)} == set(ACTIONS)


# -- texts ------------------------------------------------------------------------------------------------------------

PROSE = (
    "The old town has a long history, and many of the houses that stand in it were built with local stone. A flood "
    "came in the spring of 1421, so the people had to leave, but most of them did return before winter to rebuild it.\n"
    "Nobody knows when the second bridge was finished. Maps from the seventeenth century do not show it, although two "
    "travellers mention its toll house in letters to their families. Trade with the coast grew during these years.\n"
    "Today visitors arrive by train. They walk along the river, look at the market hall and listen to the bells at "
    "noon. Some stay for the evening, when lamps are lit under the trees and musicians play until late."
)
CHINESE = (
    "这座古城历史悠久，许多房屋都是用当地的石头建成的。十五世纪时曾经发生过一场大洪水，居民不得不离开家园。"
    "后来大部分人又回来重建了城市，修筑了新的河堤和桥梁。今天这里是著名的旅游地点，每年有很多人来参观。"
)


# What models say is tested with the models.
NOT_JUDGED = {"detected_language": np.full(1, -1, np.int16), "language_score": np.full(1, np.nan)}
NOT_JUDGED |= {"num_abusive_words": np.zeros(1), "num_restriction_notices": np.zeros(1)}


def reasons(text: str, *presets: str, **rules: Any) -> list[str]:
    """Return every rule that a text fails, the deciding one first."""
    policies = resolve_policies(FilterConfig(preset=list(presets) or ["none"], rules=rules))
    evaluator = Evaluator(policies)
    policy = np.zeros(1, np.int32)
    measured = measure(pa.chunked_array([pa.array([text], pa.large_string())]), evaluator, policy)
    verdicts = evaluator.verdicts(measured.original, measured.edited, policy, NOT_JUDGED)
    failed = [name for name, verdict in verdicts.items() if verdict.failed[0]]
    decided = int(deciding_rule(verdicts, 1)[0])
    assert (list(verdicts)[decided] if decided >= 0 else None) == (failed[0] if failed else None)
    return failed


@pytest.mark.parametrize("preset", ["general", "gopher", "fineweb", "c4", "refinedweb", "bigscience"])
def test_plain_prose_passes_every_preset(preset: str) -> None:
    assert reasons(PROSE, preset) == []


@pytest.mark.parametrize("preset", ["general", "fineweb2-zh"])
def test_chinese_prose_passes(preset: str) -> None:
    assert reasons(CHINESE, preset) == []


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("text", ["", " \n ", "!!! *** ###", "😀😀😀", "\x00", "…"])
def test_a_text_without_words_is_empty_in_every_preset(preset: str, text: str) -> None:
    assert reasons(text, preset)[0] == "empty"


BAD_TEXTS = {
    "word_count": "Too short to keep.",
    "mean_word_length": "a b c d e f g h i j k l m n o p q r s t u v w x y z of to be " * 3,
    "hash_word_ratio": PROSE + " #tag" * 30,
    "ellipsis_word_ratio": PROSE.replace(" ", " ... ", 40),
    "bullet_lines": "\n".join(f"- {line}" for line in PROSE.split("\n")),
    "ellipsis_lines": PROSE.replace(".\n", "...\n"),
    "alpha_words": PROSE + " 12 345" * 40,
    "stop_words": "Lorem dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt " * 5,
    "duplicate_lines": PROSE + ("\nbuy now" * 3),
    "duplicate_paragraphs": PROSE.replace("\n", "\n\n") + "\n\nbuy now" * 3,
    "duplicate_line_chars": PROSE + "\n" + PROSE,
    "duplicate_paragraph_chars": PROSE + "\n\n" + PROSE,
    "top_2gram": PROSE[:250] + " buy now" * 20,
    "top_3gram": PROSE[:250] + " buy this now" * 20,
    "top_4gram": PROSE[:250] + " buy this now please" * 20,
    **{f"duplicate_{size}gram": PROSE + " " + PROSE.replace("\n", " ") for size in range(5, 11)},
}


@pytest.mark.parametrize("rule", BAD_TEXTS)
def test_gopher_removes_what_it_is_made_for(rule: str) -> None:
    assert rule in reasons(BAD_TEXTS[rule], "gopher")


def test_a_single_occurrence_is_no_repetition() -> None:
    for name in ("top_2gram", "top_3gram", "top_4gram"):
        assert reasons("hello world", **{name: True}) == []
        assert reasons("hello world hello world", **{name: True}) == []  # under 50 words
        assert reasons("hello world " * 30, **{name: True}) == [name]


def test_c4_wants_five_words_a_line_and_three_sentences() -> None:
    line = "There are five words here."
    assert reasons("\n".join([line] * 3), "c4") == []
    assert reasons("\n".join([line] * 2), "c4") == ["sentences"]
    assert reasons("\n".join(["There are four words."] * 9), "c4") == ["sentences", "nothing_left"]


def test_c4_removes_pages_with_code_or_placeholder_text() -> None:
    page = "One two three four five.\n" * 3
    assert reasons(page + "We write function() { return; } in this sentence.", "c4") == ["curly_bracket"]
    assert reasons(page + "A line with lorem ipsum dolor in it.", "c4") == ["lorem_ipsum"]
    # The line goes for its missing end mark, so the page stays; the paper's sentence would remove it.
    code = page + "function() { return; }"
    assert reasons(code, "c4") == []
    assert reasons(code, "c4", curly_bracket={"text": "original"}) == ["curly_bracket"]


def test_a_page_that_loses_all_its_lines_is_named_so() -> None:
    assert reasons("Home\nAbout", line_end_mark=True) == ["nothing_left"]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("end_mark_lines", PROSE + "\nitem" * 40),
        ("short_lines", PROSE + "".join(f"\nline {n}." for n in range(20))),
        ("repeated_line_chars", PROSE + "\nRead the whole story here." * 2),
        ("newline_word_ratio", PROSE + "\n" * 120),
        ("curly_bracket", PROSE + " {x} is a set, as we know."),
    ],
)
def test_fineweb_removes_what_it_is_made_for(rule: str, text: str) -> None:
    assert rule in reasons(text, "fineweb", line_few_words="off")


def test_refinedweb_removes_pages_that_are_mostly_navigation() -> None:
    assert "removed_words" in reasons(PROSE + "\nHOME ABOUT CONTACT IMPRINT SEARCH" * 5, "refinedweb")


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("special_chars", PROSE + " 12 + 34 = 46" * 60),
        ("char_repetition", PROSE + "ha" * 200),
        ("word_repetition", PROSE + " so it goes on and on" * 20),
        ("function_words", "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda"),
    ],
)
def test_bigscience_removes_what_it_is_made_for(rule: str, text: str) -> None:
    assert rule in reasons(text, "bigscience")


def test_broken_decoding_is_found() -> None:
    assert reasons(PROSE.replace("e", "Ã©"), "general") == ["garbled"]
    assert reasons(PROSE + "\ufffd" * 20, "general") == ["garbled"]
    assert reasons(PROSE.replace("old", "âge, café, naïve, Â"), "general") == []


@pytest.mark.parametrize("preset", preset_names())
def test_presets_name_their_sources_and_hold_only_known_rules(preset: str) -> None:
    content = read_preset(preset)
    assert set(content) <= {"description", "source", "rules", "include"}
    assert len(content["description"]) > 20
    assert len(content["source"]) > 20
    assert set(content["rules"]) <= set(rule_names())


def test_gopher_removes_other_languages_and_general_does_not() -> None:
    german = "Die alte Stadt liegt an einem Fluss, und viele ihrer Häuser wurden aus dem Stein der Gegend gebaut. " * 1
    german += (
        "Im Jahre 1421 kam eine Flut, die Bewohner mussten fliehen, doch die meisten kehrten wieder zurück. Heute "
        "kommen jedes Jahr Tausende von Besuchern hierher, um die Brücken, Kirchen sowie den Markt anzusehen, und "
        "abends sitzen sie gern noch lange am Ufer unter den Bäumen."
    )
    assert reasons(german, "gopher") == ["stop_words"]
    assert reasons(german, "general") == []
