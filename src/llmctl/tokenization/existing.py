"""Use a tokenizer that exists: tokenizer.json, a Hugging Face folder, an llmctl folder or a .tiktoken file."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from llmctl import console
from llmctl.artifacts.inputs import Input, InputFile
from llmctl.artifacts.manifest import MANIFEST_NAME, read_manifest
from llmctl.artifacts.tokens import TOKENIZER_FOLDER
from llmctl.errors import UserError
from llmctl.tokenization.config import TokenizeConfig
from llmctl.tokenization.folder import TokenizerFolder
from llmctl.tokenization.letters import to_letters
from llmctl.tokenization.train import special_tokens, untrained

TOKENIZER_JSON = "tokenizer.json"
# Everything in a Hugging Face folder that belongs to its tokenizer.
_FILES = (
    TOKENIZER_JSON,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
# Names that released tokenizers give the token at the end of a document, tried where nothing else tells.
_USUAL_EOS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]")


def tokenizer_input(path: Path | str) -> Input:
    """Open a tokenizer as an input of the stage, so that its files are hashed and told in the manifest.

    Raises:
        UserError: there is no tokenizer there.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path} does not exist", "give a tokenizer.json, or a folder that holds one")
    if path.is_file():
        folder, names = path.parent, [path.name]
        if path.name == TOKENIZER_JSON:
            names += [name for name in _FILES[1:] if (folder / name).is_file()]
    else:
        folder = _folder_of(path)
        names = [name for name in _FILES if (folder / name).is_file()]
        if not names:
            raise UserError(f"{path} holds no tokenizer", "give a tokenizer.json, or a folder that holds one")
    files = []
    for name in sorted(names):
        status = (folder / name).stat()
        files.append(InputFile(name, status.st_size, status.st_mtime_ns))
    return Input("tokenizer", path.resolve().name, "raw", folder.resolve(), files)


def _folder_of(path: Path) -> Path:
    if not (path / MANIFEST_NAME).is_file():
        return path
    kind = read_manifest(path, ("tokens", "shards", "model")).kind
    return path / ("model" if kind == "model" else TOKENIZER_FOLDER)


def load_existing(source: Input, config: TokenizeConfig) -> TokenizerFolder:
    """Load a tokenizer; its ids stay as they are.

    Raises:
        UserError: it cannot be read, or no token ends a document.
    """
    names = [file.path for file in source.files]
    if TOKENIZER_JSON not in names and len(names) == 1 and names[0].endswith(".tiktoken"):
        return _from_tiktoken(source.root / names[0], config)
    if TOKENIZER_JSON not in names and len(names) == 1 and names[0].endswith(".json"):
        return _from_folder(source.root, {}, names[0], config)
    files = {name: (source.root / name).read_bytes() for name in names if name != TOKENIZER_JSON}
    if TOKENIZER_JSON in names and _agree(source.root, files):
        return _from_folder(source.root, files, TOKENIZER_JSON, config)
    return _through_transformers(source.root, config)


def _read(path: Path) -> str:
    from tokenizers import Tokenizer

    try:
        text = path.read_text(encoding="utf-8")
        Tokenizer.from_str(text)
    except Exception as failure:  # the library raises bare Exception
        raise UserError(
            f"{path} is not a tokenizer: {failure}", "give a tokenizer.json of the tokenizers library"
        ) from None
    return text


def _from_folder(folder: Path, files: dict[str, bytes], name: str, config: TokenizeConfig) -> TokenizerFolder:
    text = _read(folder / name)
    settings = {**_mapping(files, "special_tokens_map.json"), **_mapping(files, "tokenizer_config.json")}
    vocabulary = {token["content"]: token for token in json.loads(text).get("added_tokens", [])}
    eos = config.eos_token or _content(settings.get("eos_token")) or _guess_eos(text, str(folder / name))
    built = TokenizerFolder(text, eos, _content(settings.get("pad_token")), files=files)
    if config.eos_token is not None and config.eos_token != _content(settings.get("eos_token")):
        # The written folder must end documents as the ids do.
        built.files = _with_eos(files, config.eos_token)
    built.special_tokens = [token for token, entry in vocabulary.items() if entry.get("special") and token != eos]
    return built


