"""How surprising every token of a text is to an n-gram model, over UTF-8 bytes and one hash table.

Tokens are those of `text.grams`: words in small letters with digits as ``0``, single characters of scripts written
without spaces, single symbols. An n-gram is the hash of its tokens; the model is a table from such hashes to
log-probability and backoff weight, as in the ARPA format.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmctl.text.buffers import frozen
from llmctl.text.compile import inline_kernel, kernel
from llmctl.text.grams import BREAKS_WORD, character_tables
from llmctl.text.unicode import SPACE, decode

MAX_ORDER = 5
# Tokens of a document that are looked at; a longer text is judged by its beginning.
MAX_TOKENS = 5_000
WINDOW = 32  # tokens; the surprise of a passage is its mean over so many

_PRIME = np.uint64(0x9E3779B97F4A7C15)
_TOKEN_PRIME = np.uint64(0xC2B2AE3D27D4EB4F)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_ONE = np.uint64(1)
START = np.uint64(0x5851F42D4C957F2D)  # the token before the first of a document
COLUMNS = ("tokens", "total", "window_count", "window_sum", "window_squares", "token_squares")


@dataclass(frozen=True)
class Table:
    """An open hash table of n-grams.

    Attributes:
        keys: uint64 of shape [slots], a power of two; 0 where empty.
        values: float32 of shape [slots, 2]: log-probability of the last token (nats), log of the backoff weight.
        order: the longest n-grams.
        unknown: log-probability of a token that was never seen, before backoff.
    """

    keys: np.ndarray
    values: np.ndarray
    order: int
    unknown: float


@inline_kernel
def _mixed(value):
    value ^= value >> np.uint64(32)
    value *= _MIX
    value ^= value >> np.uint64(29)
    return value


@inline_kernel
def first_key(token):
    """Return the key of an n-gram of one token."""
    return _mixed(token * _PRIME + _ONE) | _ONE


@inline_kernel
def longer_key(context, token):
    """Return the key of an n-gram from the key of all but its last token, and that token."""
    return _mixed(context * _PRIME + (token ^ (context >> np.uint64(7)))) | _ONE


@inline_kernel
def _next_token(data, position, end, folded, flags):
    """Return (token, position after it); the token is 0 at the end."""
    word = np.uint64(0)
    while position < end:
        point, width = decode(data, position)
        flag = flags[point]
        if flag & np.uint32(BREAKS_WORD):
            if word != 0:
                return word, position
            position += width
            if flag & np.uint32(SPACE):
                continue
            return (np.uint64(folded[point]) + _ONE) * _TOKEN_PRIME, position
        word = (word + np.uint64(folded[point]) + _ONE) * _TOKEN_PRIME
        position += width
    return word, position


@kernel
def _tokens(data, offsets, folded, flags, max_tokens, out, ends):
    written = np.int64(0)
    for document in range(offsets.size - 1):
        position, end = offsets[document], offsets[document + 1]
        out[written] = START
        written += 1
        count = 0
        while count < max_tokens:
            token, position = _next_token(data, position, end, folded, flags)
            if token == 0:
                break
            out[written] = token
            written += 1
            count += 1
        ends[document] = written


@inline_kernel
def _find(keys, key):
    mask = np.uint64(keys.size - 1)
    slot = (key >> np.uint64(20)) & mask
    while keys[slot] != 0:
        if keys[slot] == key:
            return np.int64(slot)
        slot = (slot + _ONE) & mask
    return np.int64(-1)


@kernel
def _fill(keys, values, new_keys, log_probabilities, backoffs):
    mask = np.uint64(keys.size - 1)
    for index in range(new_keys.size):
        slot = (new_keys[index] >> np.uint64(20)) & mask
        while keys[slot] != 0:
            slot = (slot + _ONE) & mask
        keys[slot] = new_keys[index]
        values[slot, 0] = log_probabilities[index]
        values[slot, 1] = backoffs[index]


@kernel
def _surprise(data, offsets, folded, flags, keys, values, order, unknown, max_tokens, window, out):
    context = np.zeros(MAX_ORDER + 1, np.uint64)  # context[n]: key of the last n tokens
    following = np.zeros(MAX_ORDER + 1, np.uint64)
    for document in range(offsets.size - 1):
        position, end = offsets[document], offsets[document + 1]
        known = 1  # so many of the last tokens are an n-gram of the model
        context[1] = first_key(START)
        tokens = windows = in_window = 0
        total = token_squares = window_sum = window_squares = passage = 0.0
        while tokens < max_tokens:
            token, position = _next_token(data, position, end, folded, flags)
            if token == 0:
                break
            following[1] = first_key(token)
            length = min(known + 1, order)
            for n in range(2, length + 1):
                following[n] = longer_key(context[n - 1], token)
            log_probability = 0.0
            while length >= 1:
                slot = _find(keys, following[length])
                if slot >= 0:
                    log_probability += values[slot, 0]
                    break
                if length > 1:
                    slot = _find(keys, context[length - 1])
                    if slot >= 0:
                        log_probability += values[slot, 1]
                else:
                    log_probability += unknown
                length -= 1
            known = min(length, order - 1)
            for n in range(1, known + 1):
                context[n] = following[n]
            tokens += 1
            total -= log_probability
            token_squares += log_probability * log_probability
            passage -= log_probability
            in_window += 1
            if in_window == window:
                mean = passage / window
                windows += 1
                window_sum += mean
                window_squares += mean * mean
                passage = 0.0
                in_window = 0
        out[document, 0] = tokens
        out[document, 1] = total
        out[document, 2] = windows
        out[document, 3] = window_sum
        out[document, 4] = window_squares
        out[document, 5] = token_squares


def token_stream(data: np.ndarray, offsets: np.ndarray, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of every document, each after the token `START`.

    Args:
        data, offsets: from `text_buffers`.
        max_tokens: most tokens of a document.

    Returns:
        (tokens, uint64, one document after the other; ends, int64 of shape [documents])
    """
    folded, flags = character_tables()
    room = int(np.minimum(np.diff(offsets), max_tokens).sum()) + len(offsets)
    out, ends = np.empty(room, np.uint64), np.zeros(len(offsets) - 1, np.int64)
    _tokens(frozen(data), frozen(offsets), folded, flags, max_tokens, out, ends)
    return out[: ends[-1] if len(ends) else 0].copy(), ends


