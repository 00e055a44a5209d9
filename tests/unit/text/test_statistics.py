"""The statistics kernels against a plain implementation, on many scripts and odd texts."""

from __future__ import annotations

import importlib.util
import io
import random
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from llmctl.text import statistics as module
from llmctl.text.buffers import text_buffers
from llmctl.text.statistics import Family, document_statistics

_spec = importlib.util.spec_from_file_location("statistics_reference", Path(__file__).parent / "reference.py")
assert _spec is not None and _spec.loader is not None
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

ALL = Family.LINES | Family.NGRAMS | Family.CHARACTERS | Family.STOP_WORDS | Family.PHRASES

ENGLISH = (
    "The quick brown fox jumps over the lazy dog. It's 3.14 o'clock, isn't it? Dr. J. Smith said \"no.\" And left!\n"
    "  - a well-known list item\n  - another one ...\n\nThe quick brown fox jumps over the lazy dog again and again.\n"
)
TEXTS = {
    "empty": "",
    "blank": " \n\t\r\n\u3000 ",
    "one letter": "a",
    "symbols": "!!! ### ... *** --- 😀 🎉🎉",
    "hello": "hello world",
    "english": ENGLISH * 3,
    "windows newlines": "One line.\r\nTwo lines.\r\n\r\nOne line.\r\n",
    "no final newline": "First.\nSecond",
    "chinese": "中华人民共和国刑法。第一章　总则！你好，世界？“引用。”他说：是的。\n第一章　总则！\n第一章　总则！",
    "chinese and latin": "使用 Python3.11 编程，见第12条（2020年）。Python是一种语言。OK。",
    "japanese": "東京は日本の首都です。コンピューターは、とても便利です！ｶﾀｶﾅもあります。々〆",
    "thai": "ภาษาไทยเป็นภาษาที่มีระดับเสียง ที่นี่มีน้ำ",
    "lao, khmer, myanmar": "ພາສາລາວ ភាសាខ្មែរ។ မြန်မာဘာသာ။",
    "arabic": "اللغة العربية هي أكثر اللغات السامية تحدثا؟ نعم. مُحَمَّد۔",
    "cyrillic": "Москва — столица России. «Да!» сказал он. Ёжик и ЁЖИК… А. С. Пушкин.",
    "hindi": "हिन्दी विश्व की एक प्रमुख भाषा है। क्षत्रिय लड़की। हिन्दी",
    "greek": "Η Αθήνα είναι η πρωτεύουσα. ΟΔΥΣΣΕΥΣ; Ὀδυσσεύς.",
    "korean": "한국어는 한국의 언어입니다. 정말? 네!",
    "hebrew": "שָׁלוֹם עולם. מה שלומך?",
    "emoji": "👩‍👩‍👧‍👦 family ❤️ love 🇩🇪 flag e\u0301 é",
    "mojibake": "cafÃ© naÃ¯ve itâ€™s Â° \ufffd\x00\x07\x9f",
    "separators": "one\u2028two\u2029three\x85four\x1cfive\xa0six",
    "full width": "Ｆｕｌｌ　ｗｉｄｔｈ．　Ｌａｔｉｎ！",
    "underscores": "__init__ _ ___ foo_bar",
    "huge line": "word " * 5000,
    "no spaces": "x" * 20000,
    "ellipses": "a.... b..... c...... ... …… .. .\nnext…\nlast...",
    "bullets": "• a\n- b\n* c\n ‣ d\n-\n",
    "repeats": "a b c d e f g h i j k " * 6 + "end",
    "same word": "spam " * 60,
    "digits": "12 345 ½ ⅷ 六 ٣",
    "a mark alone after the end": "1。ि",
    "astral": "𠀀𠀁𠀂 𝒳𝒴 𐍈",
}


def computed(texts: list[str], families: Family = ALL) -> dict[str, np.ndarray]:
    data, offsets = text_buffers(pa.array(texts, pa.large_string()))
    return document_statistics(data, offsets, families, [["the", "and"]])


def assert_same(texts: list[str]) -> None:
    columns = computed(texts)
    for number, text in enumerate(texts):
        expected = reference.statistics(text)
        ours = {name: int(columns[name][number]) for name in expected}
        assert ours == expected, text[:200]


