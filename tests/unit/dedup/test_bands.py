"""Bands reach the recall asked for, for any threshold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmctl.dedup.bands import choose_bands, recall_curve
from llmctl.errors import UserError


@settings(deadline=None)
@given(st.floats(0.001, 1.0), st.sampled_from([64, 128, 256]), st.floats(0.9, 0.9999))
def test_recall_at_threshold(threshold, num_perm, min_recall):
    bands = choose_bands(threshold, num_perm, min_recall)
    assert bands.recall(threshold) >= min_recall - 1e-9
    assert bands.num_bands * bands.rows_per_band <= bands.num_perm
    assert bands.num_perm >= num_perm


@pytest.mark.parametrize("threshold", [0.95, 0.9, 0.85, 0.8, 0.7, 0.5, 0.3])
def test_one_row_more_would_not_reach_it(threshold):
    bands = choose_bands(threshold, 256, 0.995)
    more = bands.rows_per_band + 1
    assert 1 - (1 - threshold**more) ** (256 // more) < 0.995


def test_threshold_one_compares_whole_signatures():
    bands = choose_bands(1.0, 256, 0.995)
    assert (bands.num_bands, bands.rows_per_band) == (1, 256)


def test_low_threshold_takes_more_permutations():
    bands = choose_bands(0.01, 256, 0.995)
    assert bands.num_perm > 256
    assert bands.recall(0.01) >= 0.995


def test_absurdly_low_threshold_is_refused():
    with pytest.raises(UserError, match="permutations"):
        choose_bands(1e-9, 256, 0.995)


def test_measured_recall_follows_the_curve():
    # Signatures of sets with a known Jaccard similarity, by the same kernels as in a run.
    from llmctl.text.minhash import band_hashes, minhash_signatures, permutations

    bands = choose_bands(0.8, 256, 0.995)
    rng = np.random.default_rng(5)
    for wanted in (0.6, 0.7, 0.8):
        found, total, size = 0, 200, 400
        shared = round(2 * size * wanted / (1 + wanted))
        for _ in range(total):
            pool = rng.integers(0, 2**64, 2 * size - shared, dtype=np.uint64)
            values = np.concatenate([np.sort(pool[:size]), np.sort(pool[size - shared :])])
            signatures = minhash_signatures(values, np.array([0, size, 2 * size]), *permutations(256))
            hashes = band_hashes(signatures, np.ones(2, np.uint8), bands.num_bands, bands.rows_per_band)
            found += bool((hashes[:, 0] == hashes[:, 1]).any())
        expected = bands.recall(shared / (2 * size - shared))
        deviation = np.sqrt(expected * (1 - expected) / total)
        assert abs(found / total - expected) < 4 * deviation + 0.02


def test_curve_is_around_the_threshold():
    curve = recall_curve(choose_bands(0.9, 256, 0.995), 0.9)
    points = [similarity for similarity, _ in curve]
    assert 0.9 in points
    assert points == sorted(points)
    assert max(points) <= 1.0
    assert [recall for _, recall in curve] == sorted(recall for _, recall in curve)