def _guess_eos(text: str, where: str) -> str:
    from tokenizers import Tokenizer

    known = Tokenizer.from_str(text).get_vocab(with_added_tokens=True)
    for token in _USUAL_EOS:
        if token in known:
            console.info(f"{where} names no end-of-text token; taking {token}")
            return token
    raise UserError(f"{where} names no token that ends a document", "name one with --eos-token")


def _with_eos(files: dict[str, bytes], eos: str) -> dict[str, bytes]:
    changed = dict(files)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if name in files:
            settings = {**_mapping(files, name), "eos_token": eos}
            changed[name] = json.dumps(settings, ensure_ascii=False, indent=2).encode() + b"\n"
    return changed


def _mapping(files: dict[str, bytes], name: str) -> dict[str, Any]:
    try:
        loaded = json.loads(files.get(name, b"{}"))
    except ValueError:
        raise UserError(
            f"{name} beside the tokenizer is not JSON", "put it right, or give the tokenizer.json alone"
        ) from None
    return loaded if isinstance(loaded, dict) else {}


def _content(token: Any) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _agree(folder: Path, files: dict[str, bytes]) -> bool:
    """Tell whether tokenizer.json has every added token that tokenizer_config.json names, under the same id."""
    from tokenizers import Tokenizer

    named = _mapping(files, "tokenizer_config.json").get("added_tokens_decoder") or {}
    tokenizer = Tokenizer.from_str(_read(folder / TOKENIZER_JSON))
    return all(tokenizer.token_to_id(_content(entry) or "") == int(number) for number, entry in named.items())


def _through_transformers(folder: Path, config: TokenizeConfig) -> TokenizerFolder:
    """Let transformers convert an older folder (vocab.json and merges.txt, SentencePiece)."""
    import tempfile

    try:
        from transformers import AutoTokenizer

        loaded = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
        with tempfile.TemporaryDirectory() as scratch:
            loaded.save_pretrained(scratch)
            written = {path.name: path.read_bytes() for path in Path(scratch).iterdir() if path.name in _FILES}
            if TOKENIZER_JSON not in written:
                raise ValueError("it has no fast version")
            files = {name: data for name, data in written.items() if name != TOKENIZER_JSON}
            return _from_folder(Path(scratch), files, TOKENIZER_JSON, config)
    except UserError:
        raise
    except Exception as failure:
        raise UserError(
            f"{folder} holds no tokenizer that transformers can load: {failure}", "give a folder with a tokenizer.json"
        ) from None


# -- tiktoken -------------------------------------------------------------------------------------------------------


def _from_tiktoken(path: Path, config: TokenizeConfig) -> TokenizerFolder:
    """Turn ranks of byte strings into a BPE with the same ids; our special tokens follow after the last rank.

    The file names neither the word split nor special tokens: `config.split` says the first.
    """
    from tokenizers import AddedToken, models

    ranks = _read_tiktoken(path)
    vocabulary = {to_letters(token): rank for token, rank in ranks.items()}
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            halves = _last_merge(token, rank, ranks)
            if halves is not None:
                merges.append((to_letters(halves[0]), to_letters(halves[1])))
    tokenizer = untrained(config)
    # A token that its parts do not build is still found as a whole word, as tiktoken does.
    tokenizer.model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True)
    special = special_tokens(config)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return TokenizerFolder(tokenizer.to_str(pretty=True), special[0], special[1], special[2:])


def _read_tiktoken(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    try:
        for line in path.read_bytes().splitlines():
            if line.strip():
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
    except ValueError:
        raise UserError(f"{path} is not a .tiktoken file", "its lines are a token in base64 and a rank") from None
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise UserError(f"{path} lacks {len(missing)} of the 256 bytes", "give a complete .tiktoken file")
    return ranks


def _last_merge(token: bytes, rank: int, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """Return the two parts whose merge makes `token`: merge by rank as tiktoken does, stopping before its own rank."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        candidates = [
            (ranks[joined], position)
            for position in range(len(parts) - 1)
            if (joined := parts[position] + parts[position + 1]) in ranks and ranks[joined] < rank
        ]
        if not candidates:
            return None
        _, position = min(candidates)
        parts[position : position + 2] = [parts[position] + parts[position + 1]]
    return parts[0], parts[1]
