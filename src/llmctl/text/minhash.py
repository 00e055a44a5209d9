"""MinHash signatures in datasketch's ``affine32`` scheme, and the band hashes that candidates are found by.

The scheme (datasketch 2.0, `datasketch/minhash.py`): a 32-bit hash goes through MurmurHash3's finalizer once, then
permutation k gives ``a[k] * hash + b[k] mod 2**32`` with odd ``a[k]``. A signature of ours is what
``datasketch.MinHash.update_batch`` makes of the low 32 bits of the shingle hashes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from llmctl.text.compile import kernel
from llmctl.text.hashing import fmix32, fmix64

SCHEME = "affine32"
_BAND_STEP = np.uint64(0x9FB21C651E98DF25)


@lru_cache(maxsize=4)
def permutations(num_perm: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return the factors and terms of the permutations, uint32 of shape [num_perm] each, from datasketch itself."""
    from datasketch import MinHash

    factors, terms = MinHash(num_perm=num_perm, seed=seed, scheme=SCHEME).permutations
    return np.ascontiguousarray(factors, np.uint32), np.ascontiguousarray(terms, np.uint32)


@kernel
def minhash_signatures(values, offsets, factors, terms):
    """Return the signatures of shingle sets.

    Args:
        values: uint64, all sets one after the other.
        offsets: int64 of shape [rows + 1].
        factors, terms: uint32 of shape [num_perm], from `permutations`.

    Returns:
        uint32 of shape [rows, num_perm]; a document without shingles has the largest value everywhere.
    """
    rows = len(offsets) - 1
    num_perm = len(factors)
    signatures = np.empty((rows, num_perm), np.uint32)
    signature = np.empty(num_perm, np.uint32)
    for row in range(rows):
        for k in range(num_perm):
            signature[k] = np.uint32(0xFFFFFFFF)
        for position in range(offsets[row], offsets[row + 1]):
            mixed = fmix32(np.uint32(values[position] & np.uint64(0xFFFFFFFF)))
            for k in range(num_perm):
                permuted = np.uint32(factors[k] * mixed + terms[k])
                signature[k] = min(signature[k], permuted)
        signatures[row] = signature
    return signatures


@kernel
def band_hashes(signatures, kinds, num_bands, rows_per_band):
    """Return one 64-bit hash for each band of each signature.

    Args:
        signatures: uint32 of shape [rows, num_perm].
        kinds: uint8 of shape [rows]: documents of different kinds share no band.

    Returns:
        uint64 of shape [num_bands, rows].
    """
    rows = len(signatures)
    hashes = np.empty((num_bands, rows), np.uint64)
    for row in range(rows):
        for band in range(num_bands):
            state = fmix64(np.uint64(band) * np.uint64(256) + np.uint64(kinds[row]) + np.uint64(1))
            for k in range(band * rows_per_band, (band + 1) * rows_per_band):
                state = (state ^ np.uint64(signatures[row, k])) * _BAND_STEP
                state ^= state >> np.uint64(29)
            hashes[band, row] = fmix64(state)
    return hashes
