"""Initial weights from a counter-based generator, so that the values of a shard are a slice of the full tensor.

Element i of a parameter depends on (seed, parameter name, i) alone: not on the order in which parameters are
made, the layout, or the device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

# Philox4x64 gives four 64-bit words for each counter value.
_WORDS_PER_COUNTER = 4
_BLOCK_WORDS = 1 << 22


def _key(seed: int, name: str) -> np.ndarray:
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=16).digest()
    return np.frombuffer(digest, dtype=np.uint64)


def normal_range(seed: int, name: str, start: int, stop: int) -> np.ndarray:
    """Return standard normal values for the elements [start, stop) of a flattened parameter, float32 [stop − start].

    Box–Muller on pairs of Philox words: elements 2k and 2k+1 share words 2k and 2k+1.
    """
    if stop <= start:
        return np.empty(0, dtype=np.float32)
    first = start - start % _WORDS_PER_COUNTER
    out = np.empty(stop - start, dtype=np.float32)
    generator = np.random.Philox(key=_key(seed, name))
    generator.advance(first // _WORDS_PER_COUNTER)
    position = first
    while position < stop:
        count = min(_BLOCK_WORDS, -(-(stop - position) // _WORDS_PER_COUNTER) * _WORDS_PER_COUNTER)
        # 53 random bits, shifted off zero so that the logarithm is finite.
        uniform = ((generator.random_raw(count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        radius, angle = np.sqrt(-2.0 * np.log(uniform[0::2])), 2.0 * np.pi * uniform[1::2]
        values = np.empty(count, dtype=np.float64)
        values[0::2], values[1::2] = radius * np.cos(angle), radius * np.sin(angle)
        low, high = max(position, start), min(position + count, stop)
        out[low - start : high - start] = values[low - position : high - position]
        position += count
    return out


def normal_slice(seed: int, name: str, shape: Sequence[int], rows: range, columns: range | None = None) -> torch.Tensor:
    """Return the slice [rows, columns] of a standard normal parameter of the full `shape`, float32.

    Args:
        shape: full shape, one or two dimensions.
        rows: contiguous range of the first dimension; beyond the full shape (padding) values are zero.
        columns: contiguous range of the second dimension; None takes all.
    """
    width = int(np.prod(shape[1:])) if len(shape) > 1 else 1
    last = min(rows.stop, shape[0])
    values = normal_range(seed, name, rows.start * width, last * width).reshape(-1, width)
    if columns is not None:
        values = values[:, columns.start : columns.stop]
    padded = np.zeros((len(rows), values.shape[1]), dtype=np.float32)
    padded[: values.shape[0]] = values
    tensor = torch.from_numpy(padded)
    return tensor if len(shape) > 1 else tensor[:, 0].contiguous()
