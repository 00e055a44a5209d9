"""MurmurHash3 of kernels against a plain Python version and published values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from llmctl.text.buffers import text_buffers
from llmctl.text.hashing import hash_slices

MASK = (1 << 64) - 1


def fmix64(value: int) -> int:
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & MASK
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ value >> 33


def rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & MASK


def murmur128(data: bytes, seed: int) -> tuple[int, int]:
    """MurmurHash3 x64 128, written after the reference implementation."""
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    h1 = h2 = seed
    tail = len(data) // 16 * 16
    for at in range(0, tail, 16):
        k1 = int.from_bytes(data[at : at + 8], "little")
        k2 = int.from_bytes(data[at + 8 : at + 16], "little")
        h1 ^= rotate(k1 * c1 & MASK, 31) * c2 & MASK
        h1 = (rotate(h1, 27) + h2) & MASK
        h1 = (h1 * 5 + 0x52DCE729) & MASK
        h2 ^= rotate(k2 * c2 & MASK, 33) * c1 & MASK
        h2 = (rotate(h2, 31) + h1) & MASK
        h2 = (h2 * 5 + 0x38495AB5) & MASK
    k1 = int.from_bytes(data[tail : tail + 8], "little")
    k2 = int.from_bytes(data[tail + 8 :], "little")
    h2 ^= rotate(k2 * c2 & MASK, 33) * c1 & MASK
    h1 ^= rotate(k1 * c1 & MASK, 31) * c2 & MASK
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & MASK
    h2 = (h2 + h1) & MASK
    h1, h2 = fmix64(h1), fmix64(h2)
    h1 = (h1 + h2) & MASK
    return h1, (h2 + h1) & MASK


def hashed(texts: list[str], seed: int = 0) -> list[tuple[int, int]]:
    high, low = hash_slices(*text_buffers(pa.array(texts, pa.large_string())), np.uint64(seed))
    return list(zip(high.tolist(), low.tolist(), strict=True))


def test_published_value():
    # The x64 128-bit hash of this sentence with seed 0, as mmh3's documentation and others give it.
    (value,) = hashed(["The quick brown fox jumps over the lazy dog"])
    assert value == (0xE34BBC7BBC071B6C, 0x7A433CA9C49A9347)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=6), st.integers(0, MASK))
def test_equals_reference(texts, seed):
    assert hashed(texts, seed) == [murmur128(text.encode(), seed) for text in texts]
