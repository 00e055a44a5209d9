"""Domain terms as tokens: find them, keep those that pay, put them into a vocabulary, measure what they bring.

A term that is one word under the tokenizer's split becomes an entry of the vocabulary that is found whole
(`ignore_merges`): it costs one id and no intermediate pieces. A term of several words, or in a script without blanks,
becomes an added token, which is found anywhere. In a vocabulary trained here the terms take the place of the last
merges, so that its size stays; an existing vocabulary grows and keeps its ids.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl.errors import UserError
from llmctl.tokenization.folder import TokenizerFolder
from llmctl.tokenization.letters import byte_letters, to_letters

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MIN_LETTERS = 4
# A mined term is at least this many times as frequent in the domain's text as elsewhere.
MIN_CONTRAST = 3.0
MIN_COUNT = 5
MAX_TERM_CHARS = 100
BLANK = byte_letters()[ord(" ")]


@dataclass(frozen=True)
class Term:
    """One form of a domain term.

    Attributes:
        text: as it stands in texts, with the blank before it if it has one.
        whole_word: one word under the split; otherwise an added token.
        count: occurrences in the domain's sample.
        num_pieces: tokens that it takes without being a token itself.
    """

    text: str
    whole_word: bool
    count: int
    num_pieces: int

    @property
    def saved(self) -> int:
        """Return the tokens that it saves in the domain's sample."""
        return self.count * (self.num_pieces - 1)


def read_terms(path: Path) -> list[str]:
    """Read a list of terms, one a line; empty lines and lines that start with # do not count.

    Raises:
        UserError: the file cannot be read, or a line is no term.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as failure:
        raise UserError(f"cannot read {path}: {failure}", "give a text file in UTF-8 with one term a line") from None
    terms: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        term = " ".join(line.split())
        if not term or term.startswith("#"):
            continue
        if len(term) > MAX_TERM_CHARS:
            raise UserError(f"{path}, line {number}: a term of {len(term)} characters", "give one term a line")
        terms[term] = None
    if not terms:
        raise UserError(f"{path} holds no terms", "give one term a line")
    return list(terms)


def count_words(tokenizer: Tokenizer, texts: Iterable[str]) -> Counter[str]:
    """Count the words of texts as the tokenizer splits them, in its byte letters."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    return counts


def mine(tokenizer: Tokenizer, domain: Counter[str], elsewhere: Counter[str], limit: int) -> list[Term]:
    """Find words that are frequent in the domain, rare elsewhere and split into pieces today.

    Args:
        domain, elsewhere: counts of `count_words`.
        limit: most terms to return, those that save most first.
    """
    domain_total, other_total = max(1, domain.total()), max(1, elsewhere.total())
    found = []
    for word, count in domain.items():
        if count < MIN_COUNT:
            continue
        text = _text_of(word)
        if text is None or not text.strip().isalpha() or len(text.strip()) < MIN_LETTERS:
            continue
        if elsewhere and count / domain_total < MIN_CONTRAST * (elsewhere[word] + 1) / other_total:
            continue
        pieces = num_tokens(tokenizer, text)
        if pieces > 1:
            found.append(Term(text, True, count, pieces))
    return sorted(found, key=lambda term: (-term.saved, term.text))[:limit]


def _text_of(word: str) -> str | None:
    """Return the text of a word in byte letters; None if it is not whole characters, or does not start as a term."""
    letters = {letter: byte for byte, letter in byte_letters().items()}
    try:
        text = bytes(letters[letter] for letter in word).decode()
    except (UnicodeDecodeError, KeyError):
        return None
    return text if text[:1] == " " or text[:1].isalpha() else None


def listed(tokenizer: Tokenizer, names: Sequence[str], domain: Counter[str], texts: Sequence[str]) -> list[Term]:
    """Turn a list of terms into forms with their counts in the domain's sample.

    Args:
        domain: counts of `count_words` of `texts`.
    """
    terms = []
    for name in names:
        for text in (f" {name}", name):
            words = tokenizer.pre_tokenizer.pre_tokenize_str(text)
            if len(words) == 1 and _has_blanks(name):
                terms.append(Term(text, True, domain[words[0][0]], num_tokens(tokenizer, text)))
            elif text == name:
                count = sum(document.count(name) for document in texts)
                terms.append(Term(text, False, count, num_tokens(tokenizer, text)))
    return terms


def _has_blanks(name: str) -> bool:
    """Tell whether a term is in a script that puts blanks between words."""
    from llmctl.text.unicode import NO_SPACES, classes

    flags = classes()
    return not any(flags[ord(letter)] & NO_SPACES for letter in name)


def num_tokens(tokenizer: Tokenizer, text: str) -> int:
    """Return how many tokens a text takes."""
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


