"""Batches of a pretraining run: a pure function of (shards, seed, step), for any number of processes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from llmctl.loading.batches import Packed
from llmctl.loading.kernels import PADDING_LABEL
from llmctl.loading.loader import Loader, LoaderSettings, pack_validation
from llmctl.loading.order import hold_out, sample_keys
from llmctl.pretraining.config import PretrainConfig
from llmctl.pretraining.samples import SampleLog

Batch = dict[str, torch.Tensor]


class PretrainingData:
    """Training batches and the held-out set of a run.

    Args:
        documents: an open `shards` artifact.
        micro_batch_size: sequences of one micro-batch.
        replica, replicas: this process's data-parallel rank and their number.
        log: what is delivered is written there.
    """

    def __init__(
        self,
        documents: Any,
        config: PretrainConfig,
        micro_batch_size: int,
        replica: int = 0,
        replicas: int = 1,
        log: SampleLog | None = None,
    ) -> None:
        self.documents, self.config = documents, config
        self.micro_batch_size, self.replica, self.replicas = micro_batch_size, replica, replicas
        self.log = log
        training, self.held_out = hold_out(len(documents.lengths), config.validation_fraction, config.seed)
        self.loader = Loader(documents, training, loader_settings(config))

    @property
    def epochs(self) -> float:
        """Return how often the run sees the training documents."""
        return self.loader.epochs

    def micro_batches(self, step: int) -> list[Batch]:
        """Return this replica's micro-batches of a step (counted from 1)."""
        share = self.config.global_batch_size // self.replicas
        first = self.replica * share
        packed = self.loader.batch(step, first, first + share)
        if self.log is not None:
            self.log.add(step, self.loader.samples(step, first, first + share), packed.source_tokens)
        whole = to_batch(packed)
        if self.config.model.dropout:
            numbers = (step - 1) * self.config.global_batch_size + first + np.arange(share)
            whole["dropout_keys"] = torch.from_numpy(sample_keys(self.config.seed, numbers))
        size = self.micro_batch_size
        return [
            {name: tensor[start : start + size] for name, tensor in whole.items()} for start in range(0, share, size)
        ]

    def unigram_entropy(self) -> float:
        """Return the entropy of the held-out set's own token frequencies, in nats a token.

        It is the loss of the best model that ignores all context, told the frequencies beforehand; NaN without a set.
        """
        if not len(self.held_out):
            return math.nan
        packed, _, _ = self._pack_held_out()
        _, counts = np.unique(packed.labels[packed.labels != PADDING_LABEL], return_counts=True)
        shares = counts / counts.sum()
        return float(-(shares * np.log(shares)).sum())

    def _pack_held_out(self) -> tuple[Packed, int, int]:
        return pack_validation(self.documents, self.held_out, self.config.seq_len, self.config.validation_tokens)

    def validation(self) -> tuple[list[Batch], int, int]:
        """Return (this replica's micro-batches, tokens, bytes) of the held-out set; no batches if there is none.

        Every replica gets the same number of micro-batches; surplus rows have no labels.
        """
        if not len(self.held_out):
            return [], 0, 0
        return self._batches(*self._pack_held_out())

    def batches_of(self, members: np.ndarray) -> tuple[list[Batch], int, int]:
        """Return (this replica's micro-batches, tokens, bytes) of some documents, as `validation` does."""
        return self._batches(*pack_validation(self.documents, members, self.config.seq_len, 0))

    def _batches(self, packed: Packed, tokens: int, num_bytes: int) -> tuple[list[Batch], int, int]:
        whole = to_batch(packed)
        unit = self.micro_batch_size * self.replicas
        rows = whole["input_ids"].shape[0]
        surplus = -rows % unit
        if surplus:
            for name, tensor in whole.items():
                filler = tensor[:1].expand(surplus, -1)
                filler = torch.full_like(filler, PADDING_LABEL) if name == "labels" else filler
                whole[name] = torch.cat((tensor, filler))
        size = self.micro_batch_size
        batches = []
        for start in range(self.replica * size, rows + surplus, unit):
            batches.append({name: tensor[start : start + size] for name, tensor in whole.items()})
        return batches, tokens, num_bytes


def loader_settings(config: PretrainConfig) -> LoaderSettings:
    """Return what decides the batches of a run."""
    return LoaderSettings(
        steps=config.steps,
        global_batch_size=config.global_batch_size,
        seq_len=config.seq_len,
        seed=config.seed,
        packing=config.packing,
        mixture=config.mixture,
        max_epochs=config.max_epochs,
        when_exhausted=config.when_exhausted,
    )


def to_batch(packed: Packed) -> Batch:
    """Return packed sequences as tensors."""
    return {
        "input_ids": torch.from_numpy(packed.input_ids),
        "labels": torch.from_numpy(packed.labels),
        "position_ids": torch.from_numpy(packed.position_ids),
        "document_ids": torch.from_numpy(packed.document_ids),
    }
