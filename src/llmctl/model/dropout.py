"""Dropout whose mask depends on (seed, sample, layer, element) alone, so that it is the same for every layout."""

from __future__ import annotations

import torch

# Constants of the 32-bit finaliser of MurmurHash3 (public domain).
_MIX = (0x85EBCA6B, 0xC2B2AE35)
_MASK32 = 0xFFFFFFFF


def _mix(words: torch.Tensor) -> torch.Tensor:
    # int64 arithmetic on 32-bit values: torch has no unsigned multiplication on every device.
    words = words ^ (words >> 16)
    words = (words * _MIX[0]) & _MASK32
    words = words ^ (words >> 13)
    words = (words * _MIX[1]) & _MASK32
    return words ^ (words >> 16)


def keep_mask(
    keys: torch.Tensor, site: int, positions: int, width: int, rate: float, first_position: int = 0
) -> torch.Tensor:
    """Return which elements are kept, bool [batch, positions, width].

    Args:
        keys: int64 [batch], one number per sample (from seed and sample index).
        site: number of the place in the network, unique per layer and use.
        rate: share that is dropped.
        first_position: number of the first of `positions` in the whole sequence.
    """
    row = _mix((keys ^ (keys >> 32)) & _MASK32 ^ ((site * 0x9E3779B1) & _MASK32)).view(-1, 1, 1)
    start = first_position * width
    element = torch.arange(start, start + positions * width, device=keys.device, dtype=torch.int64)
    element = element.view(1, positions, width)
    bits = _mix(_mix(row ^ (element & _MASK32)) + row & _MASK32)
    return bits >= int(rate * (1 << 32))


def residual_dropout(
    hidden: torch.Tensor, keys: torch.Tensor | None, site: int, rate: float, first_position: int = 0
) -> torch.Tensor:
    """Drop elements of [batch, positions, width] and scale up the rest; unchanged without keys."""
    if keys is None or rate == 0:
        return hidden
    kept = keep_mask(keys, site, hidden.shape[1], hidden.shape[2], rate, first_position)
    return hidden * kept.to(hidden.dtype) / (1.0 - rate)
