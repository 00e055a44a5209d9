"""Find what a document repeats: lines, paragraphs, word n-grams and character n-grams.

Word n-grams are numbered level by level: an n-gram can occur twice only if both (n-1)-grams in it do, so each level
looks only at what repeats on the level below. Numbers, not hashes, are compared from the second level on, so the
counts are exact up to collisions of the 64-bit token hashes.

In scripts without spaces a token is a character, and published sizes and limits mean words. There an n-gram of n words
is taken as 2n characters (words of running Chinese text have one or two, terms more).
"""

from __future__ import annotations

import numpy as np

from llmctl.text.compile import inline_kernel
from llmctl.text.unicode import decode
from llmctl.text.words import HASH_PRIME, HASH_SEED, mix

LINE_COLUMNS = (
    "duplicate_lines",
    "duplicate_line_chars",
    "num_paragraphs",
    "duplicate_paragraphs",
    "duplicate_paragraph_chars",
)
TOP_SIZES = (2, 3, 4)
DUPLICATE_SIZES = (5, 6, 7, 8, 9, 10)
NGRAM_COLUMNS = (
    *(f"top_{size}gram_chars" for size in TOP_SIZES),
    *(f"duplicate_{size}gram_chars" for size in DUPLICATE_SIZES),
    "num_5grams",
    "repeated_5grams",
)
CHARACTER_COLUMNS = ("num_10char_grams", "repeated_10char_grams")
CHARACTER_GRAM_SIZE = 10
_ID_BITS = np.uint64(32)
_ONE = np.uint64(1)  # unsigned indexes spare hot loops the check for negative ones


@inline_kernel
def table_size(entries):
    """Return the size of a hash table for that many entries: a power of two, at most half full."""
    size = 16
    while size < 2 * entries:
        size *= 2
    return size


@inline_kernel
def find_slot(keys, used, size, key):
    """Return the slot of `key`, or the free slot where it belongs (``used[slot] == 0``)."""
    mask = np.uint64(size - 1)
    slot = mix(key) & mask
    while used[slot] != 0 and keys[slot] != key:
        slot = (slot + _ONE) & mask
    return slot


@inline_kernel
def duplicate_lines(num_lines, line_hash, line_chars, line_breaks, keys, used, row):
    """Count lines and paragraphs that occurred before in the same document, and their characters.

    A paragraph is a run of lines with no blank line between them; its characters include the newlines inside.

    Args:
        keys, used: scratch for a hash table of at least ``table_size(num_lines)``.
        row: int64 of shape [len(LINE_COLUMNS)], filled.
    """
    size = table_size(num_lines)
    used[:size] = 0
    repeated = repeated_chars = 0
    for line in range(num_lines):
        slot = find_slot(keys, used, size, line_hash[line])
        if used[slot]:
            repeated += 1
            repeated_chars += line_chars[line]
        else:
            used[slot] = 1
            keys[slot] = line_hash[line]
    row[0] = repeated
    row[1] = repeated_chars

    used[:size] = 0
    paragraphs = repeated = repeated_chars = 0
    line = 0
    while line < num_lines:
        value = HASH_SEED
        chars = -1
        while True:
            value = (value ^ line_hash[line]) * HASH_PRIME
            chars += line_chars[line] + 1
            line += 1
            if line >= num_lines or line_breaks[line]:
                break
        value = mix(value)
        paragraphs += 1
        slot = find_slot(keys, used, size, value)
        if used[slot]:
            repeated += 1
            repeated_chars += chars
        else:
            used[slot] = 1
            keys[slot] = value
    row[2] = paragraphs
    row[3] = repeated
    row[4] = repeated_chars


@inline_kernel
def ngram_repetition(
    num_tokens, unspaced, token_hash, token_chars, token_gap, keys, used, places, numbers, counts, ends, row
):
    """Measure the most frequent 2- to 4-gram and all repeated 5- to 10-grams of words.

    The top n-gram is the first of those with the highest count, and counts from two occurrences on. Repeated n-grams
    are walked from the left: one seen before adds its characters and is stepped over whole. An n-gram's characters are
    those of its tokens, and one for each white space inside.

    Args:
        unspaced: the document is in a script without spaces: n words are 2n tokens.
        keys, used: scratch for a hash table of at least ``table_size(num_tokens)``.
        places, numbers, counts (int32), ends (int64): scratch of at least ``num_tokens + 1``.
        row: int64 of shape [len(NGRAM_COLUMNS)], filled.
    """
    row[:] = 0
    row[9] = max(num_tokens - (10 if unspaced else 5) + 1, 0)
    if num_tokens < 3:
        return
    ends[0] = 0
    for token in range(num_tokens):
        ends[token + 1] = ends[token] + token_chars[token] + token_gap[token]
    active = _number_tokens(num_tokens, token_hash, keys, used, places, numbers, counts)

    words = 2  # the next size to measure, in words
    length = 1
    while words <= 10:
        length += 1
        active = _lengthen(active, keys, used, places, numbers, counts)
        if active == 0:
            return
        if length < (2 * words if unspaced else words):
            continue
        if words <= 4:
            row[words - 2] = _top_chars(active, length, places, numbers, counts, ends, token_gap)
        else:
            if words == 5:
                row[10] = active
            row[words - 2] = _walk_repeated(active, length, places, numbers, counts, ends, token_gap)
        words += 1


