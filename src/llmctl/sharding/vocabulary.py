"""The tokenizer that belongs to ids which other tools wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl.artifacts.inputs import Input, InputFile
from llmctl.artifacts.manifest import MANIFEST_NAME, read_manifest
from llmctl.artifacts.shards import EXPORT_KIND, KIND
from llmctl.artifacts.tokens import KIND as TOKENS_KIND
from llmctl.artifacts.tokens import TOKENIZER_FOLDER, TokenizerFacts, dtype_for
from llmctl.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_JSON = "tokenizer.json"
_FILES = (TOKENIZER_JSON, "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer beside the ids."""

    input: Input
    facts: TokenizerFacts
    files: dict[str, Path]


def open_vocabulary(path: str, eos_token: str | None) -> Vocabulary:
    """Open a tokenizer.

    Args:
        path: an output of llmctl, a Hugging Face folder, or a tokenizer.json.
        eos_token: the token that ends documents, where the folder does not say.

    Raises:
        UserError: there is none, or no token ends documents.
    """
    given = Path(path)
    if not given.exists():
        raise UserError(f"{path} does not exist", "give a folder with a tokenizer.json")
    folder = given if given.is_dir() else given.parent
    if (folder / MANIFEST_NAME).is_file():
        kind = read_manifest(folder, (TOKENS_KIND, KIND, EXPORT_KIND, "model")).kind
        folder = folder / ("model" if kind == "model" else TOKENIZER_FOLDER)
    names = [TOKENIZER_JSON] if given.is_file() else [name for name in _FILES if (folder / name).is_file()]
    if TOKENIZER_JSON not in names or (given.is_file() and given.name != TOKENIZER_JSON):
        raise UserError(
            f"{path} has no {TOKENIZER_JSON}", f"`llmctl tokenize SAMPLE OUT --tokenizer {path}` writes one in OUT"
        )
    files = {name: folder / name for name in names}
    facts = _facts(files, eos_token, path)
    listed = []
    for name in sorted(names):
        status = files[name].stat()
        listed.append(InputFile(name, status.st_size, status.st_mtime_ns))
    return Vocabulary(Input("tokenizer", given.resolve().name, "raw", folder.resolve(), listed), facts, files)


def _facts(files: dict[str, Path], eos_token: str | None, where: str) -> TokenizerFacts:
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if name in files:
            try:
                settings |= json.loads(files[name].read_bytes())
            except (ValueError, TypeError):
                raise UserError(f"{name} of {where} is not JSON", "put it right") from None
    known = load(files[TOKENIZER_JSON]).get_vocab(with_added_tokens=True)
    eos, pad = eos_token or _content(settings.get("eos_token")), _content(settings.get("pad_token"))
    if eos not in known:
        raise UserError(
            f"{where} names no token that ends a document" if eos is None else f"{where} has no token {eos!r}",
            "name one with --eos-token",
        )
    max_id = max(known.values())
    pad = pad if pad in known else None
    return TokenizerFacts(max_id + 1, known[eos], eos, known[pad] if pad is not None else None, pad, dtype_for(max_id))


def _content(token: Any) -> str | None:
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def load(path: Path) -> Tokenizer:
    """Load a tokenizer.json.

    Raises:
        UserError: it is something else.
    """
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as failure:  # the library raises bare Exception
        raise UserError(f"{path} is not a tokenizer: {failure}", "give a tokenizer.json") from None


@lru_cache(maxsize=1)
def bytes_of_ids(path: Path, vocab_size: int) -> np.ndarray | None:
    """Return the UTF-8 bytes that each id stands for (int64), or None if the tokenizer is no byte-level one."""
    tokenizer = load(path)
    decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
    if decoder.get("type") != "ByteLevel":
        return None
    sizes = np.zeros(vocab_size, np.int64)
    for token, number in tokenizer.get_vocab(with_added_tokens=False).items():
        sizes[number] = len(token)  # one letter a byte
    for number, added in tokenizer.get_added_tokens_decoder().items():
        sizes[number] = len(added.content.encode())
    return sizes
