"""Batches of a pretraining run: a pure function of (shards, seed, step), for any number of processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from llmctl.errors import UserError
from llmctl.pretraining.config import PretrainConfig
from llmctl.pretraining.packing import Packed, PackedSequences, hold_out, pack_validation, sample_keys
from llmctl.training.losses.next_token import IGNORE_INDEX

Batch = dict[str, torch.Tensor]


class PretrainingData:
    """Training batches and the held-out set of a run.

    Args:
        documents: an open `shards` artifact.
        micro_batch_size: sequences of one micro-batch.
        replica, replicas: this process's data-parallel rank and their number.
    """

    def __init__(
        self, documents: Any, config: PretrainConfig, micro_batch_size: int, replica: int = 0, replicas: int = 1
    ) -> None:
        self.documents, self.config = documents, config
        self.micro_batch_size, self.replica, self.replicas = micro_batch_size, replica, replicas
        training, self.held_out = hold_out(len(documents.lengths), config.validation_fraction, config.seed)
        if not len(training) or not int(documents.lengths[training].sum()):
            raise UserError("the shards hold no tokens to train on", "make them from more documents")
        self.sequences = PackedSequences(documents, training, config.seq_len, config.seed)

    @property
    def epochs(self) -> float:
        """Return how often the run sees the training documents."""
        return self.config.steps * self.config.global_batch_size / self.sequences.per_epoch

    def micro_batches(self, step: int) -> list[Batch]:
        """Return this replica's micro-batches of a step (counted from 1)."""
        share = self.config.global_batch_size // self.replicas
        first = (step - 1) * self.config.global_batch_size + self.replica * share
        return [
            self._batch(range(start, start + self.micro_batch_size))
            for start in range(first, first + share, self.micro_batch_size)
        ]

    def _batch(self, numbers: Sequence[int]) -> Batch:
        batch = to_batch(self.sequences.pack(numbers))
        if self.config.model.dropout:
            keys = sample_keys(self.config.seed, np.asarray(numbers, dtype=np.int64))
            batch["dropout_keys"] = torch.from_numpy(keys)
        return batch

    def unigram_entropy(self) -> float:
        """Return the entropy of the held-out set's own token frequencies, in nats a token.

        It is the loss of the best model that ignores all context, told the frequencies beforehand; NaN without a set.
        """
        if not len(self.held_out):
            return math.nan
        packed, _, _ = self._pack_held_out()
        _, counts = np.unique(packed.labels[packed.labels != IGNORE_INDEX], return_counts=True)
        shares = counts / counts.sum()
        return float(-(shares * np.log(shares)).sum())

    def _pack_held_out(self) -> tuple[Packed, int, int]:
        return pack_validation(
            self.documents,
            self.held_out,
            self.config.seq_len,
            self.config.validation_tokens,
            self.documents.eos_id,
            IGNORE_INDEX,
        )

    def validation(self) -> tuple[list[Batch], int, int]:
        """Return (this replica's micro-batches, tokens, bytes) of the held-out set; no batches if there is none.

        Every replica gets the same number of micro-batches; surplus rows have no labels.
        """
        if not len(self.held_out):
            return [], 0, 0
        packed, tokens, num_bytes = self._pack_held_out()
        whole = to_batch(packed)
        unit = self.micro_batch_size * self.replicas
        rows = whole["input_ids"].shape[0]
        surplus = -rows % unit
        if surplus:
            for name, tensor in whole.items():
                filler = tensor[:1].expand(surplus, -1)
                filler = torch.full_like(filler, IGNORE_INDEX) if name == "labels" else filler
                whole[name] = torch.cat((tensor, filler))
        size = self.micro_batch_size
        batches = []
        for start in range(self.replica * size, rows + surplus, unit):
            batches.append({name: tensor[start : start + size] for name, tensor in whole.items()})
        return batches, tokens, num_bytes


def to_batch(packed: Packed) -> Batch:
    """Return packed sequences as tensors."""
    return {
        "input_ids": torch.from_numpy(packed.input_ids),
        "labels": torch.from_numpy(packed.labels),
        "position_ids": torch.from_numpy(packed.position_ids),
        "document_ids": torch.from_numpy(packed.document_ids),
    }
