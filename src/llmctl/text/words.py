"""Scan a document once: words, characters, lines and sentences, over its UTF-8 bytes.

Definitions, the same for every script:

* **token**: a run of characters without white space, cut further so that each character of a script written
  without spaces (Han, kana, Thai, Lao, Khmer, Myanmar) is a token of its own, with the marks that follow it.
* **word**: a token with at least one letter or digit; its length runs from the first letter or digit to the last
  letter, digit or mark. The other tokens are symbols.
* **line**: what stands between two ``\\n``, without the white space around it; blank lines do not count.
* **sentence**: text up to ``. ! ?`` (with closing quotes or brackets) and white space, or up to a full-width mark,
  or to the end of the line. A full stop before a lower-case letter, or after a single letter, ends nothing.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from llmctl.text import unicode
from llmctl.text.compile import inline_kernel
from llmctl.text.unicode import decode

# Flags of `kinds`: those of `unicode.classes` (without the underscore as a letter), and these.
ALNUM = unicode.WORD
SPACE = unicode.SPACE
ALPHA = unicode.ALPHA
DIGIT = unicode.DIGIT
UPPER = unicode.UPPER
UNSPACED = unicode.NO_SPACES
PUNCTUATION = unicode.PUNCTUATION
SYMBOL = unicode.SYMBOL
MARK = unicode.MARK
LOWER = 512
SENTENCE_END = 1024  # ends a sentence, if white space follows
FULL_END = 2048  # ends a sentence whatever follows
CLOSER = 4096  # may stand between the end mark and the white space
LINE_END = 8192  # a line that ends in it is taken for prose
BULLET = 16384

SENTENCE_ENDS = ".!?…։؟۔܀܁܂।॥၊။።፧፨៕᠃᠉᥄᥅‼‽⁇⁈⁉"
FULL_ENDS = "。！？｡．"
CLOSERS = "\"')]}»”’›」』】》〉）］｝"
QUOTES = "\"'”’»」』"
BULLETS = "•-‣◦●▪∙⁃"

# Columns that `scan_document` fills, in this order.
SCAN_COLUMNS = (
    "num_chars",
    "num_words",
    "num_tokens",
    "word_chars",
    "alpha_words",
    "max_word_chars",
    "num_hashes",
    "num_ellipses",
    "letters",
    "digits",
    "whitespace",
    "punctuation",
    "symbols",
    "uppercase",
    "unspaced_letters",
    "curly_brackets",
    "replacement_chars",
    "control_chars",
    "mojibake",
    "newlines",
    "num_lines",
    "bullet_lines",
    "ellipsis_lines",
    "end_mark_lines",
    "short_lines",
    "long_lines",
    "num_sentences",
    "stored_chars",
)
SHORT_LINE_CHARS = 30
LONG_LINE_CHARS = 200

HASH_SEED = np.uint64(0xCBF29CE484222325)
HASH_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_SHIFT = np.uint64(32)
_ONE = np.uint64(1)  # unsigned indexes spare hot loops the check for negative ones


@lru_cache(maxsize=1)
def kinds() -> np.ndarray:
    """Return the flags of every code point, uint16 of shape [0x110000]."""
    table = unicode.classes().copy()
    table[ord("_")] &= 0xFFFF ^ ALNUM
    lowered = np.fromiter((chr(point).islower() for point in range(0xD800)), np.bool_, 0xD800)
    table[:0xD800][lowered] |= LOWER
    for characters, flag in (
        (SENTENCE_ENDS + FULL_ENDS, SENTENCE_END | LINE_END),
        (FULL_ENDS, FULL_END),
        (CLOSERS, CLOSER),
        (QUOTES, LINE_END),
        (BULLETS, BULLET),
    ):
        for character in characters:
            table[ord(character)] |= flag
    return table


@inline_kernel
def mix(value):
    """Spread the bits of a 64-bit hash, so that its low bits can address a table."""
    value ^= value >> _SHIFT
    value *= _MIX
    value ^= value >> _SHIFT
    return value


def hash_word(word: str) -> int:
    """Return the hash that `scan_document` gives to a word (lower-cased as the kernel does)."""
    table = unicode.lower()
    value = int(HASH_SEED)
    for character in word:
        value = ((value ^ int(table[ord(character)])) * int(HASH_PRIME)) & 0xFFFFFFFFFFFFFFFF
    value ^= value >> 32
    value = (value * int(_MIX)) & 0xFFFFFFFFFFFFFFFF
    return value ^ value >> 32


@inline_kernel
def scan_document(
    data, start, end, kinds, lower, row, token_hash, token_chars, token_gap, line_hash, line_chars, line_breaks
):
    """Count what one pass over a document can count, and store its tokens and lines.

    Args:
        data: uint8, valid UTF-8 from `start` to `end`.
        kinds, lower: tables of `kinds()` and `unicode.lower()`.
        row: int64 of shape [len(SCAN_COLUMNS)], filled.
        token_hash, token_chars, token_gap: scratch of one length; receive each token's hash (lower-cased word, or
            the symbols as they are), its characters, and whether white space precedes it. Tokens that do not fit are
            counted but not stored; ``stored_chars`` says up to which character tokens are stored.
        line_hash, line_chars, line_breaks: scratch of one length; receive each line's hash, its characters, and
            whether a blank line precedes it. Lines that do not fit are counted but not stored.

    Returns:
        the number of tokens stored, the number of lines stored.
    """
    capacity = token_hash.size
    stored = 0
    stored_lines = 0
    line_value = HASH_SEED
    line_kept = HASH_SEED  # the hash up to the last character that is not white space
    blank = 2  # newlines since the last line that is not blank
    stored_chars = 0
    num_chars = num_words = num_tokens = word_chars = alpha_words = max_word_chars = 0
    num_hashes = num_ellipses = letters = digits = whitespace = punctuation = symbols = uppercase = 0
    unspaced_letters = curly_brackets = replacement_chars = control_chars = mojibake = newlines = 0
    num_lines = bullet_lines = ellipsis_lines = end_mark_lines = short_lines = long_lines = 0
    num_sentences = 0

    gap = 0
    dots = 0  # full stops in a row up to here
    previous = 0  # the character before
    line_first = -1  # index of the line's first character that is not white space
    line_last = 0
    line_first_kind = 0
    line_last_kind = 0
    line_ellipsis = False
    state = 0  # of the sentence: 0 inside, 1 after an end mark, 2 after a full-width one, 3 after mark and white space
    soft = True  # the end mark was a full stop or an ellipsis
    content = False  # there is a letter or digit since the last end

    position = start
    while position <= end:
        # White space up to the next token; the end of the document closes the last line like a newline.
        at_end = position == end
        if not at_end:
            point, size = decode(data, position)
            kind = kinds[point]
        if at_end or kind & SPACE:
            if at_end or point == 10:
                if line_first >= 0:
                    length = line_last - line_first + 1
                    num_lines += 1
                    bullet_lines += (line_first_kind & BULLET) != 0
                    end_mark_lines += (line_last_kind & LINE_END) != 0
                    ellipsis_lines += line_ellipsis
                    short_lines += length <= SHORT_LINE_CHARS
                    long_lines += length >= LONG_LINE_CHARS
                    if stored_lines < line_hash.size:
                        line_hash[stored_lines] = mix(line_kept)
                        line_chars[stored_lines] = length
                        line_breaks[stored_lines] = blank > 1
                        stored_lines += 1
                    line_first = -1
                    blank = 0
                num_sentences += content
                content = False
                state = 0
                if at_end:
                    break
                newlines += 1
                blank += 1
            else:
                line_value = (line_value ^ np.uint64(point)) * HASH_PRIME
                if state == 1:
                    state = 3
            num_chars += 1
            whitespace += 1
            dots = 0
            previous = point
            gap = 1
            position += size
            continue

        # A token.
        value = HASH_SEED
        token_start = num_chars
        is_word = False
        has_alpha = False
        word_start = 0
        word_end = 0
        word_value = HASH_SEED
        single = (kind & UNSPACED) != 0
        while True:
            if line_first < 0:
                line_first = num_chars
                line_first_kind = kind
                line_value = HASH_SEED
            line_value = (line_value ^ np.uint64(point)) * HASH_PRIME
            line_kept = line_value
            line_last = num_chars
            line_last_kind = kind
            # classes
            letters += (kind & ALPHA) != 0
            digits += (kind & DIGIT) != 0
            punctuation += (kind & PUNCTUATION) != 0
            symbols += (kind & SYMBOL) != 0
            uppercase += (kind & UPPER) != 0
            unspaced_letters += (kind & UNSPACED) != 0
            # sentence
            if kind & SENTENCE_END:
                if state == 3:
                    num_sentences += content
                    content = False
                    state = 0
                if state == 0:
                    soft = True
                if kind & FULL_END:
                    state = 2
                elif state == 0:
                    state = 1
                soft = soft and (point == 46 or point == 0x2026)
            elif state != 0 and not ((state == 1 or state == 2) and kind & CLOSER):
                if state == 2 or (state == 3 and not (soft and kind & LOWER)):
                    num_sentences += content
                    content = False
                state = 0
            # the word's bounds and hash
            if kind & (ALNUM | MARK):
                if not is_word and kind & ALNUM:
                    is_word = True
                    value = HASH_SEED
                    word_start = num_chars
                value = (value ^ np.uint64(lower[point])) * HASH_PRIME
                if is_word:
                    word_end = num_chars + 1
                    word_value = value
                    has_alpha = has_alpha or (kind & ALPHA) != 0
                    content = content or (kind & ALNUM) != 0
                dots = 0
                line_ellipsis = False
                if point < 0xC0 and point >= 0x80 and (previous == 0xC2 or previous == 0xC3):
                    mojibake += 1
            else:
                value = (value ^ np.uint64(point)) * HASH_PRIME
                # single characters of interest
                if point == 46:
                    dots += 1
                    if dots % 3 == 0:
                        num_ellipses += 1
                else:
                    dots = 0
                    if point == 0x2026:
                        num_ellipses += 1
                    elif point == 35:
                        num_hashes += 1
                    elif point == 123:
                        curly_brackets += 1
                    elif point == 0xFFFD:
                        replacement_chars += 1
                    elif point < 32 or (point >= 0x7F and point <= 0x9F):
                        control_chars += 1
                    latin = point < 0xC0 and point >= 0x80 and (previous == 0xC2 or previous == 0xC3)
                    mojibake += latin or (point == 0x20AC and previous == 0xE2)
                line_ellipsis = dots >= 3 or point == 0x2026
            previous = point
            num_chars += 1
            position += size
            if is_word and state == 0 and not single:
                # Most of most texts: lower-case ASCII letters inside a word need nothing but hash and count.
                place, stop = np.uint64(position), np.uint64(end)
                while place < stop and data[place] >= 97 and data[place] <= 122:
                    byte = np.uint64(data[place])
                    value = (value ^ byte) * HASH_PRIME
                    line_value = (line_value ^ byte) * HASH_PRIME
                    place += _ONE
                passed = np.int64(place) - position
                if passed > 0:
                    position += passed
                    num_chars += passed
                    letters += passed
                    word_end = num_chars
                    word_value = value
                    line_kept = line_value
                    line_last = num_chars - 1
                    line_last_kind = kinds[97]
                    line_ellipsis = False
                    has_alpha = True
                    content = True
                    dots = 0
                    previous = 97
            if position >= end:
                break
            point, size = decode(data, position)
            kind = kinds[point]
            if kind & SPACE or kind & UNSPACED or (single and not kind & MARK):
                break

        num_tokens += 1
        if is_word:
            length = word_end - word_start
            num_words += 1
            word_chars += length
            alpha_words += has_alpha
            max_word_chars = max(max_word_chars, length)
            if state == 1 and soft and length == 1 and has_alpha:
                state = 0  # an initial, as in "J. Smith"
            value = word_value
        if stored < capacity:
            token_hash[stored] = mix(value)
            token_chars[stored] = num_chars - token_start
            token_gap[stored] = gap
            stored += 1
            stored_chars = num_chars
        gap = 0

    if stored == num_tokens:
        stored_chars = num_chars
    row[0] = num_chars
    row[1] = num_words
    row[2] = num_tokens
    row[3] = word_chars
    row[4] = alpha_words
    row[5] = max_word_chars
    row[6] = num_hashes
    row[7] = num_ellipses
    row[8] = letters
    row[9] = digits
    row[10] = whitespace
    row[11] = punctuation
    row[12] = symbols
    row[13] = uppercase
    row[14] = unspaced_letters
    row[15] = curly_brackets
    row[16] = replacement_chars
    row[17] = control_chars
    row[18] = mojibake
    row[19] = newlines
    row[20] = num_lines
    row[21] = bullet_lines
    row[22] = ellipsis_lines
    row[23] = end_mark_lines
    row[24] = short_lines
    row[25] = long_lines
    row[26] = num_sentences
    row[27] = stored_chars
    return stored, stored_lines
