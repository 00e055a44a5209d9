"""Kernels that find texts with one skeleton: token sequences, sketches of their masked shingles, common subsequences.

A token is a lower-cased word, or one character of a script written without spaces; a word with a digit is a number.
Tokens that few documents have, and numbers, cannot stand in a skeleton that many documents share: they are masked, and
neighbouring masked tokens are one slot. What is left is shingled, slots included, and the smallest shingle hashes of a
document are its sketch (bottom-k: Broder 1997).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmctl.text.buffers import frozen
from llmctl.text.compile import inline_kernel, kernel
from llmctl.text.hashing import fmix64
from llmctl.text.unicode import DIGIT, NO_SPACES, WORD, classes, decode, lower

SLOT, NUMBER = 0, 2
# A document is compared by so many tokens from its beginning.
MOST_TOKENS = 2048
SKETCH_SIZE = 128
FREQUENCY_BITS = 22
_WORD_SHINGLE, _WORD_REAL = 5, 3  # tokens of a shingle, and how many of them must not be slots
_CHAR_SHINGLE, _CHAR_REAL = 7, 5
_SEED = np.uint64(0x9AE16A3B2F90404F)
_STEP = np.uint64(0x9FB21C651E98DF25)


@inline_kernel
def _token(state, unspaced):
    # The last bit tells characters of scripts without spaces from words; 0 to 3 mean something else.
    value = np.uint32(fmix64(state) >> np.uint64(32)) & np.uint32(0xFFFFFFFE)
    if value < 4:
        value = np.uint32(4)
    return value | np.uint32(unspaced)


@kernel
def _tokenise(data, offsets, flags, lowered, most, tokens, ends, starts, stops):
    filled = 0
    ends[0] = 0
    spans = len(starts) > 0
    for row in range(len(offsets) - 1):
        position, end = offsets[row], offsets[row + 1]
        limit = filled + most
        while position < end and filled < limit:
            point, size = decode(data, position)
            flag = flags[point]
            if not flag & WORD:
                position += size
                continue
            begin = position
            if flag & NO_SPACES:
                position += size
                token = _token((_SEED ^ np.uint64(point)) * _STEP, 1)
            else:
                state = _SEED
                number = False
                while flag & WORD and not flag & NO_SPACES:
                    state = (state ^ np.uint64(lowered[point])) * _STEP
                    number = number or (flag & DIGIT) != 0
                    position += size
                    if position >= end:
                        break
                    point, size = decode(data, position)
                    flag = flags[point]
                token = np.uint32(NUMBER) if number else _token(state, 0)
            tokens[filled] = token
            if spans:
                starts[filled] = begin
                stops[filled] = position
            filled += 1
        ends[row + 1] = filled
    return filled


def token_sequences(data: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first `MOST_TOKENS` tokens of every text.

    Args:
        data, offsets: UTF-8 bytes and int64 offsets, as `text.buffers.text_buffers` gives them.

    Returns:
        (tokens, ends): uint32, all sequences one after the other; int64 of shape [rows + 1].
    """
    nothing = np.zeros(0, np.int64)
    tokens, ends, _, _ = _sequences(data, offsets, nothing, nothing)
    return tokens, ends


