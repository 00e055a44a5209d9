"""Grow a model's vocabulary for a tokenizer that got new tokens: old ids keep their rows, new ones get a mean.

``grown_tokens.json`` in a tokenizer's folder (`llmctl tokenize --tokenizer … --domain-terms …`) tells for each new id
the old ids of its text. The mean of their rows is where the row of the new id starts, in the embedding and, unless it
is the same matrix, in the head: the model then treats the term about as it treated its pieces (Hewitt 2021).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmctl.errors import UserError

if TYPE_CHECKING:
    import torch

    from llmctl.model.config import ModelConfig

GROWTH_NAME = "grown_tokens.json"
VOCABULARY_ROWS = ("embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True)
class GrownTokens:
    """New ids of a tokenizer.

    Attributes:
        base_vocab_size: ids below are those of the model.
        pieces: {new id: old ids of its text}.
    """

    base_vocab_size: int
    pieces: dict[int, tuple[int, ...]]

    @property
    def vocab_size(self) -> int:
        """Return one more than the largest new id."""
        return max(self.pieces) + 1

    def describe(self) -> str:
        """Say in words what happens to a model."""
        return f"{len(self.pieces):,} new tokens from id {min(self.pieces):,} on start at the mean of their pieces"

    def rows(self, old: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """Return a matrix of `vocab_size` rows, [vocab_size, width] of the type of `old`.

        Rows of the model stay; a new id gets the mean of its pieces' rows, a row that belongs to no id the mean of all.
        """
        import torch

        kept = old[: min(len(old), vocab_size)]
        grown = torch.empty((vocab_size, old.shape[1]), dtype=old.dtype)
        grown[: len(kept)] = kept
        if vocab_size > len(kept):
            grown[len(kept) :] = old[: self.base_vocab_size].to(torch.float32).mean(dim=0).to(old.dtype)
        for token, pieces in self.pieces.items():
            grown[token] = old[list(pieces)].to(torch.float32).mean(dim=0).to(old.dtype)
        return grown


def grown_shape(shape: ModelConfig, grown: GrownTokens | None) -> ModelConfig:
    """Return a shape with room for new tokens."""
    if grown is None or shape.vocab_size >= grown.vocab_size:
        return shape
    return dataclasses.replace(shape, vocab_size=grown.vocab_size)


def read_grown_tokens(tokenizer: Path) -> GrownTokens | None:
    """Read what a tokenizer's folder says of its new tokens; None if it says nothing.

    Raises:
        UserError: the file makes no sense.
    """
    path = tokenizer / GROWTH_NAME
    if not path.is_file():
        return None
    try:
        told = json.loads(path.read_bytes())
        base = int(told["base_vocab_size"])
        pieces = {int(row["id"]): tuple(int(piece) for piece in row["pieces"]) for row in told["tokens"]}
        sensible = all(ids and all(0 <= piece < base for piece in ids) for ids in pieces.values())
        if not sensible or not pieces or min(pieces) < base:
            raise ValueError(path)
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} does not describe new tokens", "make the tokens again") from None
    return GrownTokens(base, pieces)


def find_tokenizer_folder(path: Path | str) -> Path:
    """Return the folder of a tokenizer that an llmctl artifact holds, or `path` itself.

    Raises:
        UserError: there is no tokenizer in it.
    """
    path = Path(path)
    for folder in (path / "tokenizer", path / "model", path):
        if (folder / "tokenizer.json").is_file() or (folder / "tokenizer_config.json").is_file():
            return folder
    raise UserError(f"{path} holds no tokenizer", "give the output of `llmctl tokenize`, or a tokenizer's folder")


def growth_of(model: Path, vocab_size: int, tokenizer: Path) -> GrownTokens | None:
    """Return how a model has to grow for a tokenizer; None if it knows all of its tokens.

    Args:
        model: its Hugging Face folder, `vocab_size` from its config.json.
        tokenizer: a folder with the tokenizer of the data.

    Raises:
        UserError: the tokenizer has grown from that of a larger or another model.
    """
    grown = read_grown_tokens(tokenizer)
    if grown is None:
        return None
    theirs = _token_ids(model / "tokenizer.json")
    ours = _token_ids(tokenizer / "tokenizer.json") or {}
    if theirs is None:
        # Without its tokenizer only the number of rows tells what the model knows.
        if vocab_size >= grown.vocab_size:
            return None
    else:
        if all(theirs.get(number) == ours.get(number) for number in grown.pieces):
            return None
        changed = [number for number, text in theirs.items() if ours.get(number) != text]
        if changed:
            raise UserError(
                f"id {changed[0]} is `{theirs[changed[0]]}` in the tokenizer of {model} and "
                f"`{ours.get(changed[0])}` in that of the data",
                "make the tokens with --tokenizer of that model",
            )
    if vocab_size < grown.base_vocab_size:
        raise UserError(
            f"the tokenizer of the data has grown from {grown.base_vocab_size:,} tokens, and {model} has "
            f"{vocab_size:,}",
            "make the tokens with --tokenizer of that model",
        )
    return grown


def _token_ids(path: Path) -> dict[int, str] | None:
    """Return {id: token} of a tokenizer.json; None if there is none."""
    if not path.is_file():
        return None
    from tokenizers import Tokenizer

    try:
        vocabulary = Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True)
    except Exception as failure:  # the library raises bare Exception
        raise UserError(f"{path} is not a tokenizer: {failure}", "give a folder with its tokenizer") from None
    return {number: token for token, number in vocabulary.items()}