@inline_kernel
def _number_tokens(num_tokens, token_hash, keys, used, places, numbers, counts):
    """List the places and numbers of the tokens that occur more than once; return how many there are."""
    size = table_size(num_tokens)
    used[:size] = 0
    distinct = 0
    for token in range(num_tokens):
        slot = find_slot(keys, used, size, token_hash[token])
        if used[slot] == 0:
            distinct += 1
            used[slot] = distinct
            keys[slot] = token_hash[token]
            counts[distinct] = 0
        numbers[token] = used[slot]
        counts[used[slot]] += 1
    active = 0
    for token in range(num_tokens):
        if counts[numbers[token]] > 1:
            places[active] = token
            numbers[active] = numbers[token]
            active += 1
    return active


@inline_kernel
def _lengthen(active, keys, used, places, numbers, counts):
    """Go from the repeated n-grams to the repeated (n+1)-grams, in place; return how many occurrences there are."""
    candidates = 0
    for at in range(active - 1):
        candidates += places[at + 1] == places[at] + 1
    if candidates < 2:
        return 0
    size = table_size(candidates)
    used[:size] = 0
    distinct = 0
    found = 0
    for at in range(active - 1):
        if places[at + 1] != places[at] + 1:
            continue
        key = np.uint64(numbers[at]) << _ID_BITS | np.uint64(numbers[at + 1])
        slot = find_slot(keys, used, size, key)
        if used[slot] == 0:
            distinct += 1
            used[slot] = distinct
            keys[slot] = key
            counts[distinct] = 0
        counts[used[slot]] += 1
        places[found] = places[at]
        numbers[found] = used[slot]
        found += 1
    kept = 0
    for at in range(found):
        if counts[numbers[at]] > 1:
            places[kept] = places[at]
            numbers[kept] = numbers[at]
            kept += 1
    return kept


@inline_kernel
def _top_chars(active, length, places, numbers, counts, ends, token_gap):
    """Return the characters of the first of the most frequent n-grams."""
    best = 0
    top = numbers[0]
    for at in range(active):
        number = numbers[at]
        # Numbers are given in order of first occurrence.
        if counts[number] > best or (counts[number] == best and number < top):
            best = counts[number]
            top = number
    total = 0
    for at in range(active):
        if numbers[at] == top:
            total += ends[places[at] + length] - ends[places[at]] - token_gap[places[at]]
    return total


@inline_kernel
def _walk_repeated(active, length, places, numbers, counts, ends, token_gap):
    total = 0
    free = 0  # the first token that is not stepped over
    for at in range(active):
        start = places[at]
        if start < free:
            continue
        number = numbers[at]
        if counts[number] < 0:  # seen
            total += ends[start + length] - ends[start] - token_gap[start]
            free = start + length
        else:
            counts[number] = -counts[number]
    return total


@inline_kernel
def character_repetition(data, start, end, num_chars, keys, used, counts, row):
    """Count the character 10-grams of a document and those that the most frequent ones account for.

    As in the ROOTS corpus: of D distinct 10-grams the most frequent ones are taken, floor(sqrt(D)) of them but none
    that occurs once.

    Args:
        keys, used: scratch for a hash table of at least ``table_size(num_chars)``.
        counts: int32 scratch of at least ``num_chars + 1``.
        row: int64 of shape [len(CHARACTER_COLUMNS)], filled.
    """
    row[:] = 0
    positions = num_chars - CHARACTER_GRAM_SIZE + 1
    if positions < 1:
        return
    leading = np.uint64(1)
    for _ in range(CHARACTER_GRAM_SIZE - 1):
        leading *= HASH_PRIME
    size = table_size(positions)
    used[:size] = 0
    distinct = 0
    value = np.uint64(0)
    behind = start
    ahead = start
    seen = 0
    while ahead < end:
        point, length = decode(data, ahead)
        value = value * HASH_PRIME + np.uint64(point)
        ahead += length
        seen += 1
        if seen < CHARACTER_GRAM_SIZE:
            continue
        slot = find_slot(keys, used, size, value)
        if used[slot] == 0:
            distinct += 1
            used[slot] = distinct
            keys[slot] = value
            counts[distinct] = 0
        counts[used[slot]] += 1
        point, length = decode(data, behind)
        value -= np.uint64(point) * leading
        behind += length
    row[0] = positions
    several = 0
    for number in range(1, distinct + 1):
        if counts[number] > 1:
            counts[several] = counts[number]
            several += 1
    most = int(np.sqrt(distinct))
    taken = several if several < most else most
    ordered = np.sort(counts[:several])
    total = 0
    for place in range(several - taken, several):
        total += ordered[place]
    row[1] = total
