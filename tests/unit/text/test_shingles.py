"""Shingle sets of kernels against plain Python sets of tuples and strings."""

from __future__ import annotations

import itertools
import re
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llmctl.text.buffers import text_buffers
from llmctl.text.shingles import CHARACTERS, EMPTY, WORDS, shingle_sets
from llmctl.text.unicode import NO_SPACES, classes

LETTERS = "aAbBzZ019_ \t\n.,-'éÉßİıσςΣжЖ漢字かなカ泰ไทยကខក\u3000\u00a0\u2028\u0301🙂"


def kernel_sets(texts: list[str], **options) -> tuple[list[set[int]], list[int]]:
    sets = shingle_sets(*text_buffers(pa.array(texts, pa.large_string())), **options)
    found = []
    for begin, end in itertools.pairwise(sets.offsets):
        values = sets.values[begin:end]
        assert (values[1:] > values[:-1]).all(), "sets are ascending without repetitions"
        found.append(set(values.tolist()))
    return found, sets.kinds.tolist()


def reference(text: str, ngram: int = 5, char_ngram: int = 5, share: float = 0.05) -> tuple[int, set]:
    """The definition in words: see `text/shingles.py`."""
    flags = classes()
    letters = sum(char.isalpha() for char in text)
    unspaced = sum(bool(flags[ord(char)] & NO_SPACES) for char in text)
    if unspaced and unspaced >= share * letters:
        chars = re.sub(r"\s+", "", text)
        return CHARACTERS, {chars[i : i + char_ngram] for i in range(max(1, len(chars) - char_ngram + 1))}
    words = [word.replace("ς", "σ") for word in re.findall(r"\w+", text.lower())]
    if words:
        return WORDS, {tuple(words[i : i + ngram]) for i in range(max(1, len(words) - ngram + 1))}
    chars = re.sub(r"\s+", "", text)
    return (WORDS, {("no words", chars)}) if chars else (EMPTY, set())


def assert_same_structure(texts: list[str], **options) -> None:
    """Hashes are right when equal shingles, and only equal ones, have equal hashes."""
    found, kinds = kernel_sets(texts, **options)
    wanted = [reference(text, **options_of_reference(options)) for text in texts]
    assert kinds == [kind for kind, _ in wanted]
    for (mine, (kind, theirs)), (other_mine, (other_kind, other_theirs)) in itertools.combinations_with_replacement(
        list(zip(found, wanted, strict=True)), 2
    ):
        same_kind = kind == other_kind
        assert len(mine) == len(theirs)
        assert len(mine & other_mine) == (len(theirs & other_theirs) if same_kind else 0)


def options_of_reference(options: dict) -> dict:
    names = {"ngram_size": "ngram", "char_ngram_size": "char_ngram", "char_share": "share"}
    return {names[name]: value for name, value in options.items()}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(st.sampled_from(LETTERS), max_size=60), min_size=1, max_size=6))
@example(["", " \n", "!!!", "???", "one two", "one  TWO!", "one two three four five six"])
def test_equals_reference_on_mixed_scripts(texts):
    assert_same_structure(texts)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=80), min_size=1, max_size=5), st.integers(1, 7), st.integers(1, 7))
def test_equals_reference_on_any_text(texts, ngram, char_ngram):
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    assert_same_structure(texts, ngram_size=ngram, char_ngram_size=char_ngram)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "cat", "Dog", "x1"]), min_size=1, max_size=400))
def test_repetitions_count_once(words):
    assert_same_structure([" ".join(words), " ".join(words[:50])])


def test_long_documents_are_sorted_and_distinct():
    rng = np.random.default_rng(0)
    texts = [" ".join(map(str, rng.integers(0, 50_000, 60_000))), "a b " * 30_000, " ".join(["same"] * 40_000)]
    found, _ = kernel_sets(texts)
    assert [len(one) for one in found] == [len(reference(text)[1]) for text in texts]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("plain English words", WORDS),
        ("这是一个没有空格的句子", CHARACTERS),
        ("これは日本語です", CHARACTERS),
        ("ภาษาไทยไม่มีช่องว่าง", CHARACTERS),
        ("ភាសាខ្មែរ", CHARACTERS),
        ("မြန်မာဘာသာ", CHARACTERS),
        ("한국어는 띄어쓰기를 합니다", WORDS),
        ("русский текст", WORDS),
        ("हिन्दी में लिखा", WORDS),
        ("... --- !!!", WORDS),
        (" \u3000\n", EMPTY),
        ("", EMPTY),
    ],
)
def test_kind_by_script(text, kind):
    assert kernel_sets([text])[1] == [kind]


def test_share_of_unspaced_letters_decides():
    text = "a" * 19 + "漢"  # exactly one letter in twenty
    assert kernel_sets([text], char_share=0.05)[1] == [CHARACTERS]
    assert kernel_sets([text], char_share=0.051)[1] == [WORDS]
    assert kernel_sets(["漢 字"], char_share=1.0)[1] == [CHARACTERS]


def test_words_are_those_of_re_for_every_code_point():
    points = [p for p in range(0x30000) if not 0xD800 <= p < 0xE000]
    texts = [f"x{chr(point)}y" for point in points]
    sets = shingle_sets(*text_buffers(pa.array(texts, pa.large_string())), ngram_size=1, char_share=1.0)
    sizes = np.diff(sets.offsets)
    for text, size, kind in zip(texts, sizes, sets.kinds, strict=True):
        if kind == WORDS:
            assert size == len(set(re.findall(r"\w+", text.lower()))), unicodedata.name(text[1], repr(text))


def test_slices_of_a_column_are_read_in_place():
    column = pa.array(["first one", "second text here", "third"], pa.large_string())
    whole, _ = kernel_sets(column.to_pylist())
    sets = shingle_sets(*text_buffers(column.slice(1, 2)))
    assert set(sets.values[: sets.offsets[1]].tolist()) == whole[1]
