"""Similarities of kernels against Python sets and counters."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llmctl.dedup.verification import (
    count_agreements,
    fewest_agreements,
    jaccard_of_sets,
    plan_ranges,
    reordered_similarity,
)

sets = st.sets(st.integers(0, 40), min_size=1, max_size=40)


def flat(*parts) -> tuple[np.ndarray, np.ndarray]:
    arrays = [np.array(part, np.uint64) for part in parts]
    return np.concatenate(arrays), np.concatenate([[0], np.cumsum([len(part) for part in arrays])])


@settings(max_examples=400, deadline=None)
@given(sets, sets, st.one_of(st.floats(0.01, 1.0), st.sampled_from([1 / 3, 0.5, 0.9, 1.0])))
@example({1, 2, 3}, {1, 2, 3}, 1.0)
@example(set(range(9)), set(range(10)), 0.9)
def test_jaccard_is_exact(one, two, threshold):
    values, offsets = flat(sorted(one), sorted(two))
    (found,) = jaccard_of_sets(values, offsets, np.array([0]), np.array([1]), threshold)
    wanted = len(one & two) / len(one | two)
    assert found == (wanted if wanted >= threshold else -1.0)


def test_nine_tenths_reach_a_threshold_of_nine_tenths():
    for size in range(10, 2000, 10):
        values, offsets = flat(range(size), range(size // 10, size))
        (found,) = jaccard_of_sets(values, offsets, np.array([0]), np.array([1]), 0.9)
        assert found == 0.9


def test_sizes_alone_rule_pairs_out():
    signatures = np.zeros((2, 16), np.uint32)
    low, high = np.array([0, 0]), np.array([1, 1])
    found = count_agreements(signatures, low, high, np.array([89, 90]), np.array([100, 100]), 0.9)
    assert found.tolist() == [-1, 16]


def test_few_agreements_are_four_deviations_below():
    assert fewest_agreements(1.0, 256) == 256
    limit = fewest_agreements(0.9, 256)
    assert limit == int((0.9 - 4 * np.sqrt(0.09 / 256)) * 256)
    assert fewest_agreements(0.001, 256) == 0


def reference_reordered(one: list[int], two: list[int], weight, threshold: float) -> float:
    a, b = Counter(one), Counter(two)
    shared = sum(weight(p) * n for p, n in (a & b).items())
    union = sum(weight(p) * n for p, n in (a | b).items())
    similarity = shared / union
    partners, used = [], Counter()
    for paragraph in one:
        places = [i for i, other in enumerate(two) if other == paragraph]
        if used[paragraph] < len(places):
            partners.append(places[used[paragraph]])
        used[paragraph] += 1
    return similarity if similarity > threshold and partners != sorted(partners) else -1.0


paragraphs = st.lists(st.integers(0, 7), min_size=1, max_size=9)


@settings(max_examples=400, deadline=None)
@given(paragraphs, st.one_of(st.none(), paragraphs), st.randoms(), st.sampled_from([0.3, 0.5, 0.85]))
def test_reordered_equals_reference(one, two, random, threshold):
    if two is None:
        two = list(one)
        random.shuffle(two)

    def weight(paragraph):
        return 5 + paragraph * 3

    values, offsets = flat(one, two)
    weights = np.array([weight(p) for p in one + two], np.uint32)
    (found,) = reordered_similarity(values, weights, offsets, np.array([0]), np.array([1]), threshold)
    assert found == reference_reordered(one, two, weight, threshold)


@pytest.mark.parametrize("budget", [1, 3, 100])
def test_ranges_cover_every_pair_once(budget):
    rng = np.random.default_rng(1)
    low = rng.integers(0, 50, 200).astype(np.uint64)
    keys = np.unique(low << np.uint64(32) | (low + np.uint64(1)))
    ranges = plan_ranges([keys[::2], keys[1::2]], 60, budget)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
    covered = [int(k) for first, end in ranges for k in keys if first <= int(k) >> 32 < end]
    assert sorted(covered) == keys.tolist()


def test_no_pairs_no_ranges():
    assert plan_ranges([np.zeros(0, np.uint64)], 10, 5) == []
    assert plan_ranges([], 0, 5) == []
