"""Line rules against a plain implementation, and each rule's own cases."""

from __future__ import annotations

import importlib.util
import itertools
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmctl.text.buffers import text_buffers
from llmctl.text.lines import ACTIONS, COUNTED_THINGS, POLICY_PHRASES, edit_lines

_spec = importlib.util.spec_from_file_location("statistics_reference", Path(__file__).parent / "reference.py")
assert _spec is not None and _spec.loader is not None
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

C4 = {
    "strip_lines": 1.0,
    "strip_citations": 1.0,
    "line_long_word": 1000.0,
    "line_end_mark": 1.0,
    "line_few_words": 5.0,
    "line_javascript": 1.0,
    "line_policy_phrase": 1.0,
}
REFINEDWEB = {"line_uppercase": 0.5, "line_numeric": 0.999999, "line_counter": 1.0, "line_few_words": 2.0}
COUNTER = re.compile(rf"[\W_]*[0-9][0-9,.]*[kmb]?[ \t]+(?:{'|'.join(COUNTED_THINGS)})[\W_]*", re.IGNORECASE)


def plain_edit(text: str, actions: dict[str, float]) -> tuple[str, dict[str, int]]:
    kept = []
    counts: dict[str, int] = {}
    for line in text.split("\n"):
        if "strip_lines" in actions:
            line = line.strip()
        if "strip_citations" in actions:
            line, marks = re.subn(r"\[(?:[0-9]*|edit|citation needed)\]", "", line)
            if marks:
                counts["strip_citations"] = counts.get("strip_citations", 0) + marks
        verdict = plain_verdict(line, actions)
        if verdict:
            counts[verdict] = counts.get(verdict, 0) + 1
        elif line.strip() or "line_few_words" not in actions:
            kept.append(line)
    return "\n".join(kept), counts


def plain_verdict(line: str, actions: dict[str, float]) -> str:
    stripped = line.strip()
    if not stripped:
        return ""
    words = [token for token, _ in reference.tokens(line)]
    lowered = "".join(char.lower() if char.isascii() else char for char in line)
    size = len(stripped)
    if "line_end_mark" in actions and (stripped[-1] not in reference.LINE_ENDS or stripped.endswith(("...", "…"))):
        return "line_end_mark"
    if "line_long_word" in actions and max(map(len, words)) > actions["line_long_word"]:
        return "line_long_word"
    if "line_few_words" in actions and len(words) < actions["line_few_words"]:
        return "line_few_words"
    if "line_javascript" in actions and "javascript" in lowered:
        return "line_javascript"
    if "line_policy_phrase" in actions and any(phrase in lowered for phrase in POLICY_PHRASES):
        return "line_policy_phrase"
    if "line_uppercase" in actions and sum(map(str.isupper, line)) > actions["line_uppercase"] * size:
        return "line_uppercase"
    if "line_numeric" in actions and sum(map(str.isnumeric, line)) > actions["line_numeric"] * size:
        return "line_numeric"
    if "line_counter" in actions and COUNTER.fullmatch(line):
        return "line_counter"
    return ""


def edited(text: str, actions: dict[str, float]) -> tuple[str, dict[str, int]]:
    texts, counts = edited_batch([text], [actions], [0])
    return texts[0], counts[0]


def edited_batch(
    texts: list[str], actions: list[dict[str, float]], policies: list[int]
) -> tuple[list[str], list[dict[str, int]]]:
    data, offsets = text_buffers(pa.array(texts, pa.large_string()))
    new_data, new_offsets, dropped = edit_lines(data, offsets, actions, np.array(policies, np.int32))
    raw = new_data.tobytes()
    new_texts = [raw[start:end].decode() for start, end in itertools.pairwise(new_offsets)]
    return new_texts, [{ACTIONS[at]: int(row[at]) for at in np.flatnonzero(row)} for row in dropped]


PAGE = """Home | About | Contact
This is a sentence of seven words.[12]
  Too short.  

Please enable JavaScript to read all of this page.
By using the site you accept our Privacy Policy and more.
The history of the town[edit] is long and rich.[citation needed]
"Do you know what he said to me?"
He never came back to the old house again...
"""


