"""Write a tokenizer as a folder that `AutoTokenizer.from_pretrained` loads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmctl.artifacts.files import FileRecord, write_file
from llmctl.artifacts.tokens import TOKENIZER_FOLDER, TokenizerFacts, dtype_for
from llmctl.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# What transformers writes for "no limit".
_NO_LIMIT = 1000000000000000019884624838656


@dataclass
class TokenizerFolder:
    """A tokenizer before it is written.

    Attributes:
        tokenizer_json: the content of ``tokenizer.json``.
        special_tokens: further special tokens (chat markers), in the order of their ids.
        files: the other files of an existing folder, kept as they are; empty for a new tokenizer.
    """

    tokenizer_json: str
    eos_token: str
    pad_token: str | None
    special_tokens: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)

    def load(self) -> Tokenizer:
        """Return the tokenizer."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.tokenizer_json)

    def num_merges(self) -> int:
        """Return the number of merges of its BPE."""
        return len(json.loads(self.tokenizer_json)["model"]["merges"])

    def facts(self) -> TokenizerFacts:
        """Return what readers need to know; the dtype follows the largest id, added tokens included.

        Raises:
            UserError: the EOS token is not in the vocabulary.
        """
        vocabulary = self.load().get_vocab(with_added_tokens=True)
        if self.eos_token not in vocabulary:
            raise UserError(
                f"the tokenizer has no token {self.eos_token!r} to end documents with", "name one with --eos-token"
            )
        max_id = max(vocabulary.values())
        return TokenizerFacts(
            vocab_size=max_id + 1,
            eos_id=vocabulary[self.eos_token],
            eos_token=self.eos_token,
            pad_id=vocabulary.get(self.pad_token) if self.pad_token is not None else None,
            pad_token=self.pad_token,
            dtype=dtype_for(max_id),
        )

    def write(self, root: Path) -> list[FileRecord]:
        """Write the folder below `root` and return its files."""
        contents = {"tokenizer.json": self.tokenizer_json.encode(), **self._settings(), **self.files}
        return [write_file(root, f"{TOKENIZER_FOLDER}/{name}", data) for name, data in sorted(contents.items())]

    def _settings(self) -> dict[str, bytes]:
        names: dict[str, Any] = {"eos_token": self.eos_token}
        if self.pad_token is not None:
            names["pad_token"] = self.pad_token
        if self.special_tokens:
            names["additional_special_tokens"] = self.special_tokens
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": _NO_LIMIT,
            "clean_up_tokenization_spaces": False,
            **names,
        }
        return {"tokenizer_config.json": _json(config), "special_tokens_map.json": _json(names)}


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=2).encode() + b"\n"
