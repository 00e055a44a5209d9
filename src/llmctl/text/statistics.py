"""Compute every statistic of every document of a batch, in one pass over its UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntFlag

import numpy as np

from llmctl.text import unicode
from llmctl.text.buffers import frozen
from llmctl.text.compile import inline_kernel, kernel
from llmctl.text.repetition import (
    CHARACTER_COLUMNS,
    LINE_COLUMNS,
    NGRAM_COLUMNS,
    character_repetition,
    duplicate_lines,
    ngram_repetition,
    table_size,
)
from llmctl.text.words import SCAN_COLUMNS, hash_word, kinds, scan_document

# Two lists of words may apply to a document: `num_…` are occurrences, `distinct_…` different words of the list.
STOP_WORD_COLUMNS = ("num_stop_words", "distinct_stop_words", "num_function_words", "distinct_function_words")
WORD_SLOTS = 2
PHRASE_COLUMNS = ("lorem_ipsum",)
# A document with more words than this has its repetition measured on its beginning; memory stays bounded.
MAX_TOKENS = 1 << 22

_ONE = np.uint64(1)  # unsigned indexes spare hot loops the check for negative ones
_LOREM = np.frombuffer(b"lorem ipsum", np.uint8)


class Family(IntFlag):
    """Groups of statistics that are computed together."""

    SCAN = 0
    LINES = 1
    NGRAMS = 2
    CHARACTERS = 4
    STOP_WORDS = 8
    PHRASES = 16


COLUMNS_OF_FAMILY: dict[Family, tuple[str, ...]] = {
    Family.SCAN: SCAN_COLUMNS,
    Family.LINES: LINE_COLUMNS,
    Family.NGRAMS: NGRAM_COLUMNS,
    Family.CHARACTERS: CHARACTER_COLUMNS,
    Family.STOP_WORDS: STOP_WORD_COLUMNS,
    Family.PHRASES: PHRASE_COLUMNS,
}
ALL_COLUMNS = tuple(name for names in COLUMNS_OF_FAMILY.values() for name in names)
_FIRST: dict[Family, int] = {}
for _family, _names in COLUMNS_OF_FAMILY.items():
    _FIRST[_family] = ALL_COLUMNS.index(_names[0])
_LINES_AT, _NGRAMS_AT, _CHARACTERS_AT, _STOP_AT, _PHRASES_AT = (
    _FIRST[family] for family in (Family.LINES, Family.NGRAMS, Family.CHARACTERS, Family.STOP_WORDS, Family.PHRASES)
)
_LINES, _NGRAMS, _CHARACTERS, _STOP, _PHRASES = (
    int(family) for family in (Family.LINES, Family.NGRAMS, Family.CHARACTERS, Family.STOP_WORDS, Family.PHRASES)
)
_LETTERS_AT, _UNSPACED_AT = ALL_COLUMNS.index("letters"), ALL_COLUMNS.index("unspaced_letters")
_NUM_SCAN = len(SCAN_COLUMNS)
_NUM_COLUMNS = len(ALL_COLUMNS)


def families_of(columns: Collection[str]) -> Family:
    """Return the families that must be computed to get `columns`."""
    needed = Family.SCAN
    for family, names in COLUMNS_OF_FAMILY.items():
        if any(name in columns for name in names):
            needed |= family
    return needed


def columns_of(families: Family) -> tuple[str, ...]:
    """Return the columns that `document_statistics` gives for `families`, in its order."""
    return tuple(
        name
        for family, names in COLUMNS_OF_FAMILY.items()
        if family == Family.SCAN or families & family
        for name in names
    )


def word_tables(lists: Sequence[Sequence[str]]) -> np.ndarray:
    """Hash lists of words for `document_statistics`.

    Returns:
        uint64 of shape [lists, slots]: one hash table each, 0 where empty.
    """
    size = 16
    while lists and size < 4 * max(len(words) for words in lists):
        size *= 2
    tables = np.zeros((max(len(lists), 1), size), np.uint64)
    for table, words in zip(tables, lists, strict=False):
        for word in dict.fromkeys(words):
            value = np.uint64(hash_word(word))
            slot = int(value) % size
            while table[slot] not in (0, value):
                slot = (slot + 1) % size
            table[slot] = value
    return tables


@inline_kernel
def _count_stop_words(num_tokens, token_hash, table, last_seen, visit, row):
    mask = np.uint64(table.size - 1)
    total = distinct = 0
    for token in range(num_tokens):
        value = token_hash[token]
        slot = value & mask
        while table[slot] != 0:
            if table[slot] == value:
                total += 1
                if last_seen[slot] != visit:
                    last_seen[slot] = visit
                    distinct += 1
                break
            slot = (slot + _ONE) & mask
    row[0] = total
    row[1] = distinct


@inline_kernel
def contains_phrase(data, start, end, phrase):
    """Tell whether the text has `phrase` (lower-case ASCII), whatever the case."""
    first = phrase[0]
    if end - start < phrase.size:
        return False
    place, stop = np.uint64(start), np.uint64(end - phrase.size)
    while place <= stop:
        if data[place] | 32 != first:
            place += _ONE
            continue
        position = np.int64(place)
        place += _ONE
        index = 1
        while index < phrase.size:
            byte = data[position + index]
            if byte != phrase[index] and not (65 <= byte <= 90 and byte | 32 == phrase[index]):
                break
            index += 1
        if index == phrase.size:
            return True
    return False


@kernel
def _statistics(data, offsets, kinds, lower, families, tables, list_of_document, lorem, max_tokens, out):
    documents = offsets.size - 1
    longest = 0
    for document in range(documents):
        longest = max(longest, offsets[document + 1] - offsets[document])
    capacity = min(longest // 2 + 1, max_tokens)
    token_hash = np.empty(capacity, np.uint64)
    token_chars = np.empty(capacity, np.int32)
    token_gap = np.empty(capacity, np.int8)
    line_hash = np.empty(capacity, np.uint64)
    line_chars = np.empty(capacity, np.int64)
    line_breaks = np.empty(capacity, np.int8)
    entries = longest if families & _CHARACTERS else capacity
    slots = table_size(entries) if families & (_LINES | _NGRAMS | _CHARACTERS) else 1
    keys = np.empty(slots, np.uint64)
    used = np.empty(slots, np.int32)
    scratch = entries + 2 if families & (_NGRAMS | _CHARACTERS) else 1
    places = np.empty(scratch, np.int32)
    numbers = np.empty(scratch, np.int32)
    counts = np.empty(scratch, np.int32)
    ends = np.empty(scratch, np.int64)
    last_seen = np.full(tables.shape, -1, np.int64)
    for document in range(documents):
        row = out[document]
        start, end = offsets[document], offsets[document + 1]
        num_tokens, num_lines = scan_document(
            data, start, end, kinds, lower, row[:_NUM_SCAN],
            token_hash, token_chars, token_gap, line_hash, line_chars, line_breaks,
        )  # fmt: skip
        if families & _LINES:
            duplicate_lines(num_lines, line_hash, line_chars, line_breaks, keys, used, row[_LINES_AT:_NGRAMS_AT])
        if families & _NGRAMS:
            unspaced = 10 * row[_UNSPACED_AT] >= 3 * row[_LETTERS_AT] and row[_UNSPACED_AT] > 0
            ngram_repetition(
                num_tokens, unspaced, token_hash, token_chars, token_gap,
                keys, used, places, numbers, counts, ends, row[_NGRAMS_AT:_CHARACTERS_AT],
            )  # fmt: skip
        if families & _CHARACTERS:
            character_repetition(data, start, end, row[0], keys, used, counts, row[_CHARACTERS_AT:_STOP_AT])
        if families & _STOP:
            for slot in range(list_of_document.shape[1]):
                which = list_of_document[document, slot]
                if which >= 0:
                    at = _STOP_AT + 2 * slot
                    visit = document * list_of_document.shape[1] + slot
                    _count_stop_words(num_tokens, token_hash, tables[which], last_seen[which], visit, row[at : at + 2])
        if families & _PHRASES:
            row[_PHRASES_AT] = contains_phrase(data, start, end, lorem)


def document_statistics(
    data: np.ndarray,
    offsets: np.ndarray,
    families: Family,
    word_lists: Sequence[Sequence[str]] = (),
    list_of_document: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Compute the statistics of a batch of documents.

    Args:
        data, offsets: from `text_buffers`.
        families: what to compute beside what the scan gives.
        word_lists: the lists that `STOP_WORDS` counts.
        list_of_document: int32 of shape [documents, WORD_SLOTS]: which list applies; -1 for none. Default: the first
            list in the first slot, if there is one.

    Returns:
        {column: int64 of shape [documents]} for every column of the families.
    """
    documents = len(offsets) - 1
    if list_of_document is None:
        list_of_document = np.full((documents, WORD_SLOTS), -1, np.int32)
        list_of_document[:, 0] = 0 if word_lists else -1
    out = np.zeros((documents, _NUM_COLUMNS), np.int64)
    _statistics(
        frozen(data), frozen(offsets), kinds(), unicode.lower(), int(families), word_tables(word_lists),
        list_of_document.astype(np.int32), _LOREM, MAX_TOKENS, out,
    )  # fmt: skip
    return {name: np.ascontiguousarray(out[:, ALL_COLUMNS.index(name)]) for name in columns_of(families)}
