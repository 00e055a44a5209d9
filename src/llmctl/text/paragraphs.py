"""Normalise white space, hash whole texts, and hash paragraphs.

Normalised: runs of blanks are one space, lines are trimmed, one line break stays one, several (blank lines) are a
paragraph break, and nothing stands before the first or after the last character.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from llmctl.text.buffers import Scratch
from llmctl.text.compile import inline_kernel, kernel
from llmctl.text.hashing import fmix64, murmur128
from llmctl.text.unicode import decode

_TEXT_SEED = np.uint64(0x8648DBDB4E5D2C1F)
_STEP = np.uint64(0x9FB21C651E98DF25)
_PARAGRAPH_SEED = np.uint64(0x5BD1E995)
_SPACE, _NEWLINE = np.uint8(32), np.uint8(10)


@dataclass(frozen=True)
class Paragraphs:
    """Hashes of the texts and paragraphs of a batch.

    Attributes:
        text_hashes: uint64 of shape [rows, 2], 128 bits that are equal for texts with equal paragraphs in one order.
        hashes: uint64, the paragraphs of all documents in the order in which they stand.
        weights: uint32, their lengths in bytes, white space normalised.
        offsets: int64 of shape [rows + 1].
    """

    text_hashes: np.ndarray
    hashes: np.ndarray
    weights: np.ndarray
    offsets: np.ndarray


_TEXT, _BLANK, _LINE_FEED, _RETURN, _MAYBE_BLANK = 0, 1, 2, 3, 4
_ONE = np.uint64(1)  # unsigned indexes save the check for negative ones in hot loops


def _byte_classes() -> np.ndarray:
    table = np.full(256, _TEXT, np.uint8)
    table[[9, 11, 12, 28, 29, 30, 31, 32]] = _BLANK
    table[10], table[13] = _LINE_FEED, _RETURN
    table[[0xC2, 0xE1, 0xE2, 0xE3]] = _MAYBE_BLANK  # the first bytes of white space beyond ASCII
    return table


_CLASSES = _byte_classes()


@inline_kernel
def _blank_width(data, position):
    """Return the bytes of the white space beyond ASCII at `position`, 0 if it is another character."""
    if data[position] == 0xC2:  # U+0085, U+00A0
        following = data[position + _ONE]
        return np.uint64(2) if following == 0x85 or following == 0xA0 else np.uint64(0)
    point, _ = decode(data, np.int64(position))
    if (
        point == 0x1680
        or 0x2000 <= point <= 0x200A
        or point == 0x2028
        or point == 0x2029
        or point == 0x202F
        or point == 0x205F
        or point == 0x3000
    ):
        return np.uint64(3)
    return np.uint64(0)


@inline_kernel
def _normalise(data, begin, end, classes, text, breaks):
    """Write the normalised document to `text`; return its length and the number of line breaks.

    ``breaks[i]`` is the position of a line break in `text`, negative (``~position``) for a paragraph break, which
    takes two bytes.
    """
    length, num_breaks = np.uint64(0), np.uint64(0)
    position, stop = np.uint64(begin), np.uint64(end)
    while position < stop:
        newlines, start = 0, position
        while position < stop:
            kind = classes[data[position]]
            if kind == _TEXT:
                break
            if kind == _BLANK:
                position += _ONE
            elif kind == _LINE_FEED:
                newlines += 1
                position += _ONE
            elif kind == _RETURN:
                position += _ONE
                if not (position < stop and data[position] == _NEWLINE):
                    newlines += 1
            else:
                width = _blank_width(data, position)
                if width == 0:
                    break
                position += width
        if position >= stop:
            break
        if position > start and length > 0:
            if newlines:
                breaks[num_breaks] = np.int64(length) if newlines == 1 else ~np.int64(length)
                num_breaks += _ONE
                if newlines > 1:
                    text[length] = _NEWLINE
                    length += _ONE
            text[length] = _NEWLINE if newlines else _SPACE
            length += _ONE
        text[length] = data[position]
        length += _ONE
        position += _ONE
        while position < stop and classes[data[position]] == _TEXT:
            text[length] = data[position]
            length += _ONE
            position += _ONE
    return np.int64(length), np.int64(num_breaks)


@kernel
def _hash_batch(data, offsets, classes, text_hashes, hashes, weights, ends):
    longest = 0
    for row in range(len(offsets) - 1):
        longest = max(longest, offsets[row + 1] - offsets[row])
    text = np.empty(longest + 2, np.uint8)
    breaks = np.empty(longest + 1, np.int64)
    filled = 0
    ends[0] = 0
    for row in range(len(offsets) - 1):
        length, num_breaks = _normalise(data, offsets[row], offsets[row + 1], classes, text, breaks)
        by_lines = True
        for index in range(num_breaks):
            if breaks[index] < 0:
                by_lines = False
        high, low = _TEXT_SEED, ~_TEXT_SEED
        begin = 0
        for index in range(num_breaks + 1):
            if index < num_breaks and breaks[index] >= 0 and not by_lines:
                text[breaks[index]] = _SPACE  # a paragraph that is wrapped at another width is the same one
                continue
            end = length
            after = length
            if index < num_breaks:
                end = breaks[index] if breaks[index] >= 0 else ~breaks[index]
                after = end + (1 if breaks[index] >= 0 else 2)
            if end > begin:
                one, two = murmur128(text, begin, end, _PARAGRAPH_SEED)
                hashes[filled] = one
                weights[filled] = end - begin
                filled += 1
                high = fmix64((high ^ one) * _STEP)
                low = fmix64((low ^ two) * _STEP)
            begin = after
        text_hashes[row, 0], text_hashes[row, 1] = high, low
        ends[row + 1] = filled
    return filled


def hash_paragraphs(data: np.ndarray, offsets: np.ndarray, scratch: Scratch | None = None) -> Paragraphs:
    """Hash every text of a batch as a whole and by paragraphs.

    Paragraphs are parted by blank lines; in a text without blank lines every line is one.

    Args:
        data, offsets: UTF-8 bytes and int64 offsets, as `text.buffers.text_buffers` gives them.
        scratch: memory that is used again; hashes and weights are good until its next use.
    """
    rows = len(offsets) - 1
    # A paragraph has a character and a break. Memory that is not written to costs nothing.
    most = int(offsets[-1] - offsets[0]) // 2 + rows + 1
    scratch = scratch or Scratch()
    text_hashes = np.empty((rows, 2), np.uint64)
    hashes = scratch.array("paragraphs", most, np.uint64)
    weights = scratch.array("paragraph weights", most, np.uint32)
    ends = np.empty(rows + 1, np.int64)
    filled = _hash_batch(data, offsets, _CLASSES, text_hashes, hashes, weights, ends)
    return Paragraphs(text_hashes, hashes[:filled], weights[:filled], ends)


@lru_cache(maxsize=1)
def _composable() -> np.ndarray:
    """Return which code points a text may hold only outside NFC (or in it, depending on what stands before them)."""
    table = np.zeros(0x110000, np.bool_)
    for point in range(0x300, 0x2FA20):
        if 0xD800 <= point < 0xE000 or 0x4E00 <= point < 0xA000 or 0xAC00 <= point < 0xD7A4:
            continue
        char = chr(point)
        decomposition = unicodedata.decomposition(char)
        if unicodedata.combining(char) or not unicodedata.is_normalized("NFC", char):
            table[point] = True
        if decomposition and not decomposition.startswith("<"):
            parts = decomposition.split()
            if len(parts) == 2:
                table[int(parts[1], 16)] = True
    table[0x1161:0x1176] = table[0x11A8:0x11C3] = True  # parts of Korean syllables
    return table


@kernel
def _find_composable(data, offsets, table, found):
    for row in range(len(offsets) - 1):
        position, end = offsets[row], offsets[row + 1]
        found[row] = False
        largest = np.uint8(0)
        for byte in data[position:end]:  # a loop that the compiler makes vectors of
            largest = max(largest, byte)
        if largest < 0xCC:  # everything below U+0300 is in NFC
            continue
        while position < end:
            if data[position] < 0xCC:
                position += 1
                continue
            point, size = decode(data, position)
            if table[point]:
                found[row] = True
                break
            position += size


def may_need_nfc(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return for every text whether it could differ from its NFC form; bool of shape [rows]."""
    found = np.zeros(len(offsets) - 1, np.bool_)
    _find_composable(data, offsets, _composable(), found)
    return found
