"""Buckets give all pairs of equal hashes; rare paragraphs bring all similar documents together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmctl.dedup.candidates import _prefixes, find_buckets, num_partitions


def pairs_of(found) -> set[tuple[int, int]]:
    return {(int(key) >> 32, int(key) & 0xFFFFFFFF) for key in found.pairs}


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), max_size=60), st.integers(2, 8))
def test_small_buckets_give_all_pairs(values, max_bucket):
    hashes = np.array(values, np.uint64)
    documents = np.arange(len(values)) + 10
    found = find_buckets(hashes, documents, max_bucket)
    groups = {value: [i + 10 for i, other in enumerate(values) if other == value] for value in values}
    small = {pair for g in groups.values() if len(g) <= max_bucket for pair in itertools.combinations(g, 2)}
    assert pairs_of(found) == small
    large = sorted(tuple(g) for g in groups.values() if len(g) > max_bucket)
    buckets = np.split(found.members, found.ends[:-1]) if len(found.ends) else []
    assert sorted(tuple(bucket.tolist()) for bucket in buckets) == large


def test_large_bucket_is_not_quadratic():
    found = find_buckets(np.zeros(100_000, np.uint64), np.arange(100_000), 32)
    assert len(found.pairs) == 0
    assert found.members.tolist() == list(range(100_000))
    assert found.ends.tolist() == [100_000]


def test_partitions_are_powers_of_two():
    assert num_partitions(10, 16_000_000) == 1
    assert num_partitions(10_000_000, 100_000_000) == 4


paragraph_lists = st.lists(st.integers(0, 9), min_size=1, max_size=12)


def weight_of(paragraph: int) -> int:
    return 10 + 37 * paragraph % 53


def weighted_jaccard(one: list[int], two: list[int]) -> float:
    shared = sum(weight_of(p) * min(one.count(p), two.count(p)) for p in set(one) | set(two))
    union = sum(weight_of(p) * max(one.count(p), two.count(p)) for p in set(one) | set(two))
    return shared / union


@settings(max_examples=300, deadline=None)
@given(paragraph_lists, paragraph_lists, st.permutations(range(10)), st.sampled_from([0.5, 0.7, 0.85]))
def test_similar_documents_share_a_prefix(one, two, frequencies, threshold):
    hashes = np.random.default_rng(0).integers(0, 2**64, 10, dtype=np.uint64)
    table = np.zeros(1 << 8, np.uint32)
    for paragraph in range(10):
        table[int(hashes[paragraph]) >> 56] = frequencies[paragraph]
    values = hashes[np.array(one + two)]
    weights = np.array([weight_of(p) for p in one + two], np.uint32)
    offsets = np.array([0, len(one), len(one) + len(two)])
    out, rows = np.empty(len(values), np.uint64), np.empty(len(values), np.int64)
    filled = _prefixes(values, weights, offsets, np.ones(2, np.bool_), table, np.uint64(56), threshold, out, rows)
    first = set(out[:filled][rows[:filled] == 0].tolist())
    second = set(out[:filled][rows[:filled] == 1].tolist())
    if len(set(one)) >= 2 and len(set(two)) >= 2 and weighted_jaccard(one, two) > threshold:
        assert first & second


@pytest.mark.parametrize("paragraphs", [[1], [1, 1, 1]])
def test_one_paragraph_cannot_be_reordered(paragraphs):
    values = np.array(paragraphs, np.uint64)
    out, rows = np.empty(3, np.uint64), np.empty(3, np.int64)
    table = np.zeros(4, np.uint32)
    weights, offsets = np.ones(len(values), np.uint32), np.array([0, len(values)])
    assert _prefixes(values, weights, offsets, np.ones(1, np.bool_), table, np.uint64(62), 0.85, out, rows) == 0
