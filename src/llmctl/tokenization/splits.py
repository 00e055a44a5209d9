"""Where a text may be cut: the regular expressions that split it into words, and cuts that no word crosses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"

# Sources: `gpt2` the GPT-2 release, `llama3` the Llama 3 release (cl100k with digits in threes), `qwen2` the Qwen2
# release (each digit alone). `marks` is qwen2 with combining marks (\p{M}: vowel signs, accents) kept in their word;
# without it each Thai or Hindi vowel sign starts a new word.
PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}",
    "qwen2": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}",
    "marks": (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{M}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}"
    ),
}
_EQUIVALENT = {
    # GPT-2's own spelling of its pattern.
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
}

# A document longer than this is encoded in pieces, which bounds memory (an encoding takes over 100 bytes a token).
PIECE_CHARS = 1 << 18

# Under every pattern above a word ends between a letter and a line break, and between a letter and a blank that
# a letter follows. Letters here are plain ones only, which no normalisation joins with what follows.
_CUT = re.compile(r"(?<=[A-Za-z一-鿿ぁ-ゖァ-ヺ])(?=\n)|(?<=[A-Za-z])(?= [A-Za-z])")


def known_split(tokenizer_json: str) -> bool:
    """Tell whether cuts at `pieces` leave the ids of a tokenizer unchanged: it splits words by a pattern known here."""
    settings = json.loads(tokenizer_json)
    normalizer = settings.get("normalizer")
    if normalizer is not None and normalizer.get("type") != "NFC":
        return False
    if any("\n" in token["content"] or " " in token["content"] for token in settings.get("added_tokens", [])):
        return False
    return settings["model"]["type"] == "BPE" and _splits_by_pattern(settings.get("pre_tokenizer") or {})


def _splits_by_pattern(pre_tokenizer: dict[str, Any]) -> bool:
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    last = steps[-1] if steps else {}
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return False
    if len(steps) == 1:
        return bool(last.get("use_regex"))
    first = steps[0]
    pattern = first.get("pattern", {}).get("Regex")
    known = pattern in PATTERNS.values() or pattern in _EQUIVALENT
    return len(steps) == 2 and known and first.get("behavior") == "Isolated" and not first.get("invert")


def pieces(text: str, limit: int = PIECE_CHARS) -> Iterator[str]:
    """Cut a text into pieces of at least `limit` characters (but the last) at places that no word crosses.

    Encoding the pieces one by one gives the ids of the whole, for a tokenizer of which `known_split` holds.
    """
    start = 0
    while len(text) - start > limit:
        cut = _CUT.search(text, start + limit)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]
