"""Pretraining text beside the conversations: a share of every batch, and a held-out part that tells what is forgotten.

Everything is a function of (shards, configuration, seed, step): there is no state to save.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl.artifacts.shards import open_shards
from llmctl.errors import UserError
from llmctl.loading.batches import Packed
from llmctl.loading.loader import Loader, LoaderSettings, pack_validation
from llmctl.loading.order import hold_out
from llmctl.sft.config import SftConfig
from llmctl.sft.packing import BatchPlan, Line
from llmctl.sft.rows import Rows

if TYPE_CHECKING:
    from llmctl.training.conversations.template import ChatTemplate

ROLE = "pretrain_shards"


class PretrainingText:
    """Documents of pretraining shards: some are mixed into the batches, others are held out.

    Which documents are held out is what `llmctl pretrain` with the same seed and share holds out.

    Args:
        shards: a `shards` artifact.
        vocab_size: rows of the model's vocabulary.
        rows, plan: the conversations, and which of them each step takes.

    Raises:
        UserError: the shards have another tokenizer, or nothing can be held out.
    """

    def __init__(
        self, shards: Path, config: SftConfig, template: ChatTemplate, vocab_size: int, rows: Rows, plan: BatchPlan
    ) -> None:
        self.documents = open_shards(shards)
        self.config, self.plan = config, plan
        check_tokenizer(self.documents, template, vocab_size, shards)
        training, self.held_out = hold_out(
            len(self.documents.lengths), config.pretrain_validation_fraction, config.seed
        )
        if not len(self.held_out) or not int(self.documents.lengths[self.held_out].sum()):
            raise UserError(
                f"no document of {shards} can be held out to measure forgetting",
                "give shards of several documents, or a larger --pretrain-validation-fraction",
            )
        self._lengths = rows.lengths
        self._sizes = np.array([int(self._lengths[members].sum()) for members in plan.packs], dtype=np.int64)
        self.loader: Loader | None = None
        if config.mix_pretrain:
            most = self._wanted(int(np.sort(self._sizes)[-plan.batch_size :].sum()))
            # As few pieces as the largest batch needs; all of a step are cut to one length, which wastes little text.
            self.pieces = max(1, math.ceil(most / config.seq_len))
            length = max(1, math.ceil(most / self.pieces))
            steps = config.steps or max(1, math.ceil(config.epochs * plan.steps_per_epoch))
            settings = LoaderSettings(steps, self.pieces, length, config.seed)
            self.loader = Loader(self.documents, training, settings)

    def _wanted(self, tokens: int) -> int:
        """Return the tokens of pretraining text that go with so many tokens of conversations."""
        share = self.config.mix_pretrain
        return max(1, round(tokens * share / (1.0 - share)))

    def lines(self, step: int) -> list[Line]:
        """Return the pretraining text of a step, counted from 1; nothing where none is mixed in."""
        if self.loader is None:
            return []
        tokens = self._wanted(sum(int(self._lengths[members].sum()) for members in self.plan.step(step)))
        packed = self.loader.batch(step)
        each, more = divmod(tokens, self.pieces)
        return to_lines(packed, [each + (piece < more) for piece in range(self.pieces)])

    def held_out_lines(self) -> tuple[list[Line], int]:
        """Return the held-out documents, each token a label once, and the UTF-8 bytes of their text."""
        packed, _, num_bytes = pack_validation(
            self.documents, self.held_out, self.config.seq_len, self.config.pretrain_validation_tokens
        )
        return to_lines(packed, [self.config.seq_len] * len(packed.input_ids)), num_bytes

    def facts(self) -> dict[str, Any]:
        """Return what the manifest tells about the text."""
        facts: dict[str, Any] = {
            "shards": self.documents.fingerprint,
            "held_out_documents": len(self.held_out),
            "mixed_share": self.config.mix_pretrain,
        }
        if self.loader is not None:
            per_epoch = int(sum(self._wanted(tokens) for tokens in self._tokens_of_steps()))
            facts["mixed_documents"] = len(self.loader.members)
            facts["mixed_tokens_per_epoch"] = per_epoch
        return facts

    def _tokens_of_steps(self) -> list[int]:
        """Return the tokens of conversations of each step of the first epoch."""
        steps = range(1, self.plan.steps_per_epoch + 1)
        return [sum(int(self._lengths[members].sum()) for members in self.plan.step(step)) for step in steps]


def to_lines(packed: Packed, sizes: list[int]) -> list[Line]:
    """Return the first tokens of packed sequences, `sizes` of each, without padding."""
    lines = []
    for number, size in enumerate(sizes):
        labels = packed.labels[number]
        size = min(size, int((labels >= 0).sum()))  # padding stands at the end
        if size:
            arrays = (packed.input_ids, packed.labels, packed.position_ids, packed.document_ids)
            lines.append(Line(*(array[number, :size].copy() for array in arrays)))
    return lines


def check_tokenizer(documents: Any, template: ChatTemplate, vocab_size: int, shards: Path) -> None:
    """Refuse shards whose ids mean something else to the model.

    Raises:
        UserError: names the first id that differs.
    """
    from transformers import AutoTokenizer

    hint = "make the shards with the model's tokenizer (`llmctl tokenize --tokenizer MODEL`)"
    if documents.vocab_size > vocab_size:
        raise UserError(f"{shards} has {documents.vocab_size:,} token ids and the model {vocab_size:,}", hint)
    theirs = {number: token for token, number in AutoTokenizer.from_pretrained(documents.tokenizer).get_vocab().items()}
    ours = {number: token for token, number in template.tokenizer.get_vocab().items()}
    other = sorted(number for number, token in theirs.items() if ours.get(number) != token)
    if other:
        raise UserError(
            f"id {other[0]} is `{theirs[other[0]]}` in the tokenizer of {shards} and `{ours.get(other[0])}` in that of "
            "the model",
            hint,
        )
