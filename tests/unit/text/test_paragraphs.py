"""Normalised texts and paragraphs of kernels against regular expressions."""

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
from llmctl.text.paragraphs import hash_paragraphs, may_need_nfc

LETTERS = "ab \t\n\r\x0b\x1c漢é.\u3000\u00a0\u0085\u2028\u2009"


def normalised(text: str) -> str:
    """White space as `text/paragraphs.py` describes it."""

    def replace(match: re.Match) -> str:
        breaks = len(re.findall(r"\r\n|\n|\r", match.group()))
        return (" ", "\n")[breaks] if breaks < 2 else "\n\n"

    return re.sub(r"\s+", replace, text.strip())


def paragraphs_of(text: str) -> list[str]:
    text = normalised(text)
    parts = [part.replace("\n", " ") for part in text.split("\n\n")] if "\n\n" in text else text.split("\n")
    return [part for part in parts if part]


def buffers(texts):
    return text_buffers(pa.array(texts, pa.large_string()))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.sampled_from(LETTERS), max_size=30), min_size=1, max_size=8))
@example(["a\r\nb", "a\nb", "a\n\nb", "a\n \t\nb", " a ", "a", "", "\n\n", "a\r\rb"])
def test_equals_reference(texts):
    found = hash_paragraphs(*buffers(texts))
    texts_equal = {}
    for text, pair in zip(texts, found.text_hashes.tolist(), strict=True):
        assert texts_equal.setdefault(tuple(paragraphs_of(text)), pair) == pair
    assert len(set(map(tuple, texts_equal.values()))) == len(texts_equal)
    names: dict[str, int] = {}
    for text, (begin, end) in zip(texts, itertools.pairwise(found.offsets), strict=True):
        wanted = paragraphs_of(text)
        assert found.weights[begin:end].tolist() == [len(part.encode()) for part in wanted]
        for part, value in zip(wanted, found.hashes[begin:end].tolist(), strict=True):
            assert names.setdefault(part, value) == value
    assert len(set(names.values())) == len(names)


def test_paragraphs_do_not_depend_on_line_width():
    narrow, wide = "one two\nthree four\n\nfive six", "one two three\nfour\n\nfive\nsix"
    found = hash_paragraphs(*buffers([narrow, wide]))
    assert found.hashes[:2].tolist() == found.hashes[2:].tolist()
    assert found.text_hashes[0].tolist() == found.text_hashes[1].tolist()


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("plain", False),
        ("é composed", False),
        ("e\u0301 decomposed", True),
        ("漢字とかな", False),
        ("が", False),
        ("か\u3099", True),
        ("\u212b", True),  # the ångström sign becomes a letter
        ("한글", False),
        ("\u1112\u1161\u11ab", True),
    ],
)
def test_nfc_suspects(text, may):
    assert may_need_nfc(*buffers([text])).tolist() == [may]
    assert may == (unicodedata.normalize("NFC", text) != text)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=5))
def test_no_text_outside_nfc_is_missed(texts):
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    suspects = may_need_nfc(*buffers(texts))
    for text, suspect in zip(texts, suspects, strict=True):
        assert suspect or unicodedata.is_normalized("NFC", text)


def test_every_code_point_outside_nfc_is_suspected():
    points = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000]
    outside = [chr(p) for p in points if not unicodedata.is_normalized("NFC", chr(p))]
    assert np.all(may_need_nfc(*buffers(outside)))
