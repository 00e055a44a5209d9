"""Hash functions for kernels: finalizers and MurmurHash3 x64 128 over a slice of bytes.

MurmurHash3 is Austin Appleby's, in the public domain. Everything is unsigned 64-bit arithmetic that wraps around.
"""

from __future__ import annotations

import numpy as np

from llmctl.text.compile import inline_kernel, kernel

_C1 = np.uint64(0x87C37B91114253D5)
_C2 = np.uint64(0x4CF5AD432745937F)
_FMIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_FMIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_S33 = np.uint64(33)


@inline_kernel
def fmix64(value):
    """Return the 64-bit finalizer of MurmurHash3, a bijection in which every bit depends on every bit."""
    value ^= value >> _S33
    value *= _FMIX_1
    value ^= value >> _S33
    value *= _FMIX_2
    return value ^ (value >> _S33)


@inline_kernel
def fmix32(value):
    """Return the 32-bit finalizer of MurmurHash3 (`value` is uint32)."""
    value = np.uint32(value ^ (value >> np.uint32(16)))
    value = np.uint32(value * np.uint32(0x85EBCA6B))
    value = np.uint32(value ^ (value >> np.uint32(13)))
    value = np.uint32(value * np.uint32(0xC2B2AE35))
    return np.uint32(value ^ (value >> np.uint32(16)))


@inline_kernel
def _rotate(value, bits):
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@inline_kernel
def _load64(data, position):
    # Eight single bytes put together: the compiler makes one unaligned load of it. `position` is unsigned.
    return (
        np.uint64(data[position])
        | np.uint64(data[position + np.uint64(1)]) << np.uint64(8)
        | np.uint64(data[position + np.uint64(2)]) << np.uint64(16)
        | np.uint64(data[position + np.uint64(3)]) << np.uint64(24)
        | np.uint64(data[position + np.uint64(4)]) << np.uint64(32)
        | np.uint64(data[position + np.uint64(5)]) << np.uint64(40)
        | np.uint64(data[position + np.uint64(6)]) << np.uint64(48)
        | np.uint64(data[position + np.uint64(7)]) << np.uint64(56)
    )


@inline_kernel
def murmur128(data, begin, end, seed):
    """Return MurmurHash3 x64 128 of ``data[begin:end]`` as two uint64.

    Args:
        data: uint8 array.
        begin, end: the slice.
        seed: uint64 that both halves start from.
    """
    h1 = np.uint64(seed)
    h2 = np.uint64(seed)
    length = end - begin
    last = begin + (length // 16) * 16
    position, stop = np.uint64(begin), np.uint64(last)
    while position < stop:
        k1 = _load64(data, position)
        k2 = _load64(data, position + np.uint64(8))
        h1 ^= _rotate(k1 * _C1, 31) * _C2
        h1 = _rotate(h1, 27) + h2
        h1 = h1 * np.uint64(5) + np.uint64(0x52DCE729)
        h2 ^= _rotate(k2 * _C2, 33) * _C1
        h2 = _rotate(h2, 31) + h1
        h2 = h2 * np.uint64(5) + np.uint64(0x38495AB5)
        position += np.uint64(16)
    k1 = np.uint64(0)
    k2 = np.uint64(0)
    for offset in range(end - last):
        byte = np.uint64(data[last + offset])
        if offset < 8:
            k1 |= byte << np.uint64(8 * offset)
        else:
            k2 |= byte << np.uint64(8 * (offset - 8))
    h2 ^= _rotate(k2 * _C2, 33) * _C1
    h1 ^= _rotate(k1 * _C1, 31) * _C2
    h1 ^= np.uint64(length)
    h2 ^= np.uint64(length)
    h1 += h2
    h2 += h1
    h1 = fmix64(h1)
    h2 = fmix64(h2)
    h1 += h2
    h2 += h1
    return h1, h2


@kernel
def hash_slices(data, offsets, seed):
    """Return the two halves of `murmur128` of every text, each uint64 of shape [rows]."""
    rows = len(offsets) - 1
    first = np.empty(rows, np.uint64)
    second = np.empty(rows, np.uint64)
    for row in range(rows):
        first[row], second[row] = murmur128(data, offsets[row], offsets[row + 1], np.uint64(seed))
    return first, second
