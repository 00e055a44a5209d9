"""Classes of Unicode code points as flat lookup tables, and UTF-8 decoding for kernels.

A table has one word of flags for each code point below 0x30000 (all letters in use); code points above count as
ideographs or symbols by range. The tables come from Python's own database, so `\\w` and the kernels agree.
"""

from __future__ import annotations

import sys
import unicodedata
from functools import lru_cache

import numpy as np

from llmctl.text.compile import inline_kernel

TABLE_SIZE = 0x110000

# Flags of `classes`.
WORD = 1  # \w of Python's re: letters, digits, underscore, marks that re counts as alphanumeric
SPACE = 2  # str.isspace
ALPHA = 4  # str.isalpha
DIGIT = 8  # str.isdigit or numeric
UPPER = 16  # str.isupper
NO_SPACES = 32  # scripts written without spaces between words: Han, kana, Thai, Lao, Khmer, Myanmar
PUNCTUATION = 64  # category P*
SYMBOL = 128  # category S*
MARK = 256  # category M*: vowel signs and accents, part of a word to a reader but not to `\\w`

_NO_SPACE_RANGES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x19E0, 0x19FF),  # Khmer symbols
    (0x2E80, 0x2FDF),  # radicals
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3040, 0x30FF),  # kana
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xA9E0, 0xA9FF),  # Myanmar extended
    (0xAA60, 0xAA7F),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),  # half-width kana
    (0x1AFF0, 0x1B16F),
    (0x20000, 0x3FFFF),  # ideographs beyond the basic plane
)


@lru_cache(maxsize=1)
def classes() -> np.ndarray:
    """Return the flags of every code point, uint16 of shape [0x110000]."""
    table = np.zeros(TABLE_SIZE, dtype=np.uint16)
    for point in range(min(TABLE_SIZE, sys.maxunicode + 1)):
        if 0x3FFFF < point < 0xE0000 or 0xD800 <= point < 0xE000:
            continue
        char = chr(point)
        flags = 0
        if char.isalnum() or char == "_":
            flags |= WORD
        if char.isspace():
            flags |= SPACE
        if char.isalpha():
            flags |= ALPHA
        if char.isnumeric():
            flags |= DIGIT
        if char.isupper():
            flags |= UPPER
        category = unicodedata.category(char)[0]
        if category == "P":
            flags |= PUNCTUATION
        elif category == "S":
            flags |= SYMBOL
        elif category == "M":
            flags |= MARK
        table[point] = flags
    for first, last in _NO_SPACE_RANGES:
        table[first : last + 1] |= np.where(table[first : last + 1] & ALPHA, NO_SPACES, 0).astype(np.uint16)
    return table


@lru_cache(maxsize=1)
def lower() -> np.ndarray:
    """Return the simple lower-case mapping, uint32 of shape [0x110000]; what lowers to several characters stays."""
    table = np.arange(TABLE_SIZE, dtype=np.uint32)
    for point in range(0x20000):
        if 0xD800 <= point < 0xE000:
            continue
        lowered = chr(point).lower()
        if len(lowered) == 1:
            table[point] = ord(lowered)
    return table


@inline_kernel
def decode(data, position):
    """Decode one code point of valid UTF-8.

    Args:
        data: uint8 array.
        position: index of a lead byte.

    Returns:
        (code point, number of bytes)
    """
    first = data[position]
    if first < 0x80:
        return np.uint32(first), 1
    if first < 0xE0:
        return np.uint32((first & 0x1F) << 6 | (data[position + 1] & 0x3F)), 2
    if first < 0xF0:
        return (
            np.uint32((first & 0x0F) << 12 | (data[position + 1] & 0x3F) << 6 | (data[position + 2] & 0x3F)),
            3,
        )
    return (
        np.uint32(
            (first & 0x07) << 18
            | (data[position + 1] & 0x3F) << 12
            | (data[position + 2] & 0x3F) << 6
            | (data[position + 3] & 0x3F)
        ),
        4,
    )
