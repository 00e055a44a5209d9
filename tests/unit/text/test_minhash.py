"""Signatures of kernels against datasketch."""

from __future__ import annotations

import numpy as np
import pytest
from datasketch import LeanMinHash, MinHash

from llmctl.text.minhash import SCHEME, band_hashes, minhash_signatures, permutations


def sets_of(*sizes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    values = [np.unique(rng.integers(0, 2**64, size, dtype=np.uint64)) for size in sizes]
    return np.concatenate(values), np.concatenate([[0], np.cumsum([len(value) for value in values])])


@pytest.mark.parametrize(("num_perm", "seed"), [(256, 1), (128, 7), (16, 0), (460, 1)])
def test_equals_datasketch(num_perm, seed):
    values, offsets = sets_of(1, 5, 700, 0, 33)
    signatures = minhash_signatures(values, offsets, *permutations(num_perm, seed))
    for row in range(5):
        theirs = MinHash(num_perm=num_perm, seed=seed, scheme=SCHEME, hashfunc=lambda value: value)
        theirs.update_batch([int(value) & 0xFFFFFFFF for value in values[offsets[row] : offsets[row + 1]]])
        assert signatures[row].tolist() == theirs.hashvalues.tolist()


def test_signature_opens_as_lean_minhash():
    values, offsets = sets_of(100, 100)
    signatures = minhash_signatures(values, offsets, *permutations(256))
    one, two = (LeanMinHash(seed=1, hashvalues=row, scheme=SCHEME) for row in signatures)
    assert one.jaccard(one) == 1.0
    assert one.jaccard(two) == np.mean(signatures[0] == signatures[1])


def test_no_bias_on_large_sets():
    # 1e5 shingles, half of them shared: three standard deviations of the estimate at J = 1/3.
    rng = np.random.default_rng(3)
    pool = np.unique(rng.integers(0, 2**64, 160_000, dtype=np.uint64))[:150_000]
    values = np.concatenate([pool[:100_000], pool[50_000:]])
    signatures = minhash_signatures(values, np.array([0, 100_000, 200_000]), *permutations(256))
    estimate = np.mean(signatures[0] == signatures[1])
    assert abs(estimate - 1 / 3) < 3 * np.sqrt(1 / 3 * 2 / 3 / 256)


def test_band_hashes_are_equal_where_rows_are():
    signatures = np.arange(3 * 12, dtype=np.uint32).reshape(3, 12)
    signatures[1] = signatures[0]
    signatures[1, 4] += 1  # in the second of three bands of four
    kinds = np.array([1, 1, 1], np.uint8)
    hashes = band_hashes(signatures, kinds, 3, 4)
    assert hashes.shape == (3, 3)
    assert (hashes[:, 0] == hashes[:, 1]).tolist() == [True, False, True]
    assert not (hashes[:, 0] == hashes[:, 2]).any()
    assert len(np.unique(hashes[:, 0])) == 3, "the band's number is part of the hash"


def test_kinds_share_no_band():
    signatures = np.zeros((2, 8), np.uint32)
    hashes = band_hashes(signatures, np.array([1, 2], np.uint8), 2, 4)
    assert not (hashes[:, 0] == hashes[:, 1]).any()
