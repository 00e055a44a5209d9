"""Hash the character and word n-grams of documents into a fixed number of features, and score them by a linear model.

A text is read as small letters with every digit as ``0`` and every run of white space as one space, so that the
features are about words and habits and not about single numbers. Characters are code points, whatever the script;
a word is a run of letters, digits and marks, or one character of a script written without spaces, or one symbol.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from llmctl.text import unicode
from llmctl.text.buffers import frozen
from llmctl.text.compile import inline_kernel, kernel
from llmctl.text.unicode import DIGIT, MARK, NO_SPACES, SPACE, WORD, decode

CHAR_ORDERS = 5  # n-grams of 1 to 5 characters
WORD_ORDERS = 2
# The beginning of a document that is looked at: what a classifier can know of it shows there.
MAX_CHARS = 20_000

_PRIME = np.uint64(0x9E3779B97F4A7C15)
_WORD_PRIME = np.uint64(0xC2B2AE3D27D4EB4F)
_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
_ONE = np.uint64(1)
_CHAR_SALT = np.uint64(0x165667B19E3779F9)
BREAKS_WORD = 1 << 16  # of the flags: not a part of a longer word


@lru_cache(maxsize=1)
def character_tables() -> tuple[np.ndarray, np.ndarray]:
    """Return the folded code points (uint32) and flags (uint32) of every code point."""
    classes = unicode.classes().astype(np.uint32)
    folded = unicode.lower().copy()
    digits = (classes & DIGIT != 0) & (classes & NO_SPACES == 0) & (classes & unicode.ALPHA == 0)
    folded[digits] = ord("0")
    folded[classes & SPACE != 0] = 32
    folded[:32] = 32
    flags = classes.copy()
    flags[:33] |= SPACE
    inside = (classes & (WORD | MARK) != 0) & (classes & NO_SPACES == 0)
    flags[~inside] |= BREAKS_WORD
    return folded, flags


@inline_kernel
def _bucket(value, shift):
    value ^= value >> np.uint64(32)
    value *= _MULTIPLIER
    value ^= value >> np.uint64(29)
    return (value * _PRIME) >> shift


@inline_kernel
def _walk(data, start, end, folded, flags, shift, max_chars, weights, out, keep):
    """Go over one document's features.

    Args:
        shift: 64 − log2(number of features).
        weights: float32 per feature; the sum over the document's features is returned.
        out: where the features are stored, if `keep`.

    Returns:
        (sum of weights, number of features)
    """
    total = 0.0
    count = np.int64(0)
    h1 = h2 = h3 = h4 = h5 = np.uint64(0)
    seen = 0
    word = np.uint64(0)
    last_word = np.uint64(0)
    words = 0
    space = True
    position = start
    # A space before the first character and one after the last, so that the edges are features too.
    stage = 0
    while stage < 3:
        if stage == 1 and (position >= end or seen >= max_chars):
            stage = 2
        if stage == 1:
            point, width = decode(data, position)
            position += width
            flag = flags[point]
            code = np.uint64(folded[point])
        else:
            flag = np.uint32(SPACE | BREAKS_WORD)
            code = np.uint64(32)
        is_space = flag & np.uint32(SPACE) != 0
        if stage != 1:
            stage += 1
        if is_space and space and seen > 0:
            continue
        space = is_space
        seen += 1
        h5 = h4 * _PRIME + code
        h4 = h3 * _PRIME + code
        h3 = h2 * _PRIME + code
        h2 = h1 * _PRIME + code
        h1 = code + _ONE
        if not is_space:
            bucket = _bucket(h1 + _CHAR_SALT, shift)
            total += weights[bucket]
            if keep:
                out[count] = bucket
            count += 1
        for order in range(2, 6):
            if seen < order:
                break
            value = h2 if order == 2 else (h3 if order == 3 else (h4 if order == 4 else h5))
            bucket = _bucket(value + np.uint64(order) * _CHAR_SALT, shift)
            total += weights[bucket]
            if keep:
                out[count] = bucket
            count += 1
        breaks = flag & np.uint32(BREAKS_WORD) != 0
        if not breaks:
            word = (word + code + _ONE) * _WORD_PRIME
            continue
        # The word so far ends here; a symbol or an unspaced character is a word by itself.
        for turn in range(2):
            if turn == 1:
                if is_space:
                    break
                word = (code + _ONE) * _WORD_PRIME
            if word == 0:
                continue
            bucket = _bucket(word, shift)
            total += weights[bucket]
            if keep:
                out[count] = bucket
            count += 1
            if words > 0:
                bucket = _bucket(last_word * _PRIME + word, shift)
                total += weights[bucket]
                if keep:
                    out[count] = bucket
                count += 1
            last_word = word
            words += 1
            word = np.uint64(0)
    return total, count


@kernel
def _score(data, offsets, folded, flags, shift, max_chars, weights, sums, counts):
    nothing = np.empty(0, np.uint32)
    for document in range(offsets.size - 1):
        sums[document], counts[document] = _walk(
            data, offsets[document], offsets[document + 1], folded, flags, shift, max_chars, weights, nothing, False
        )


@kernel
def _features(data, offsets, folded, flags, shift, max_chars, out, ends):
    """Store every document's distinct features, sorted, with how often each occurs in `counts`."""
    longest = 0
    for document in range(offsets.size - 1):
        longest = max(longest, min(offsets[document + 1] - offsets[document], np.int64(4 * max_chars)))
    scratch = np.empty((CHAR_ORDERS + WORD_ORDERS) * (longest + 2), np.uint32)
    zero = np.zeros(np.int64(1) << np.int64(64 - shift), np.float32)
    written = np.int64(0)
    for document in range(offsets.size - 1):
        _, count = _walk(
            data, offsets[document], offsets[document + 1], folded, flags, shift, max_chars, zero, scratch, True
        )
        for index in range(count):
            out[written + index] = scratch[index]
        written += count
        ends[document] = written


def score_documents(
    data: np.ndarray, offsets: np.ndarray, weights: np.ndarray, max_chars: int = MAX_CHARS
) -> tuple[np.ndarray, np.ndarray]:
    """Sum a linear model's weights over the features of every document.

    Args:
        data, offsets: from `text_buffers`.
        weights: float32 of shape [features], a power of two.
        max_chars: what of each document is looked at.

    Returns:
        (sums, float64; number of features, int64), each of shape [documents].
    """
    documents = len(offsets) - 1
    sums, counts = np.zeros(documents), np.zeros(documents, np.int64)
    folded, flags = character_tables()
    shift = np.uint64(65 - len(weights).bit_length())
    _score(frozen(data), frozen(offsets), folded, flags, shift, max_chars, frozen(weights), sums, counts)
    return sums, counts


def document_features(
    data: np.ndarray, offsets: np.ndarray, bits: int, max_chars: int = MAX_CHARS
) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of every document, as often as each occurs.

    Args:
        data, offsets: from `text_buffers`.
        bits: log2 of the number of features.
        max_chars: what of each document is looked at.

    Returns:
        (features, uint32, one document after the other; ends, int64 of shape [documents])
    """
    documents = len(offsets) - 1
    folded, flags = character_tables()
    # At most seven features a character, and two more characters for the edges.
    lengths = np.minimum(np.diff(offsets), 4 * max_chars)
    out = np.empty(int((CHAR_ORDERS + WORD_ORDERS) * (lengths + 2).sum()), np.uint32)
    ends = np.zeros(documents, np.int64)
    _features(frozen(data), frozen(offsets), folded, flags, np.uint64(64 - bits), max_chars, out, ends)
    return out[: ends[-1] if documents else 0].copy(), ends
