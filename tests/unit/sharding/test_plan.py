"""Which document goes where."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from llmctl.sharding.plan import _cut, shuffled, unique_slugs


@settings(deadline=None)
@given(st.lists(st.integers(1, 400), max_size=200), st.integers(50, 1000))
def test_no_document_is_lost_and_no_shard_too_large(sizes, shard_size):
    size = np.array(sizes, np.int64)
    groups = _cut(np.arange(len(size)), size, shard_size)
    assert sorted(np.concatenate(groups).tolist() if groups else []) == list(range(len(size)))
    for group in groups:
        assert len(group) and (size[group].sum() <= shard_size or len(group) == 1)
    short = [group for group in groups if size[group].max() <= shard_size]
    if short:
        assert np.all(np.diff(np.concatenate(short)) > 0)


def test_shards_are_of_equal_size():
    size = np.full(1010, 100, np.int64)
    groups = _cut(np.arange(1010), size, 10_000)
    assert [len(group) for group in groups] == [92] * 10 + [90]


def test_shuffling_is_a_fixed_permutation():
    assert sorted(shuffled(1000, "0 x").tolist()) == list(range(1000))
    # These numbers are part of the format: another order would break equal bytes between versions.
    assert shuffled(8, "0 web").tolist() == SHUFFLED
    assert shuffled(1000, "0 x").tolist() != shuffled(1000, "1 x").tolist()


SHUFFLED = [3, 1, 2, 5, 0, 6, 4, 7]


def test_slugs_are_unique_and_safe():
    names = ["Web", "web", "a/b", "a b", "../x", "中文", "日本", "x" * 300, ""]
    slugs = unique_slugs(names)
    assert len(set(slugs.values())) == len(names)
    assert all(slug and slug[0] not in ".-" and "/" not in slug and len(slug) < 90 for slug in slugs.values())
