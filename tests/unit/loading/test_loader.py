"""The order of samples: the same global batches for any number of ranks, across stops, and nothing twice an epoch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.loading.corpus import Corpus

from llmctl.config.load import build
from llmctl.loading.batches import Buffers
from llmctl.loading.config import MixtureConfig
from llmctl.loading.loader import Loader, LoaderSettings
from llmctl.loading.order import permuted
from llmctl.pretraining.config import PretrainConfig
from llmctl.pretraining.data import PretrainingData

BATCH = 8
SOURCES = ("chat", "wiki", "code", "misc")
LENGTHS = np.random.default_rng(1).integers(2, 40, 200)
CORPUS = Corpus(LENGTHS, SOURCES, np.arange(200) % 4)
STAGED = {
    "phases": [
        {"start": 0, "weights": {"chat": 60, "wiki": 20, "code": 5, "misc": 15}},
        {"start": 0.1, "weights": {"chat": 40, "wiki": 30, "code": 15, "misc": 15}},
        {"start": 0.3, "weights": {"chat": 25, "wiki": 35, "code": 25, "misc": 15}},
    ]
}


def loader_of(steps=30, packing="concat", mixture=None, seed=0, corpus=CORPUS, batch=BATCH, **more):
    table = build(MixtureConfig, mixture or {})
    members = np.arange(len(corpus.lengths))
    return Loader(corpus, members, LoaderSettings(steps, batch, 16, seed, packing, table, **more))


def log_of(loader, steps, ranks):
    """Return the rows of each global batch, put together from what every rank asks for."""
    share = BATCH // ranks
    log = []
    for step in steps:
        rows = []
        for rank in range(ranks):
            rows += loader.samples(step, rank * share, (rank + 1) * share).rows()
        log.append(rows)
    return log


@pytest.mark.parametrize("mixture", [None, STAGED], ids=["natural", "mixture"])
@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_three_epochs_are_the_same_for_1_2_and_8_ranks_with_a_stop_in_the_middle(packing, mixture):
    size = loader_of(1, packing).per_epoch
    steps = -(-3 * size // BATCH)
    whole = log_of(loader_of(steps, packing, mixture), range(1, steps + 1), 1)
    assert log_of(loader_of(steps, packing, mixture), range(1, steps + 1), 2) == whole
    assert log_of(loader_of(steps, packing, mixture), range(1, steps + 1), 8) == whole
    # Eight ranks stop in the middle of the second epoch, and two go on: a new loader that starts at the exact sample.
    stop = steps // 2
    first = log_of(loader_of(steps, packing, mixture), range(1, stop + 1), 8)
    assert first + log_of(loader_of(steps, packing, mixture), range(stop + 1, steps + 1), 2) == whole
    rows = [row for step in whole for row in step]
    assert [row[0] for row in rows] == list(range(steps * BATCH))
    # Nothing twice in an epoch: (column, epoch, place) never comes again, and full epochs are complete.
    assert max(Counter(tuple(row[1:]) for row in rows).values()) == 1
    if mixture is None:
        assert Counter(row[2] for row in rows)[0] == Counter(row[2] for row in rows)[1] == size


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 40),
    st.sampled_from(["concat", "best_fit"]),
    st.booleans(),
    st.integers(0, 3),
)
@settings(max_examples=40, deadline=None)
def test_any_rank_count_gives_the_same_global_batch(ranks, others, step, packing, mixed, seed):
    def tokens(count):
        loader = loader_of(40, packing, STAGED if mixed else None, seed)
        parts = [loader.batch(step, rank * BATCH // count, (rank + 1) * BATCH // count) for rank in range(count)]
        columns = ("input_ids", "labels", "position_ids", "document_ids")
        return np.stack([np.concatenate([getattr(part, name) for part in parts]) for name in columns])

    assert np.array_equal(tokens(ranks), tokens(others))


def test_batches_hold_the_documents_of_their_column():
    loader = loader_of(30, "best_fit", STAGED)
    for step in (1, 5, 30):
        samples = loader.samples(step)
        for row, column in enumerate(samples.columns.tolist()):
            packed = loader.batch(step, row, row + 1)
            documents = packed.labels[packed.labels >= 1000] // 1000 - 1
            assert len(documents)
            assert {SOURCES[CORPUS.source_ids[document]] for document in documents} == {loader.plan.columns[column]}
            assert packed.source_tokens.sum() == (packed.labels != -100).sum()
            assert np.count_nonzero(packed.source_tokens) == 1


def test_steps_can_be_asked_for_in_any_order():
    loader = loader_of(30, "concat", STAGED)
    forward = [loader.samples(step).rows() for step in range(1, 31)]
    fresh = loader_of(30, "concat", STAGED)
    assert [fresh.samples(step).rows() for step in range(30, 0, -1)] == forward[::-1]


def test_a_source_keeps_its_order_when_another_is_added():
    one = {"phases": [{"weights": {"chat": 1, "wiki": 0, "code": 0, "misc": 0}}]}
    two = {"phases": [{"weights": {"wiki": 0, "chat": 1, "code": 0, "misc": 0}}]}
    assert np.array_equal(loader_of(5, mixture=one).batch(3).labels, loader_of(5, mixture=two).batch(3).labels)


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
@settings(max_examples=40, deadline=None)
def test_permutations_reach_every_place_once(size, key):
    places = permuted(np.arange(size), size, np.uint64(key))
    assert np.array_equal(np.sort(places), np.arange(size))


def test_permutations_are_even():
    # Chi-square of where the first element goes, over many keys: 99.9 % of a fair shuffle is below 36 at 14 degrees.
    counts = np.bincount([permuted(np.array([0]), 15, np.uint64(key))[0] for key in range(6000)], minlength=15)
    assert ((counts - 400) ** 2 / 400).sum() < 36


def test_the_global_batch_of_a_run_does_not_depend_on_the_replicas():
    def batches(replicas, micro):
        config = PretrainConfig(seq_len=6, global_batch_size=8, validation_fraction=0.2)
        config.model.dropout = 0.1
        rows = []
        for replica in range(replicas):
            data = PretrainingData(CORPUS, config, micro, replica, replicas)
            for batch in data.micro_batches(5):
                assert batch["input_ids"].shape == (micro, 6)
                rows += list(zip(batch["labels"].tolist(), batch["dropout_keys"].tolist(), strict=True))
        return rows

    assert batches(1, 8) == batches(2, 2) == batches(4, 1)


def test_validation_is_shared_out_evenly():
    config = PretrainConfig(seq_len=6, global_batch_size=4, validation_fraction=0.5, validation_tokens=0)
    whole = PretrainingData(CORPUS, config, 2)
    alone, tokens, _ = whole.validation()
    parts = [PretrainingData(CORPUS, config, 2, replica, 3).validation()[0] for replica in range(3)]
    assert len({len(part) for part in parts}) == 1
    count = sum(int((batch["labels"] != -100).sum()) for part in parts for batch in part)
    assert count == tokens == sum(int((batch["labels"] != -100).sum()) for batch in alone)


def test_memory_of_a_batch_is_used_again_only_when_nobody_has_it():
    buffers = Buffers()
    first = buffers.take((4, 2, 3))
    first[:] = 1
    view = first[2]
    del first
    others = [buffers.take((4, 2, 3)) for _ in range(6)]
    assert (view == 1).all()
    assert all(not np.shares_memory(view, other) for other in others)
    assert all(not np.shares_memory(one, other) for one in others for other in others if one is not other)
    buffers = Buffers()
    first = buffers.take((4, 2, 3))
    address = first.__array_interface__["data"][0]
    view = first[1]
    del first
    assert buffers.take((4, 2, 3)).__array_interface__["data"][0] != address
    del view
    assert buffers.take((4, 2, 3)).__array_interface__["data"][0] == address
    assert buffers.take((4, 1, 3)).shape == (4, 1, 3)