def choose(
    terms: Sequence[Term], domain_tokens: int, min_saved_per_million: float, displaced: Sequence[int] | None
) -> list[Term]:
    """Keep the terms that pay.

    Args:
        terms: candidates; those that save nothing are left out.
        domain_tokens: tokens of the domain's sample today.
        min_saved_per_million: fewest tokens to save for each million of `domain_tokens`.
        displaced: uses in the domain's sample of the vocabulary's last tokens, from the last on: what the first,
            second, … term costs whose place it takes. None if the vocabulary grows.
    """
    least = max(1.0, min_saved_per_million * domain_tokens / 1e6)
    kept: list[Term] = []
    unique = {term.text: term for term in terms}
    for term in sorted(unique.values(), key=lambda term: (-term.saved, term.text)):
        cost = 0 if displaced is None else (displaced[len(kept)] if len(kept) < len(displaced) else term.saved)
        if term.saved < least or term.saved <= cost:
            break
        kept.append(term)
    return kept


def put_in(folder: TokenizerFolder, terms: Sequence[Term], *, keep_size: bool) -> TokenizerFolder:
    """Return the tokenizer with the terms as tokens; the new ids are the highest.

    Args:
        keep_size: the terms take the place of the last merges; otherwise the vocabulary grows.
    """
    settings = json.loads(folder.tokenizer_json)
    model = settings["model"]
    if keep_size:
        _drop_last(model, len(terms))
    vocabulary = model["vocab"]
    number = 1 + max([*vocabulary.values(), *(token["id"] for token in settings["added_tokens"])])
    for term in terms:
        if term.whole_word:
            vocabulary[to_letters(term.text)] = number
        else:
            settings["added_tokens"].append(_added(number, term.text))
        number += 1
    model["ignore_merges"] = True
    grown = TokenizerFolder(
        json.dumps(settings, ensure_ascii=False, indent=2),
        folder.eos_token,
        folder.pad_token,
        folder.special_tokens,
        dict(folder.files),
    )
    # Settings that list added tokens by id would no longer be complete.
    if "tokenizer_config.json" in grown.files:
        config = json.loads(grown.files["tokenizer_config.json"])
        config.pop("added_tokens_decoder", None)
        grown.files["tokenizer_config.json"] = json.dumps(config, ensure_ascii=False, indent=2).encode() + b"\n"
    for outdated in ("vocab.json", "merges.txt", "added_tokens.json", "tokenizer.model"):
        grown.files.pop(outdated, None)
    return grown


def _added(number: int, text: str) -> dict[str, Any]:
    word = text[:1].isalnum() and _has_blanks(text)
    return {
        "id": number,
        "content": text,
        "single_word": word,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": False,
    }


def _drop_last(model: dict[str, Any], count: int) -> None:
    vocabulary = model["vocab"]
    first = len(vocabulary) - count
    removed = {token for token, number in vocabulary.items() if number >= first}
    model["vocab"] = {token: number for token, number in vocabulary.items() if number < first}
    model["merges"] = [
        merge for merge in model["merges"] if not removed.intersection((merge[0], merge[1], merge[0] + merge[1]))
    ]


def last_uses(tokenizer: Tokenizer, texts: Sequence[str], most: int) -> tuple[np.ndarray, int]:
    """Return the uses of the `most` last ids, from the last on, and the number of all tokens of the texts."""
    size = tokenizer.get_vocab_size()
    counts = np.zeros(size, np.int64)
    for text in texts:
        counts += np.bincount(tokenizer.encode(text, add_special_tokens=False).ids, minlength=size)
    return counts[::-1][:most], int(counts.sum())


def without_losses(before: TokenizerFolder, terms: Sequence[Term], *, keep_size: bool) -> list[Term]:
    """Leave out added tokens that would not decode to their text (some accented letters do not)."""
    grown = put_in(before, terms, keep_size=keep_size).load()
    kept = []
    for term in terms:
        ids = grown.encode(f"a {term.text.strip()} b", add_special_tokens=False).ids
        if grown.decode(ids, skip_special_tokens=False) == f"a {term.text.strip()} b":
            kept.append(term)
    return kept


def measure(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, Any]:
    """Return tokens, tokens a word, bytes a token, and the share of the vocabulary that texts use."""
    size = tokenizer.get_vocab_size()
    used = np.zeros(size, bool)
    tokens = words = num_bytes = 0
    for encoded, text in zip(tokenizer.encode_batch_fast(list(texts), add_special_tokens=False), texts, strict=True):
        used[encoded.ids] = True
        tokens += len(encoded.ids)
        words += len(text.split())
        num_bytes += len(text.encode())
    return {
        "text_bytes": num_bytes,
        "tokens": tokens,
        "bytes_per_token": round(num_bytes / tokens, 4) if tokens else None,
        "tokens_per_word": round(tokens / words, 4) if words else None,
        "vocabulary_used": int(used.sum()),
        "utilization": round(float(used.mean()), 4),
    }


def growth(before: Tokenizer, after: Tokenizer, terms: Sequence[Term]) -> dict[str, Any]:
    """Return for each new id the old ids of its text, whose mean is a sensible start of its embedding row."""
    vocabulary = after.get_vocab(with_added_tokens=True)
    rows = []
    for term in terms:
        token = to_letters(term.text) if term.whole_word else term.text
        pieces = before.encode(term.text, add_special_tokens=False).ids
        rows.append({"id": vocabulary[token], "text": term.text, "pieces": pieces})
    return {"base_vocab_size": 1 + max(before.get_vocab(with_added_tokens=True).values()), "tokens": rows}
