"""The unigram entropy that a pretrained model has to beat."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from llmctl.pretraining.config import PretrainConfig
from llmctl.pretraining.data import PretrainingData


class Documents:
    """Held-out text of known frequencies: what `PretrainingData` needs of `TokenDocuments`."""

    eos_id = 0
    pad_id = None
    vocab_size = 8
    sources = ("a",)
    fingerprint = "f" * 64
    tokenizer = Path()

    def __init__(self, texts: list[list[int]]) -> None:
        self._texts = [np.array([*text, self.eos_id], dtype=np.uint16) for text in texts]
        self.lengths = np.array([len(text) for text in self._texts], dtype=np.int64)
        self.num_bytes = self.lengths * 2
        self.source_ids = np.zeros(len(texts), dtype=np.int32)

    def tokens(self, document: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        return self._texts[document][start:stop]


def test_equal_frequencies_give_the_logarithm_of_their_number() -> None:
    documents = Documents([[1, 2, 3]] * 40)
    config = PretrainConfig(seq_len=16, global_batch_size=1, steps=1, validation_fraction=0.25)
    data = PretrainingData(documents, config, 1)
    assert len(data.held_out)
    # Every document is the tokens 1, 2, 3 and EOS, each as often as the others.
    assert data.unigram_entropy() == pytest.approx(math.log(4), rel=1e-12)


def test_one_token_that_stands_out() -> None:
    documents = Documents([[5] * 9] * 40)
    config = PretrainConfig(seq_len=16, global_batch_size=1, steps=1, validation_fraction=0.25)
    expected = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    assert PretrainingData(documents, config, 1).unigram_entropy() == pytest.approx(expected, rel=1e-12)
