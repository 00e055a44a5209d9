"""Batches of a run over the shards of an artifact: a pure function of (shards, configuration, seed, step).

    loader = Loader(open_shards("shards"), members, LoaderSettings(seq_len=2048, ...))
    batch = loader.batch(step, first, last)

The global batch of a step is the same for any number of processes; a process asks for its part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from llmctl.errors import UserError
from llmctl.loading.batches import Buffers, Documents, Packed, collate, join
from llmctl.loading.config import MixtureConfig
from llmctl.loading.mixture import ALL, MixturePlan, WhenExhausted, columns_of, plan_mixture
from llmctl.loading.order import choose_validation
from llmctl.loading.packing import ConcatEpoch, Packing, PackingFacts, SequenceStream, by_value
from llmctl.loading.schedule import Schedule


@dataclass(frozen=True)
class LoaderSettings:
    """What decides the batches of a run.

    Attributes:
        steps, global_batch_size: of the whole run; a mixture's phases are shares of the steps.
        max_epochs, when_exhausted: see `plan_mixture`.
    """

    steps: int
    global_batch_size: int
    seq_len: int
    seed: int = 0
    packing: Packing = "concat"
    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    max_epochs: float = 0.0
    when_exhausted: WhenExhausted = "refuse"


@dataclass(frozen=True)
class Samples:
    """What the samples of a step are, int64 [samples] each.

    Attributes:
        numbers: number of each sample in the run.
        columns, epochs, places: column of the mixture, its epoch, and the sequence's place in it.
    """

    numbers: np.ndarray
    columns: np.ndarray
    epochs: np.ndarray
    places: np.ndarray

    def rows(self) -> list[list[int]]:
        """Return [number, column, epoch, place] of each sample."""
        rows: list[list[int]] = np.stack((self.numbers, self.columns, self.epochs, self.places), axis=1).tolist()
        return rows


class Loader:
    """Training batches of a run.

    Args:
        documents: an open `shards` artifact.
        members: the documents to train on, int64.

    Raises:
        UserError: nothing to train on, or the mixture does not go with the sources.
    """

    def __init__(self, documents: Documents, members: np.ndarray, settings: LoaderSettings) -> None:
        self.documents, self.members, self.settings = documents, members, settings
        if not len(members) or not int(documents.lengths[members].sum()):
            raise UserError("the shards hold no tokens to train on", "make them from more documents")
        columns = columns_of(settings.mixture, list(documents.sources))
        self.streams = [
            SequenceStream(
                documents,
                self._members_of(sources, name),
                settings.seq_len,
                settings.seed,
                packing=settings.packing,
                stream=number_of(name),
            )
            for name, sources in columns.items()
        ]
        self.plan: MixturePlan = plan_mixture(
            settings.mixture,
            columns,
            {name: stream.per_epoch for name, stream in zip(columns, self.streams, strict=True)},
            steps=settings.steps,
            global_batch_size=settings.global_batch_size,
            max_epochs=settings.max_epochs,
            when_exhausted=settings.when_exhausted,
        )
        for stream, samples in zip(self.streams, self.plan.totals, strict=True):
            stream.limit(samples)
        self._schedule = Schedule(self.plan)
        self._buffers = Buffers()

    def _members_of(self, sources: Sequence[str], column: str) -> np.ndarray:
        if column == ALL and not self.settings.mixture.phases:
            return self.members
        names = list(self.documents.sources)
        wanted = np.array([names.index(source) for source in sources], dtype=np.int64)
        return self.members[np.isin(self.documents.source_ids[self.members], wanted)]

    @property
    def num_tokens(self) -> int:
        """Return the tokens of one epoch of all columns."""
        return sum(stream.num_tokens for stream in self.streams)

    @property
    def per_epoch(self) -> int:
        """Return the sequences of one epoch of all columns."""
        return sum(stream.per_epoch for stream in self.streams)

    @property
    def epochs(self) -> float:
        """Return how often the run sees the training tokens, on average."""
        return sum(self.plan.totals) / self.per_epoch

    def packing_facts(self) -> PackingFacts:
        """Return what packing cuts and pads in one epoch, over all columns."""
        facts = [stream.facts() for stream in self.streams if stream.per_epoch]
        return PackingFacts(*(sum(getattr(fact, name) for fact in facts) for name in PackingFacts.__dataclass_fields__))

    def samples(self, step: int, first: int = 0, last: int | None = None) -> Samples:
        """Return what the samples `first` to `last` of a step's global batch are."""
        columns, numbers = (part[first:last] for part in self._schedule.step(step))
        epochs, places = np.empty_like(numbers), np.empty_like(numbers)
        for column, chosen in by_value(columns):
            epochs[chosen], places[chosen] = self.streams[column].places(numbers[chosen])
        begin = (step - 1) * self.settings.global_batch_size + first
        return Samples(begin + np.arange(len(columns)), columns, epochs, places)

    def batch(self, step: int, first: int = 0, last: int | None = None) -> Packed:
        """Return the samples `first` to `last` of a step's global batch, counted from 0 (all of them by default).

        Args:
            step: from 1.

        Raises:
            RunFailed: a shard is damaged.
        """
        columns, numbers = (part[first:last] for part in self._schedule.step(step))
        places, parts = [], []
        for column, chosen in by_value(columns):
            for index, pieces in self.streams[column].pieces(numbers[chosen]):
                places.append(chosen[index])
                parts.append(pieces)
        pieces = parts[0]
        if len(parts) > 1:
            pieces = join(parts).take(np.argsort(np.concatenate(places), kind="stable"))
        return collate(self.documents, pieces, self.settings.seq_len, self._buffers)


def number_of(column: str) -> int:
    """Return a number for a column's name, the same everywhere, so that other columns do not change its order."""
    return int.from_bytes(hashlib.blake2b(column.encode(), digest_size=8).digest(), "little")


def pack_validation(
    documents: Documents, members: np.ndarray, seq_len: int, max_tokens: int
) -> tuple[Packed, int, int]:
    """Pack held-out documents, one after the other, each token a label once, the last sequence padded.

    Args:
        max_tokens: see `choose_validation`.

    Returns:
        (sequences, tokens, UTF-8 bytes of their text).
    """
    members = choose_validation(documents.lengths, members, max_tokens)
    epoch = ConcatEpoch(documents.lengths, members, seq_len)
    packed = collate(documents, epoch.pieces(np.arange(epoch.num_sequences)), seq_len)
    return packed, epoch.total, int(documents.num_bytes[members].sum())
