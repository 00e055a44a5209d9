"""Packing: every token a label once an epoch, isolation marks, order by seed alone, held-out documents."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from llmctl.pretraining.config import PretrainConfig
from llmctl.pretraining.data import PretrainingData
from llmctl.pretraining.packing import PackedSequences, choose_validation, hold_out, pack_validation

EOS = 0


class Corpus:
    """Documents whose token ids tell the document and the place: document d holds 1000·(d+1) + place, then EOS."""

    eos_id = EOS

    def __init__(self, lengths):
        self.lengths = np.array(lengths, dtype=np.int64)
        self.num_bytes = self.lengths * 3

    def tokens(self, document, start=0, stop=None):
        ids = np.arange(self.lengths[document]) + 1000 * (document + 1)
        ids[-1] = EOS
        return ids[start:stop].astype(np.uint16)


CORPUS = Corpus([5, 1, 17, 40, 3, 8, 2])


def packed(seq_len=6, seed=0, members=range(7)):
    return PackedSequences(CORPUS, np.array(members), seq_len, seed)


@pytest.mark.parametrize("seq_len", [1, 6, 11, 100])
def test_every_token_is_a_label_once_an_epoch(seq_len):
    sequences = packed(seq_len)
    for epoch in range(2):
        numbers = range(epoch * sequences.per_epoch, (epoch + 1) * sequences.per_epoch)
        labels = Counter(sequences.pack(numbers).labels.flatten().tolist())
        expected = Counter(int(token) for document in range(7) for token in CORPUS.tokens(document))
        surplus = sequences.per_epoch * seq_len - CORPUS.lengths.sum()
        assert sum((labels - expected).values()) == surplus  # the last sequence is filled up
        assert not expected - labels


def test_inputs_are_the_tokens_before_and_documents_begin_at_eos():
    sequences = packed(6)
    rows = sequences.pack(range(sequences.per_epoch))
    for inputs, labels, places, documents in zip(
        rows.input_ids, rows.labels, rows.position_ids, rows.document_ids, strict=True
    ):
        assert np.array_equal(inputs[1:], labels[:-1])
        for index in range(6):
            # A document is where its labels are: its EOS-or-earlier token before is part of the context.
            if labels[index] != EOS:
                before = inputs[index]
                assert before == EOS or before == labels[index] - 1
            new = index == 0 or inputs[index] == EOS
            if index:
                assert (documents[index] != documents[index - 1]) == (inputs[index] == EOS)
            assert places[index] == (0 if new else places[index - 1] + 1)


def test_order_depends_on_the_seed_alone():
    one, two, other = packed(), packed(), packed(seed=1)
    numbers = [3, 9, 25, 40]
    assert np.array_equal(one.pack(numbers).labels, two.pack(list(reversed(numbers))).labels[::-1])
    every = range(one.per_epoch)
    assert not np.array_equal(one.pack(every).labels, other.pack(every).labels)
    again = range(one.per_epoch, 2 * one.per_epoch)
    assert not np.array_equal(one.pack(every).labels, one.pack(again).labels)  # epochs are shuffled anew


def test_the_global_batch_does_not_depend_on_the_replicas():
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
    rows, tokens, num_bytes = pack_validation(CORPUS, members, 8, 0, EOS, -100)
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


def test_validation_is_shared_out_evenly():
    config = PretrainConfig(seq_len=6, global_batch_size=4, validation_fraction=0.5, validation_tokens=0)
    whole = PretrainingData(CORPUS, config, 2)
    alone, tokens, _ = whole.validation()
    parts = [PretrainingData(CORPUS, config, 2, replica, 3).validation()[0] for replica in range(3)]
    assert len({len(part) for part in parts}) == 1
    count = sum(int((batch["labels"] != -100).sum()) for part in parts for batch in part)
    assert count == tokens == sum(int((batch["labels"] != -100).sum()) for batch in alone)