@pytest.mark.parametrize("name", TEXTS)
def test_equals_the_plain_implementation(name: str) -> None:
    assert_same([TEXTS[name]])


def test_documents_of_a_batch_do_not_influence_each_other() -> None:
    texts = list(TEXTS.values())
    random.Random(0).shuffle(texts)
    assert_same(texts)


def test_a_slice_of_a_column_is_read_from_its_own_offset() -> None:
    column = pa.array(list(TEXTS.values()), pa.large_string())[7:12]
    columns = document_statistics(*text_buffers(column), ALL)
    assert columns["num_chars"].tolist() == [len(text) for text in list(TEXTS.values())[7:12]]


ALPHABET = "aAbB1_-.!?…\"'()#•{} \n\n\t。，你好的あアไทม้िहё\u0301é\u2028\xa0Ã©â€\ufffd😀"


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=ALPHABET, max_size=120))
def test_random_texts_from_a_mean_alphabet(text: str) -> None:
    assert_same([text])


@settings(max_examples=1500, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c", "中", "文", "。", ".", "\n", " "]), max_size=200))
def test_random_repetition(pieces: list[str]) -> None:
    assert_same([" ".join(pieces), "".join(pieces)])


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_any_unicode_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    ours, expected = computed([text]), reference.statistics(text)
    # Names tell scripts apart only roughly, so what depends on them is left to the tests above.
    for name in ("num_chars", "letters", "digits", "whitespace", "punctuation", "symbols", "uppercase", "newlines",
                 "num_lines", "short_lines", "duplicate_lines", "num_hashes"):  # fmt: skip
        assert int(ours[name][0]) == expected[name], name


def test_real_documents(shared_data: Path) -> None:
    texts: list[str] = []
    for path in sorted((shared_data / "sample").glob("*.zst")):
        raw = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes()), read_across_frames=True).read()
        texts += [orjson.loads(line)["text"][:6000] for line in raw.split(b"\n")[:4] if line]
    assert len(texts) > 30
    assert_same(texts)


def test_stop_words_count_words_whatever_their_case_and_punctuation() -> None:
    columns = computed(['The "the", (AND) another the-end. and', "", "theand"])
    assert columns["num_stop_words"].tolist() == [4, 0, 0]
    assert columns["distinct_stop_words"].tolist() == [2, 0, 0]


def test_each_document_has_its_own_word_lists() -> None:
    data, offsets = text_buffers(pa.array(["the 的 cat", "the 的 cat", "the 的 cat"], pa.large_string()))
    lists = np.array([[0, 1], [1, -1], [-1, -1]], np.int32)
    columns = document_statistics(data, offsets, Family.STOP_WORDS, [["the", "cat"], ["的"]], lists)
    assert columns["num_stop_words"].tolist() == [2, 1, 0]
    assert columns["num_function_words"].tolist() == [1, 0, 0]


def test_lorem_ipsum_is_found_in_any_case_and_nowhere_else() -> None:
    texts = ["Lorem ipsum dolor", "xLOREM IPSUM", "lorem  ipsum", "lorem ipsu", "\x0corem ipsum", "", "lorem\x00ipsum"]
    assert computed(texts)["lorem_ipsum"].tolist() == [1, 1, 0, 0, 0, 0, 0]


def test_words_beyond_the_bound_are_counted_but_their_repetition_is_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_TOKENS", 10)
    columns = computed(["a b c d e " * 10, "one two"])
    assert columns["num_words"].tolist() == [50, 2]
    assert columns["stored_chars"].tolist() == [19, 7]
    assert columns["duplicate_5gram_chars"].tolist() == [9, 0]


def test_no_documents() -> None:
    columns = document_statistics(*text_buffers(pa.array([], pa.large_string())), ALL)
    assert all(len(column) == 0 for column in columns.values())


def test_columns_are_only_those_of_the_families_asked_for() -> None:
    assert "duplicate_lines" not in computed(["x"], Family.SCAN)
    assert "top_2gram_chars" in computed(["x"], Family.NGRAMS)
