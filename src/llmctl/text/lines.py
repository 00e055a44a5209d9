"""Drop lines from documents and strip citation marks, over the UTF-8 bytes of a whole batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from llmctl.text.buffers import frozen
from llmctl.text.compile import inline_kernel, kernel
from llmctl.text.statistics import contains_phrase
from llmctl.text.unicode import decode
from llmctl.text.words import ALNUM, DIGIT, LINE_END, MARK, SPACE, UNSPACED, UPPER, kinds

# What `edit_lines` can do, in the order in which a line's checks run. A value of None (nan) leaves a check out.
STRIP, CITATIONS, END_MARK, LONG_WORD, FEW_WORDS, JAVASCRIPT, POLICY, UPPERCASE, NUMERIC, COUNTER = range(10)
ACTIONS = (
    "strip_lines",
    "strip_citations",
    "line_end_mark",
    "line_long_word",
    "line_few_words",
    "line_javascript",
    "line_policy_phrase",
    "line_uppercase",
    "line_numeric",
    "line_counter",
)

POLICY_PHRASES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
COUNTED_THINGS = (
    "likes",
    "shares",
    "comments",
    "retweets",
    "reposts",
    "quotes",
    "bookmarks",
    "upvotes",
    "downvotes",
    "downloads",
    "views",
    "followers",
)

_ONE = np.uint64(1)  # unsigned indexes spare hot loops the check for negative ones


def _pack(phrases: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, phrases)]).astype(np.int64)
    return np.frombuffer("".join(phrases).encode(), np.uint8), offsets


_JAVASCRIPT_WORD = np.frombuffer(b"javascript", np.uint8)
_CITATIONS = _pack(("edit]", "citation needed]"))
_POLICY = _pack(POLICY_PHRASES)
_COUNTED = _pack(COUNTED_THINGS)
# The bytes that `_look_over` stops at: one table look-up is three times as fast as comparing with each.
_RARE = np.zeros(256, np.bool_)
_RARE[list(b"jJkKyYuU[")] = True


@inline_kernel
def _starts_with(data, start, end, phrase):
    if end - start < phrase.size:
        return False
    for index in range(phrase.size):
        byte = data[start + index]
        if byte != phrase[index] and not (65 <= byte <= 90 and byte | 32 == phrase[index]):
            return False
    return True


@inline_kernel
def _citation_length(data, position, end, names, name_offsets):
    """Return the length of ``[12]``, ``[]``, ``[edit]`` or ``[citation needed]`` at `position`, or 0."""
    after = position + 1
    while after < end and 48 <= data[after] <= 57:
        after += 1
    if after < end and data[after] == 93:
        return after + 1 - position
    for index in range(name_offsets.size - 1):
        name = names[name_offsets[index] : name_offsets[index + 1]]
        if end - position - 1 >= name.size:
            same = True
            for offset in range(name.size):
                same = same and data[position + 1 + offset] == name[offset]
            if same:
                return name.size + 1
    return 0


@inline_kernel
def _is_counter(data, start, end, kinds, things, thing_offsets):
    """Tell whether a line is a count of reactions and nothing else, such as ``3.2k likes``."""
    position = start
    while position < end:
        point, size = decode(data, position)
        if kinds[point] & ALNUM:
            break
        position += size
    if position >= end or not 48 <= data[position] <= 57:
        return False
    while position < end and (48 <= data[position] <= 57 or data[position] == 44 or data[position] == 46):
        position += 1
    if position < end and data[position] | 32 in (107, 109, 98):
        position += 1
    spaces = position
    while position < end and (data[position] == 32 or data[position] == 9):
        position += 1
    if position == spaces:
        return False
    for index in range(thing_offsets.size - 1):
        thing = things[thing_offsets[index] : thing_offsets[index + 1]]
        if _starts_with(data, position, end, thing):
            position += thing.size
            while position < end:
                point, size = decode(data, position)
                if kinds[point] & ALNUM:
                    return False
                position += size
            return True
    return False


@inline_kernel
def _look_over(data, start, end):
    """Look through a line once for what few have.

    Returns:
        whether it may have "javascript" or a policy phrase (told by their rarest letters; wrong only by yes), and
        whether there is a ``[`` (then a phrase may lie around a citation mark).
    """
    bracket = False
    place, stop = np.uint64(start), np.uint64(end)
    while place < stop:
        if not _RARE[data[place]]:
            place += _ONE
            continue
        position = np.int64(place)
        place += _ONE
        letter = data[position] | 32
        if letter == 106:  # ja(vascript)
            if position + 1 < end and data[position + 1] | 32 == 97:
                return True, True
        elif letter == 107:  # (c)ook(ie)
            if position - start > 1 and data[position - 1] | 32 == 111 and data[position - 2] | 32 == 111:
                return True, True
        elif letter == 121:  # (po)licy
            if position - start > 2 and data[position - 1] | 32 == 99 and data[position - 3] | 32 == 108:
                return True, True
        elif letter == 117:  # (terms o)f u(se)
            if position - start > 1 and data[position - 1] == 32 and data[position - 2] | 32 == 102:
                return True, True
        else:
            bracket = True
    return bracket, bracket


@inline_kernel
def _check_line(data, start, end, kinds, wanted, mentions, javascript, phrases, phrase_offsets, things, thing_offsets):
    """Return the number of the check that a line fails, 0 if none, -1 if the line is blank.

    Args:
        mentions: the line may have "javascript" or a policy phrase.
    """
    start, end = _stripped(data, start, end, kinds)
    if start == end:
        return -1
    if wanted[END_MARK] > 0:
        lead = end - 1
        while data[lead] & 0xC0 == 0x80:
            lead -= 1
        point, _ = decode(data, lead)
        dots = point == 46 and end - start > 2 and data[end - 2] == 46 and data[end - 3] == 46
        if not kinds[point] & LINE_END or dots or point == 0x2026:
            return END_MARK
    tokens, longest, chars, upper, digits = _count_line(data, start, end, kinds, wanted)
    if longest > wanted[LONG_WORD]:
        return LONG_WORD
    if tokens < wanted[FEW_WORDS]:
        return FEW_WORDS
    if wanted[JAVASCRIPT] > 0 and mentions and contains_phrase(data, start, end, javascript):
        return JAVASCRIPT
    if wanted[POLICY] > 0 and mentions:
        for index in range(phrase_offsets.size - 1):
            if contains_phrase(data, start, end, phrases[phrase_offsets[index] : phrase_offsets[index + 1]]):
                return POLICY
    if upper > wanted[UPPERCASE] * chars:
        return UPPERCASE
    if digits > wanted[NUMERIC] * chars:
        return NUMERIC
    if wanted[COUNTER] > 0 and _is_counter(data, start, end, kinds, things, thing_offsets):
        return COUNTER
    return 0


@inline_kernel
def _count_line(data, start, end, kinds, wanted):
    """Count the tokens, the characters of the longest one, and characters, upper-case letters and digits of a line.

    The line has no white space around it. Counting stops where no check can come out differently any more.
    """
    enough = 0.0 if math.isnan(wanted[FEW_WORDS]) else wanted[FEW_WORDS]
    whole = not (math.isnan(wanted[UPPERCASE]) and math.isnan(wanted[NUMERIC])) or end - start > wanted[LONG_WORD]
    chars = tokens = token_chars = longest = upper = digits = 0
    unspaced_token = False
    position = start
    while position < end:
        if not whole and tokens >= enough:
            break
        if token_chars > 0 and not unspaced_token:
            # Most of most lines: lower-case ASCII letters inside a word.
            place, stop = np.uint64(position), np.uint64(end)
            while place < stop and data[place] >= 97 and data[place] <= 122:
                place += _ONE
            passed = np.int64(place) - position
            if passed > 0:
                position += passed
                token_chars += passed
                chars += passed
                longest = max(longest, token_chars)
                continue
        point, size = decode(data, position)
        kind = kinds[point]
        position += size
        chars += 1
        if kind & SPACE:
            token_chars = 0
            continue
        upper += (kind & UPPER) != 0
        digits += (kind & DIGIT) != 0
        if token_chars == 0 or kind & UNSPACED or (unspaced_token and not kind & MARK):
            tokens += 1
            token_chars = 0
            unspaced_token = (kind & UNSPACED) != 0
        token_chars += 1
        longest = max(longest, token_chars)
    return tokens, longest, chars, upper, digits


@inline_kernel
def _copy_without_citations(data, start, end, names, name_offsets, out, written):
    """Copy a line without its citation marks; return where the copy ends and how many marks there were."""
    marks = 0
    position = start
    while position < end:
        begun = position
        position += 1
        while position < end and data[position] != 91:
            position += 1
        if data[begun] == 91:
            length = _citation_length(data, begun, end, names, name_offsets)
            marks += length > 0
            begun += length
        for source in range(begun, position):
            out[written] = data[source]
            written += 1
    return written, marks


@kernel
def _edit(
    data, offsets, kinds, wanted_by_policy, policies, javascript, citations, phrases, things, out, out_offsets, dropped
):
    written = 0
    for document in range(offsets.size - 1):
        out_offsets[document] = written
        start, end = offsets[document], offsets[document + 1]
        wanted = wanted_by_policy[policies[document]]
        if np.all(np.isnan(wanted)):
            out[written : written + end - start] = data[start:end]
            written += end - start
            continue
        kept = 0
        look = wanted[JAVASCRIPT] > 0 or wanted[POLICY] > 0 or wanted[CITATIONS] > 0
        line_start = start
        while line_start <= end:
            place, stop = np.uint64(line_start), np.uint64(end)
            while place < stop and data[place] != 10:
                place += _ONE
            line_end = np.int64(place)
            first, last = line_start, line_end
            if wanted[STRIP] > 0:
                first, last = _stripped(data, line_start, line_end, kinds)
            mentions = bracket = False
            if look:
                mentions, bracket = _look_over(data, first, last)
            mark = written
            if kept:
                out[written] = 10
                written += 1
            if bracket and wanted[CITATIONS] > 0:
                line_at = written
                written, marks = _copy_without_citations(data, first, last, citations[0], citations[1], out, written)
                dropped[document, CITATIONS] += marks
                verdict = _check_line(
                    out, line_at, written, kinds, wanted, mentions,
                    javascript, phrases[0], phrases[1], things[0], things[1],
                )  # fmt: skip
            else:
                verdict = _check_line(
                    data, first, last, kinds, wanted, mentions,
                    javascript, phrases[0], phrases[1], things[0], things[1],
                )  # fmt: skip
                if verdict <= 0:
                    out[written : written + last - first] = data[first:last]
                    written += last - first
            if verdict > 0:
                dropped[document, verdict] += 1
                written = mark
            elif verdict < 0 and wanted[FEW_WORDS] > 0:
                written = mark
            else:
                kept += 1
            line_start = line_end + 1
    out_offsets[offsets.size - 1] = written
    return written


@inline_kernel
def _stripped(data, start, end, kinds):
    """Return the bounds of a line without the white space around it."""
    while start < end:
        point, size = decode(data, start)
        if not kinds[point] & SPACE:
            break
        start += size
    while end > start:
        lead = end - 1
        while data[lead] & 0xC0 == 0x80:
            lead -= 1
        point, _ = decode(data, lead)
        if not kinds[point] & SPACE:
            break
        end = lead
    return start, end


def edit_lines(
    data: np.ndarray, offsets: np.ndarray, actions: Sequence[dict[str, float]], policies: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Apply line actions to a batch of documents.

    A line's checks see it after citation marks are stripped. Blank lines go when short lines go, and stay otherwise.

    Args:
        data, offsets: from `text_buffers`.
        actions: per policy {name of `ACTIONS`: its limit, or 1 for "on"}.
        policies: int32 of shape [documents]: which of `actions` applies.

    Returns:
        data and offsets of the edited texts, and int64 of shape [documents, len(ACTIONS)]: how many lines each check
        dropped (for citations: how many marks).
    """
    wanted = np.full((max(len(actions), 1), len(ACTIONS)), math.nan)
    for row, chosen in zip(wanted, actions, strict=False):
        for name, limit in chosen.items():
            row[ACTIONS.index(name)] = limit
    documents = len(offsets) - 1
    size = int(offsets[-1] - offsets[0]) if documents else 0
    out = np.empty(size + 1, np.uint8)  # one more: a newline is written before it is known whether its line stays
    out_offsets = np.zeros(documents + 1, np.int64)
    dropped = np.zeros((documents, len(ACTIONS)), np.int64)
    written = _edit(
        frozen(data), frozen(offsets), kinds(), wanted, policies.astype(np.int32),
        _JAVASCRIPT_WORD, _CITATIONS, _POLICY, _COUNTED, out, out_offsets, dropped,
    )  # fmt: skip
    return out[:written], out_offsets, dropped