def test_c4_keeps_sentences_and_drops_the_rest() -> None:
    text, counts = edited(PAGE, C4)
    assert text == (
        "This is a sentence of seven words.\n"
        "The history of the town is long and rich.\n"
        '"Do you know what he said to me?"'
    )
    assert counts == {
        "strip_citations": 3,
        "line_end_mark": 2,
        "line_few_words": 1,
        "line_javascript": 1,
        "line_policy_phrase": 1,
    }


def test_no_actions_change_nothing() -> None:
    for text in (PAGE, "", "\n", "\n\n a \n\n", "a\n"):
        assert edited(text, {}) == (text, {})
        assert edited(text, {"line_javascript": 1.0})[0] == "\n".join(
            line for line in text.split("\n") if "javascript" not in line.lower()
        )


@pytest.mark.parametrize(
    ("action", "limit", "at", "over"),
    [
        ("line_few_words", 5.0, "one two three four five", "one two three four"),
        ("line_few_words", 5.0, "我们是中国", "我们是中"),
        ("line_long_word", 10.0, "abcdefghij k", "abcdefghijk k"),
        ("line_uppercase", 0.5, "ABCd e", "ABCD e"),
        ("line_numeric", 0.999999, "2020 2021", "20202021"),
        ("line_counter", 1.0, "3 likes it", "3 likes"),
        ("line_counter", 1.0, "likes", "♥ 1,234.5k Followers!"),
        ("line_counter", 1.0, "3likes", "12M\tviews"),
        ("line_javascript", 1.0, "Java script", "jAvAsCrIpT"),
        ("line_policy_phrase", 1.0, "policy of privacy", "Terms of Use"),
        ("line_policy_phrase", 1.0, "terms  of use", "this site uses cookies"),
        ("line_end_mark", 1.0, "Yes.", "Yes"),
        ("line_end_mark", 1.0, 'He said "yes"', "He said yes,"),
        ("line_end_mark", 1.0, "这是一句话。", "这是一句话"),
        ("line_end_mark", 1.0, "No!  ", "No…"),
        ("line_end_mark", 1.0, "No..", "No..."),
    ],
)
def test_a_line_at_and_over_the_limit(action: str, limit: float, at: str, over: str) -> None:
    assert edited(at, {action: limit}) == (at, {})
    assert edited(over, {action: limit}) == ("", {action: 1})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a[1] b[] c[123]", "a b c"),
        ("[edit] [Edit] [edit ]", " [Edit] [edit ]"),
        ("x[citation needed].", "x."),
        ("x[citation", "x[citation"),
        ("x[12", "x[12"),
        ("[[1]]", "[]"),
        ("[1a] [a1]", "[1a] [a1]"),
    ],
)
def test_citation_marks(text: str, expected: str) -> None:
    assert edited(text, {"strip_citations": 1.0})[0] == expected


def test_every_document_has_its_own_actions() -> None:
    texts, counts = edited_batch(["AB\nc d", "AB\nc d", "AB\nc d"], [{}, {"line_uppercase": 0.5}], [1, 0, 1])
    assert texts == ["c d", "AB\nc d", "c d"]
    assert counts == [{"line_uppercase": 1}, {}, {"line_uppercase": 1}]


LINE_PIECES = ["a", "Bc", "12", " ", "\n", ".", "...", "…", "!", "[1]", "[edit]", "[", "javascript", "JAVA"]
LINE_PIECES += ["j", "avascript", "terms of", "use", "policy", "privacy"]
LINE_PIECES += ["use cookies", "likes", "3 likes", "中文", "。", "\t", "\u3000", "é", "\r\n", "👍"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(LINE_PIECES), max_size=40), st.sampled_from([C4, REFINEDWEB, {**C4, **REFINEDWEB}]))
def test_random_lines(pieces: list[str], actions: dict[str, float]) -> None:
    for text in ("".join(pieces), " ".join(pieces)):
        assert edited(text, actions) == plain_edit(text, actions)