def build_table(
    keys: np.ndarray, log_probabilities: np.ndarray, backoffs: np.ndarray, order: int, unknown: float
) -> Table:
    """Put n-grams of all orders in one table. All arguments as in `Table`, one row per n-gram."""
    slots = 16
    while slots < 2 * len(keys):
        slots *= 2
    table = Table(np.zeros(slots, np.uint64), np.zeros((slots, 2), np.float32), order, unknown)
    _fill(table.keys, table.values, keys, log_probabilities, backoffs)
    return table


def surprise(
    data: np.ndarray, offsets: np.ndarray, table: Table, max_tokens: int = MAX_TOKENS
) -> dict[str, np.ndarray]:
    """Measure how surprising documents are.

    Args:
        data, offsets: from `text_buffers`.
        table: the model.
        max_tokens: most tokens of a document that are looked at.

    Returns:
        {column: float64 of shape [documents]}, `COLUMNS`: number of tokens, sum of their surprise (nats), number of
        whole windows of `WINDOW` tokens, sum and sum of squares of the windows' mean surprise, and the sum of squares
        of the tokens' surprise.
    """
    folded, flags = character_tables()
    out = np.zeros((len(offsets) - 1, len(COLUMNS)))
    _surprise(
        frozen(data), frozen(offsets), folded, flags, frozen(table.keys), frozen(table.values), table.order,
        table.unknown, max_tokens, WINDOW, out,
    )  # fmt: skip
    return {name: np.ascontiguousarray(out[:, number]) for number, name in enumerate(COLUMNS)}