def token_spans(text: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens of one text, and where each begins and ends in it (bytes)."""
    places = np.zeros(len(text) + 1, np.int64), np.zeros(len(text) + 1, np.int64)
    tokens, _, starts, stops = _sequences(np.frombuffer(text, np.uint8), np.array([0, len(text)]), *places)
    return tokens, starts, stops


def _sequences(
    data: np.ndarray, offsets: np.ndarray, starts: np.ndarray, stops: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rows = len(offsets) - 1
    tokens = np.empty(int(offsets[-1] - offsets[0]) + 1, np.uint32)
    ends = np.empty(rows + 1, np.int64)
    arrays = frozen(data), frozen(offsets)
    filled = _tokenise(*arrays, classes(), lower(), MOST_TOKENS, tokens, ends, starts, stops)
    return tokens[:filled].copy(), ends, starts[:filled], stops[:filled]


@kernel
def count_documents(tokens, ends, bits):
    """Return in how many documents the tokens of each bucket occur, uint32 of shape [2**bits].

    A token's bucket is its leading bits; tokens that share one seem more frequent than they are.
    """
    table = np.zeros(1 << bits, np.uint32)
    last = np.full(1 << bits, -1, np.int64)
    shift = np.uint32(32 - bits)
    for row in range(len(ends) - 1):
        for place in range(ends[row], ends[row + 1]):
            bucket = tokens[place] >> shift
            if last[bucket] != row:
                last[bucket] = row
                table[bucket] += np.uint32(1)
    return table


@kernel
def sketches(tokens, ends, table, bits, fewest, size):
    """Return the sketch of every document: the smallest hashes of its masked shingles.

    Args:
        tokens, ends: from `token_sequences`.
        table: in how many documents a token occurs, from `count_documents`.
        bits: of the table.
        fewest: tokens of fewer documents are masked.
        size: most hashes of a sketch.

    Returns:
        (values, value_ends): uint64, ascending and distinct in each document; int64 of shape [rows + 1].
    """
    rows = len(ends) - 1
    shift = np.uint32(32 - bits)
    values = np.empty(rows * size, np.uint64)
    value_ends = np.zeros(rows + 1, np.int64)
    longest = 0
    for row in range(rows):
        longest = max(longest, ends[row + 1] - ends[row])
    masked = np.empty(longest + 1, np.uint32)
    hashes = np.empty(longest + 1, np.uint64)
    filled = 0
    for row in range(rows):
        count = 0
        unspaced: Any = 0
        for place in range(ends[row], ends[row + 1]):
            token = tokens[place]
            unspaced += np.int64(token & np.uint32(1))
            if token == NUMBER or table[token >> shift] < fewest:
                if count and masked[count - 1] == SLOT:
                    continue
                token = np.uint32(SLOT)
            masked[count] = token
            count += 1
        by_characters = 2 * unspaced > ends[row + 1] - ends[row]
        width = _CHAR_SHINGLE if by_characters else _WORD_SHINGLE
        fewest_real = _CHAR_REAL if by_characters else _WORD_REAL
        made = 0
        for first in range(count - width + 1):
            state = _SEED
            real: Any = 0
            for step in range(width):
                token = masked[first + step]
                real += np.int64(token != SLOT)
                state = fmix64((state ^ np.uint64(token)) * _STEP)
            if real >= fewest_real:
                hashes[made] = state
                made += 1
        ordered = np.sort(hashes[:made])
        begin = filled
        for place in range(made):
            if filled - begin == size:
                break
            if filled == begin or ordered[place] != values[filled - 1]:
                values[filled] = ordered[place]
                filled += 1
        value_ends[row + 1] = filled
    return values[:filled].copy(), value_ends


@kernel
def count_hashes(values, table, bits):
    """Add the values (a hash occurs once a document) to a table of counts that stop at their type's largest."""
    shift = np.uint64(64 - bits)
    for value in values:
        bucket = value >> shift
        if table[bucket] < 65535:
            table[bucket] += np.uint16(1)


@kernel
def shared_bands(values, ends, table, bits, fewest, least_share, num_bands, rows_per_band):
    """Find the documents whose sketch is mostly of hashes that other documents have, and hash it into bands.

    Args:
        values, ends: from `sketches`.
        table, bits: counts of the hashes over all documents, from `count_hashes`.
        fewest: a hash of fewer documents is a document's own.
        least_share: of a sketch that others must have.

    Returns:
        (rows, hashes): int64 positions of those documents, uint64 of shape [num_bands, rows].
    """
    shift = np.uint64(64 - bits)
    count = len(ends) - 1
    found = np.empty(count, np.int64)
    hashes = np.empty((num_bands, count), np.uint64)
    filled = 0
    for row in range(count):
        own = values[ends[row] : ends[row + 1]]
        shared: Any = 0
        for value in own:
            shared += np.int64(table[value >> shift] >= fewest)
        if shared == 0 or shared < least_share * len(own):
            continue
        for band in range(num_bands):
            state = fmix64(np.uint64(band + 1))
            for k in range(rows_per_band):
                salt = fmix64(np.uint64(band * rows_per_band + k + 1) * _STEP)
                least = np.uint64(0xFFFFFFFFFFFFFFFF)
                for value in own:
                    if table[value >> shift] >= fewest:
                        least = min(least, fmix64(value ^ salt))
                state = fmix64((state ^ least) * _STEP)
            hashes[band, filled] = state
        found[filled] = row
        filled += 1
    return found[:filled].copy(), hashes[:, :filled].copy()


@kernel
def common_lengths(skeleton, tokens, ends):
    """Return the length of the longest common subsequence of a skeleton and each of several sequences, int64."""
    lengths = np.zeros(len(ends) - 1, np.int64)
    row = np.zeros(len(skeleton) + 1, np.int32)
    for which in range(len(ends) - 1):
        begin, end = ends[which], ends[which + 1]
        first, last = 0, len(skeleton)
        while first < last and begin < end and skeleton[first] == tokens[begin] and tokens[begin] != NUMBER:
            first += 1
            begin += 1
        matched = first
        while first < last and begin < end and skeleton[last - 1] == tokens[end - 1] and tokens[end - 1] != NUMBER:
            last -= 1
            end -= 1
            matched += 1
        row[: last - first + 1] = 0
        for place in range(begin, end):
            diagonal = np.int32(0)
            token = tokens[place]
            for column in range(first, last):
                above = row[column - first + 1]
                if skeleton[column] == token and token != NUMBER:
                    row[column - first + 1] = diagonal + 1
                elif row[column - first] > above:
                    row[column - first + 1] = row[column - first]
                diagonal = above
        lengths[which] = matched + row[last - first]
    return lengths


@kernel
def align(one, two):
    """Return a longest common subsequence of two sequences as positions in each, int64; numbers match nothing."""
    rows, columns = len(one), len(two)
    table = np.zeros((rows + 1, columns + 1), np.uint16)
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            if one[i] == two[j] and one[i] != NUMBER:
                table[i, j] = table[i + 1, j + 1] + 1
            else:
                table[i, j] = max(table[i + 1, j], table[i, j + 1])
    length = np.int64(table[0, 0])
    in_one, in_two = np.empty(length, np.int64), np.empty(length, np.int64)
    i = j = filled = 0
    while filled < length:
        if one[i] == two[j] and one[i] != NUMBER:
            in_one[filled], in_two[filled] = i, j
            filled += 1
            i += 1
            j += 1
        elif table[i + 1, j] >= table[i, j + 1]:
            i += 1
        else:
            j += 1
    return in_one, in_two
