"""Shingle sets of documents as sorted arrays of 64-bit hashes.

A document is shingled by words, ``re.findall(r"\\w+", text.lower())``, or, when enough of its letters belong to
scripts that are written without spaces, by its characters without white space. A document with fewer units than the
n-gram is one shingle of all of them; one without any word is one shingle of its characters; one without any character
has no shingle. One deviation from ``str.lower``: both small sigmas are one letter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmctl.text.buffers import Scratch
from llmctl.text.compile import inline_kernel, kernel
from llmctl.text.hashing import fmix64
from llmctl.text.unicode import ALPHA, NO_SPACES, SPACE, WORD, classes, decode, lower

EMPTY, WORDS, CHARACTERS = 0, 1, 2
KIND_NAMES = ("empty", "words", "characters")

_SEED = np.uint64(0x9AE16A3B2F90404F)
_STEP = np.uint64(0x9FB21C651E98DF25)
_CHARACTER_SALT = np.uint64(0xC3A5C85C97CB3127)
_SHORT_SALT = np.uint64(0xB492B66FBE98F273)
_NO_WORDS_SALT = np.uint64(0x8648DBDB4E5D2C1F)
_ONE = np.uint64(1)  # unsigned indexes save the check for negative ones in hot loops
_BEYOND_ASCII = 255
_DOTTED_CAPITAL_I = 0x130
_FINAL_SIGMA, _SIGMA = 0x3C2, 0x3C3
_LARGEST_BUCKET_SORT = 1 << 20


@dataclass(frozen=True)
class ShingleSets:
    """The shingle sets of a batch.

    Attributes:
        values: uint64, all sets one after the other, each sorted and without repetitions.
        offsets: int64 of shape [rows + 1].
        kinds: uint8 of shape [rows]: `EMPTY`, `WORDS` or `CHARACTERS`.
    """

    values: np.ndarray
    offsets: np.ndarray
    kinds: np.ndarray


@kernel
def _multipliers(count):
    values = np.empty(count, np.uint64)
    state = np.uint64(0x2545F4914F6CDD1D)
    for position in range(count):
        state += np.uint64(0x9E3779B97F4A7C15)
        values[position] = fmix64(state) | np.uint64(1)
    return values


@inline_kernel
def _word_units(data, begin, end, letters, flags, lowered, units):
    """Hash the words of one document into `units`; return their number and the letters of scripts without spaces."""
    count, unspaced = np.uint64(0), 0
    position, stop = np.uint64(begin), np.uint64(end)
    while position < stop:
        letter = letters[data[position]]
        if letter == 0:
            position += _ONE
            continue
        state = _SEED
        while True:
            if letter != _BEYOND_ASCII:
                state = (state ^ np.uint64(letter)) * _STEP
                position += _ONE
            else:
                point, size = decode(data, np.int64(position))
                position += np.uint64(size)
                flag = flags[point]
                if not flag & WORD:
                    break
                if flag & NO_SPACES:
                    unspaced += 1
                if point == _DOTTED_CAPITAL_I:  # its lower case is an i and a mark, and a mark ends a word
                    state = (state ^ np.uint64(ord("i"))) * _STEP
                    break
                state = (state ^ np.uint64(lowered[point])) * _STEP
            if position >= stop:
                break
            letter = letters[data[position]]
            if letter == 0:
                break
        if state != _SEED:
            units[count] = fmix64(state)
            count += _ONE
    return np.int64(count), unspaced


@inline_kernel
def _count_letters(data, begin, end, flags):
    letters = 0
    position = begin
    while position < end:
        point, size = decode(data, position)
        position += size
        if flags[point] & ALPHA:
            letters += 1
    return letters


@inline_kernel
def _character_units(data, begin, end, flags, units):
    """Hash the characters of one document that are no white space into `units`; return their number."""
    count = 0
    position = begin
    while position < end:
        point, size = decode(data, position)
        position += size
        if not flags[point] & SPACE:
            units[count] = fmix64(np.uint64(point) ^ _CHARACTER_SALT)
            count += 1
    return count


@inline_kernel
def _combine(units, count, size, multipliers, shingles):
    """Hash every run of `size` units into `shingles`; fewer units than that make one shingle. Return their number."""
    if count < size:
        state = _SHORT_SALT
        for position in range(count):
            state = fmix64((state ^ units[position]) * _STEP)
        shingles[0] = state
        return 1
    for first in range(count - size + 1):
        total = np.uint64(0)
        for position in range(size):
            total += units[first + position] * multipliers[position]
        shingles[first] = fmix64(total)
    return count - size + 1


@inline_kernel
def _sort_unique(source, count, target, begin, starts):
    """Write the distinct values of ``source[:count]`` in ascending order to ``target[begin:]``; return the new end.

    The values are hashes, hence spread evenly: one pass drops each near its place, an insertion pass puts it right.
    """
    if count > _LARGEST_BUCKET_SORT:
        ordered = np.sort(source[:count])
        for position in range(count):
            target[begin + position] = ordered[position]
    elif count > 1:
        _drop_in_place(source, np.uint64(count), target, np.uint64(begin), starts)
    else:
        target[begin] = source[0]
    return _drop_repetitions(target, np.uint64(begin), np.uint64(begin + count))


@inline_kernel
def _drop_repetitions(target, begin, end):
    """Move the distinct values of the ascending ``target[begin:end]`` to the front and return where they end."""
    last, position = begin, begin + _ONE
    while position < end:
        value = target[position]
        last += np.uint64(value != target[last])
        target[last] = value
        position += _ONE
    return np.int64(last + _ONE)


@inline_kernel
def _drop_in_place(source, count, target, begin, starts):
    """Sort ``source[:count]`` into ``target[begin:]``; the arguments are unsigned."""
    bits = 1
    while (1 << bits) < 2 * np.int64(count):
        bits += 1
    shift, buckets = np.uint64(64 - bits), np.uint64(1 << bits)
    place = np.uint64(0)
    while place <= buckets:
        starts[place] = 0
        place += _ONE
    place = np.uint64(0)
    while place < count:
        starts[(source[place] >> shift) + _ONE] += np.uint32(1)
        place += _ONE
    place, total = np.uint64(0), np.uint32(0)
    while place < buckets:
        total += starts[place]
        starts[place] = total
        place += _ONE
    place = np.uint64(0)
    while place < count:
        value = source[place]
        bucket = value >> shift
        target[begin + np.uint64(starts[bucket])] = value
        starts[bucket] += np.uint32(1)
        place += _ONE
    place, end = begin + _ONE, begin + count
    while place < end:
        value = target[place]
        slot = place
        while slot > begin and target[slot - _ONE] > value:
            target[slot] = target[slot - _ONE]
            slot -= _ONE
        target[slot] = value
        place += _ONE


@kernel
def _shingle_batch(
    data, offsets, letters, flags, lowered, multipliers, word_size, char_size, char_share, values, ends, kinds
):
    longest = 0
    for row in range(len(offsets) - 1):
        longest = max(longest, offsets[row + 1] - offsets[row])
    units = np.empty(longest + 1, np.uint64)
    shingles = np.empty(longest + 1, np.uint64)
    starts = np.empty(4 * min(longest + 1, _LARGEST_BUCKET_SORT) + 2, np.uint32)
    filled = 0
    ends[0] = 0
    for row in range(len(offsets) - 1):
        begin, end = offsets[row], offsets[row + 1]
        count, unspaced = _word_units(data, begin, end, letters, flags, lowered, units)
        kind = WORDS
        if unspaced > 0 and unspaced >= char_share * _count_letters(data, begin, end, flags):
            kind = CHARACTERS
        if kind == CHARACTERS:
            count = _character_units(data, begin, end, flags, units)
        elif count == 0:
            count = _character_units(data, begin, end, flags, units)
            if count == 0:
                kind = EMPTY
            else:  # nothing but signs: all of them are one shingle
                state = _NO_WORDS_SALT
                for position in range(count):
                    state = fmix64((state ^ units[position]) * _STEP)
                units[0] = state
                count = 1
        kinds[row] = kind
        if kind != EMPTY:
            size = char_size if kind == CHARACTERS else word_size
            made = _combine(units, count, size, multipliers, shingles)
            filled = _sort_unique(shingles, made, values, filled, starts)
        ends[row + 1] = filled
    return filled


def _letters() -> np.ndarray:
    """Return by byte the lower-case letter of an ASCII word character, 0 for other ASCII, 255 beyond; uint8 [256]."""
    table = np.full(256, _BEYOND_ASCII, np.uint8)
    table[:128] = 0
    for point in range(128):
        char = chr(point)
        if char.isalnum() or char == "_":
            table[point] = ord(char.lower())
    return table


def _lowered() -> np.ndarray:
    table = lower().copy()
    table[_FINAL_SIGMA] = _SIGMA
    return table


_tables: list[np.ndarray] = []


def shingle_sets(
    data: np.ndarray,
    offsets: np.ndarray,
    *,
    scratch: Scratch | None = None,
    ngram_size: int = 5,
    char_ngram_size: int = 5,
    char_share: float = 0.05,
) -> ShingleSets:
    """Return the shingle set of every document of a batch.

    Args:
        data, offsets: UTF-8 bytes and int64 offsets, as `text.buffers.text_buffers` gives them.
        scratch: memory that is used again; the values returned are good until its next use.
        ngram_size: words of a shingle.
        char_ngram_size: characters of a shingle.
        char_share: share of letters of scripts without spaces from which a document is shingled by characters.
    """
    if not _tables:
        _tables.extend([_letters(), classes(), _lowered()])
    rows = len(offsets) - 1
    size = int(offsets[-1] - offsets[0])
    # An upper bound; memory that is not written to costs nothing.
    values = (scratch or Scratch()).array("shingles", size + rows + 1, np.uint64)
    ends = np.empty(rows + 1, np.int64)
    kinds = np.empty(rows, np.uint8)
    multipliers = _multipliers(max(ngram_size, char_ngram_size))
    filled = _shingle_batch(
        data, offsets, *_tables, multipliers, ngram_size, char_ngram_size, float(char_share), values, ends, kinds
    )
    return ShingleSets(values[:filled], ends, kinds)
