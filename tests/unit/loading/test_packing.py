"""Packing: every token a label once an epoch, isolation marks, order by seed alone, held-out documents."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.loading.corpus import EOS, Corpus

from llmctl.loading.batches import collate, join
from llmctl.loading.loader import pack_validation
from llmctl.loading.order import choose_validation, hold_out
from llmctl.loading.packing import SequenceStream

LENGTHS = [5, 1, 17, 40, 3, 8, 2]
CORPUS = Corpus(LENGTHS)
PACKINGS = ["concat", "best_fit"]


def stream_of(corpus=CORPUS, seq_len=6, seed=0, packing="concat", stream=0):
    members = np.arange(len(corpus.lengths))
    return SequenceStream(corpus, members, seq_len, seed, packing=packing, stream=stream)


def packed(stream, numbers, corpus=CORPUS):
    numbers = np.array(list(numbers))
    places, parts = zip(*stream.pieces(numbers), strict=True)
    return collate(corpus, join(list(parts)).take(np.argsort(np.concatenate(places))), stream.seq_len)


def epoch_of(stream, epoch=0, corpus=CORPUS):
    return packed(stream, range(epoch * stream.per_epoch, (epoch + 1) * stream.per_epoch), corpus)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=40),
    st.integers(1, 70),
    st.sampled_from(PACKINGS),
    st.sampled_from([np.uint16, np.uint32]),
    st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_every_token_is_a_label_once_an_epoch(lengths, seq_len, packing, dtype, seed):
    corpus = Corpus(lengths, dtype=dtype)
    stream = stream_of(corpus, seq_len, seed, packing)
    expected = Counter(int(token) for text in corpus.texts for token in text)
    for epoch in range(2):
        rows = epoch_of(stream, epoch, corpus)
        labels = rows.labels[rows.labels != -100]
        assert Counter(labels.tolist()) == expected
        assert rows.labels.shape == (stream.per_epoch, seq_len)
        assert rows.source_tokens.tolist() == [corpus.lengths.sum()]
    facts = stream.facts()
    assert facts.padding == stream.per_epoch * seq_len - corpus.lengths.sum()
    assert facts.tokens == corpus.lengths.sum()


@pytest.mark.parametrize("packing", PACKINGS)
def test_inputs_are_the_tokens_before_and_documents_begin_at_eos(packing):
    rows = epoch_of(stream_of(packing=packing))
    for inputs, labels, places, documents in zip(
        rows.input_ids, rows.labels, rows.position_ids, rows.document_ids, strict=True
    ):
        for index in range(6):
            if labels[index] == -100:
                assert inputs[index] == EOS
            elif labels[index] != EOS:
                # In a document the input is the id before; at its start it is EOS.
                first = labels[index] % 1000 == 0
                assert inputs[index] == (EOS if first else labels[index] - 1)
            if index:
                same = documents[index] == documents[index - 1]
                assert places[index] == (places[index - 1] + 1 if same else 0)
                assert documents[index] - documents[index - 1] in (0, 1)
                if same and labels[index] != -100:
                    assert inputs[index] == labels[index - 1]
                if labels[index - 1] == EOS:
                    assert not same
        assert documents[0] == places[0] == 0


@given(st.lists(st.integers(1, 80), min_size=1, max_size=60), st.integers(1, 64))
@settings(max_examples=60, deadline=None)
def test_best_fit_cuts_only_what_must_be_cut(lengths, seq_len):
    corpus = Corpus(lengths)
    stream = stream_of(corpus, seq_len, packing="best_fit")
    pieces = stream.pieces(np.arange(stream.per_epoch))[0][1]
    seen = Counter(pieces.documents.tolist())
    for document, length in enumerate(lengths):
        assert seen[document] == -(-length // seq_len)
    totals = np.add.reduceat(pieces.sizes, pieces.firsts[:-1])
    assert (totals <= seq_len).all()
    facts = stream.facts()
    assert facts.truncated_share == 0
    assert facts.cut_documents == sum(length > seq_len for length in lengths)
    # Where no rest is longer than half a sequence, all sequences but one are filled to two thirds.
    rests = [length % seq_len for length in lengths if length % seq_len]
    whole = sum(length // seq_len for length in lengths)
    if all(2 * rest <= seq_len for rest in rests):
        assert stream.per_epoch - whole <= 1.5 * sum(rests) / seq_len + 1


def test_best_fit_cuts_far_fewer_documents_than_concat_for_little_padding():
    lengths = np.random.default_rng(0).lognormal(5, 1, 3000).astype(int) + 1
    corpus = Corpus(lengths)
    concat, fit = (stream_of(corpus, 1024, packing=packing).facts() for packing in PACKINGS)
    assert fit.cut_cuttable == 0
    assert concat.truncated_share > 0.15
    assert fit.padded_share < 0.001
    # Counted the slow way: documents of which one sequence does not hold all.
    stream = stream_of(corpus, 1024, packing="concat")
    pieces = stream.pieces(np.arange(stream.per_epoch))[0][1]
    counts = np.bincount(pieces.documents[pieces.sizes > 0], minlength=len(lengths))
    assert int((counts > 1).sum()) == concat.cut_documents
    assert int(((counts > 1) & (lengths <= 1024)).sum()) == concat.cut_cuttable


@pytest.mark.parametrize("packing", PACKINGS)
def test_order_depends_on_the_seed_alone(packing):
    one, two, other = (stream_of(packing=packing, seed=seed) for seed in (0, 0, 1))
    numbers = [3, 9, 25, 40]
    assert np.array_equal(packed(one, numbers).labels, packed(two, numbers[::-1]).labels[::-1])
    assert not np.array_equal(epoch_of(one).labels, epoch_of(other).labels)
    assert not np.array_equal(epoch_of(one).labels, epoch_of(stream_of(packing=packing, stream=7)).labels)
    assert not np.array_equal(epoch_of(one).labels, epoch_of(one, 1).labels)  # epochs are shuffled anew


def test_an_epoch_is_prepared_before_it_is_asked_for_but_none_beyond_the_run():
    stream = stream_of()
    stream.limit(2 * stream.per_epoch)
    stream.pieces(np.array([0]))
    assert set(stream._epochs) == {0, 1}
    stream.pieces(np.array([2 * stream.per_epoch - 1]))
    assert set(stream._epochs) == {0, 1}


def test_held_out_documents_are_never_trained_on():
    training, held = hold_out(5_000, 0.1, 3)
    assert len(np.intersect1d(training, held)) == 0
    assert len(training) + len(held) == 5_000
    assert 400 < len(held) < 600
    assert not np.array_equal(held, hold_out(5_000, 0.1, 4)[1])
    # A document keeps its side when others are added after it.
    assert np.array_equal(held, hold_out(6_000, 0.1, 3)[1][: len(held)])
    assert [len(part) for part in hold_out(2, 0.01, 0)] == [1, 1]
    assert [len(part) for part in hold_out(1, 0.5, 0)] == [1, 0]
    assert [len(part) for part in hold_out(10, 0.0, 0)] == [10, 0]


def test_validation_counts_every_token_and_byte():
    members = np.array([0, 2, 5])
    rows, tokens, num_bytes = pack_validation(CORPUS, members, 8, 0)
    labels = rows.labels[rows.labels != -100].tolist()
    assert labels == [int(token) for document in members for token in CORPUS.tokens(document)]
    assert tokens == 30
    assert num_bytes == 90
    assert rows.labels.shape == (4, 8)
    assert (rows.labels[-1, -2:] == -100).all()


def test_validation_is_limited_to_whole_documents():
    lengths = np.array([10] * 50 + [10_000])
    members = np.arange(51)
    chosen = choose_validation(lengths, members, 100)
    assert 100 <= lengths[chosen].sum() <= 200
    assert list(choose_validation(lengths, np.array([50]), 100)) == [50]
    assert list(choose_validation(lengths, members, 0)) == list(members)
