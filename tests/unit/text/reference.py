"""A plain, slow implementation of the document statistics, to hold the kernels against."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

UNSPACED_NAMES = ("CJK", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "IDEOGRAPHIC", "THAI", "LAO", "KHMER", "MYANMAR")
ENDS = ".!?…։؟۔܀܁܂।॥၊။።፧፨៕᠃᠉᥄᥅‼‽⁇⁈⁉"
FULL_ENDS = "。！？｡．"
CLOSERS = "\"')]}»”’›」』】》〉）］｝"
LINE_ENDS = ENDS + FULL_ENDS + "\"'”’»」』"
BULLETS = "•-‣◦●▪∙⁃"


def is_unspaced(char: str) -> bool:
    return char.isalpha() and unicodedata.name(char, "").startswith(UNSPACED_NAMES)


def is_mark(char: str) -> bool:
    return unicodedata.category(char).startswith("M")


def tokens(text: str) -> list[tuple[str, bool]]:
    """Return (token, white space before it)."""
    found = []
    for piece in text.split():
        gap = True
        while piece:
            size = 1
            if is_unspaced(piece[0]):
                while size < len(piece) and is_mark(piece[size]):
                    size += 1
            else:
                while size < len(piece) and not is_unspaced(piece[size]):
                    size += 1
            found.append((piece[:size], gap))
            piece, gap = piece[size:], False
    if found and not text[0].isspace():
        found[0] = (found[0][0], False)
    return found


def word_of(token: str) -> str:
    """Return the word in a token (between its first and last letter or digit), or nothing."""
    places = [place for place, char in enumerate(token) if char.isalnum()]
    if not places:
        return ""
    last = max(place for place, char in enumerate(token) if char.isalnum() or is_mark(char))
    return token[places[0] : last + 1]


def sentences_of_line(line: str) -> int:
    count = 0
    start = 0
    for match in re.finditer(f"[{re.escape(ENDS + FULL_ENDS)}][{re.escape(ENDS + FULL_ENDS + CLOSERS)}]*", line):
        rest = line[match.end() :]
        marks = [char for char in match[0] if char in ENDS + FULL_ENDS]
        if not any(char in FULL_ENDS for char in marks):
            if not rest[:1].isspace():
                continue
            soft = all(char in ".…" for char in marks)
            before = tokens(line[: match.end()])[-1][0]
            initial = len(word_of(before)) == 1 and word_of(before).isalpha()
            if soft and (rest.lstrip()[:1].islower() or initial):
                continue
        if any(char.isalnum() for char in line[start : match.end()]):
            count += 1
            start = match.end()
    return count + any(char.isalnum() for char in line[start:])


def scan(text: str) -> dict[str, int]:
    found = tokens(text)
    words = [word_of(token) for token, _ in found if word_of(token)]
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return {
        "num_chars": len(text),
        "num_words": len(words),
        "num_tokens": len(found),
        "word_chars": sum(map(len, words)),
        "alpha_words": sum(any(char.isalpha() for char in word) for word in words),
        "max_word_chars": max(map(len, words), default=0),
        "num_hashes": text.count("#"),
        "num_ellipses": text.count("...") + text.count("…"),
        "letters": sum(char.isalpha() for char in text),
        "digits": sum(char.isnumeric() for char in text),
        "whitespace": sum(char.isspace() for char in text),
        "punctuation": sum(unicodedata.category(char)[0] == "P" for char in text),
        "symbols": sum(unicodedata.category(char)[0] == "S" for char in text),
        "uppercase": sum(char.isupper() for char in text),
        "unspaced_letters": sum(map(is_unspaced, text)),
        "curly_brackets": text.count("{"),
        "replacement_chars": text.count("\ufffd"),
        "control_chars": len(re.findall("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]", text)),
        "mojibake": len(re.findall("(?<=[ÂÃ])[\x80-\x84\x86-\x9f\xa1-\xbf]|(?<=â)€", text)),
        "newlines": text.count("\n"),
        "num_lines": len(lines),
        "bullet_lines": sum(line[0] in BULLETS for line in lines),
        "ellipsis_lines": sum(line.endswith(("...", "…")) for line in lines),
        "end_mark_lines": sum(line[-1] in LINE_ENDS for line in lines),
        "short_lines": sum(len(line) <= 30 for line in lines),
        "long_lines": sum(len(line) >= 200 for line in lines),
        "num_sentences": sum(map(sentences_of_line, lines)),
        "stored_chars": len(text),
    }


def _repeats(items: list[str]) -> tuple[int, int]:
    seen: set[str] = set()
    count = chars = 0
    for item in items:
        if item in seen:
            count += 1
            chars += len(item)
        seen.add(item)
    return count, chars


def line_repetition(text: str) -> dict[str, int]:
    lines = [line.strip() for line in text.split("\n")]
    paragraphs = [paragraph for paragraph in re.split(r"\n{2,}", "\n".join(lines).strip("\n")) if paragraph]
    duplicate_lines, line_chars = _repeats([line for line in lines if line])
    duplicate_paragraphs, paragraph_chars = _repeats(paragraphs)
    return {
        "duplicate_lines": duplicate_lines,
        "duplicate_line_chars": line_chars,
        "num_paragraphs": len(paragraphs),
        "duplicate_paragraphs": duplicate_paragraphs,
        "duplicate_paragraph_chars": paragraph_chars,
    }


def ngram_repetition(text: str) -> dict[str, int]:
    found = tokens(text)
    keys = [_lower(word_of(token) or token) for token, _ in found]
    letters = sum(char.isalpha() for char in text)
    unspaced = sum(map(is_unspaced, text))
    scale = 2 if unspaced and 10 * unspaced >= 3 * letters else 1

    def chars(start: int, size: int) -> int:
        return sum(len(token) for token, _ in found[start : start + size]) + sum(
            gap for _, gap in found[start + 1 : start + size]
        )

    result: dict[str, int] = {}
    for size in (2, 3, 4):
        grams = [tuple(keys[i : i + size * scale]) for i in range(len(keys) - size * scale + 1)]
        total = 0
        if grams:
            top, count = Counter(grams).most_common(1)[0]  # the first of equals, by insertion
            if count > 1:
                total = sum(chars(i, size * scale) for i, gram in enumerate(grams) if gram == top)
        result[f"top_{size}gram_chars"] = total
    for size in range(5, 11):
        grams = [tuple(keys[i : i + size * scale]) for i in range(len(keys) - size * scale + 1)]
        seen = set()
        total = i = 0
        while i < len(grams):
            if grams[i] in seen:
                total += chars(i, size * scale)
                i += size * scale
            else:
                seen.add(grams[i])
                i += 1
        result[f"duplicate_{size}gram_chars"] = total
        if size == 5:
            counts = Counter(grams)
            result["num_5grams"] = len(grams)
            result["repeated_5grams"] = sum(counts[gram] > 1 for gram in grams)
    return result


def _lower(text: str) -> str:
    return "".join(char.lower() if len(char.lower()) == 1 else char for char in text)


def character_repetition(text: str) -> dict[str, int]:
    counts = Counter(text[i : i + 10] for i in range(len(text) - 9))
    several = sorted((count for count in counts.values() if count > 1), reverse=True)
    taken = min(int(len(counts) ** 0.5), len(several))
    return {"num_10char_grams": max(len(text) - 9, 0), "repeated_10char_grams": sum(several[:taken])}


def statistics(text: str) -> dict[str, int]:
    return {**scan(text), **line_repetition(text), **ngram_repetition(text), **character_repetition(text)}
