"""Near-duplicates and distinct documents in scripts without spaces, in mixtures, in code, in very long documents."""

from __future__ import annotations

import random

import pytest
from corpora import dedup_texts

ALPHABETS = {
    "japanese": "あいうえおかきくけこさしすせそ漢字仮名交文日本語東京大阪カタナ",
    "thai": "กขคงจฉชซญดตถทธนบปผพฟมยรลวสหอ",
    "khmer": "កខគឃងចឆជឈញដឋឌឍណតថទធន",
    "mixed": "漢字文書日本語abcdefgh あいうえ мир",
    "arabic": "ابتثجحخدذرزسشصضطظعغ     ",
    "hindi": "कखगघचछजझटठडढतथदधनपफबभम     ",
    "code": "abcdefxyz_=()[]:., \n    ",
}


def text(alphabet: str, seed: int, length: int) -> str:
    return "".join(random.Random(seed).choices(alphabet, k=length))


@pytest.mark.parametrize("name", ALPHABETS)
def test_near_duplicates_go_and_distinct_documents_stay(tmp_path, name: str) -> None:
    originals = [text(ALPHABETS[name], seed, 3000) for seed in range(8)]
    # One character in the middle: at most 5 of about 3,000 character shingles, or of about 500 word shingles, differ.
    edited = [original[:1500] + "9" + original[1501:] for original in originals[:4]]
    result = dedup_texts(tmp_path, [*originals, *edited, originals[0]])
    kept = result.kept
    assert len(kept) == 8


@pytest.mark.slow
def test_a_very_long_document_and_its_copy(tmp_path) -> None:
    long = text(ALPHABETS["code"], 1, 2_000_000)
    result = dedup_texts(tmp_path, [long, long[:1000] + "9" + long[1001:], long[1_000_000:], "another one, short"])
    assert len(result.kept) == 3
