"""The unigram entropy that a pretrained model has to beat."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.unit.loading.corpus import EOS, Corpus

from llmctl.pretraining.config import PretrainConfig
from llmctl.pretraining.data import PretrainingData


def documents_of(texts: list[list[int]]) -> Corpus:
    return Corpus(None, texts=[[*text, EOS] for text in texts], dtype=np.uint16)


def test_equal_frequencies_give_the_logarithm_of_their_number() -> None:
    documents = documents_of([[1, 2, 3]] * 40)
    config = PretrainConfig(seq_len=16, global_batch_size=1, steps=1, validation_fraction=0.25)
    data = PretrainingData(documents, config, 1)
    assert len(data.held_out)
    # Every document is the tokens 1, 2, 3 and EOS, each as often as the others.
    assert data.unigram_entropy() == pytest.approx(math.log(4), rel=1e-12)


def test_one_token_that_stands_out() -> None:
    documents = documents_of([[5] * 9] * 40)
    config = PretrainConfig(seq_len=16, global_batch_size=1, steps=1, validation_fraction=0.25)
    expected = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    assert PretrainingData(documents, config, 1).unigram_entropy() == pytest.approx(expected, rel=1e-12)
