"""Estimate an n-gram model: interpolated Kneser–Ney, one discount an order (Kneser & Ney 1995; Chen & Goodman 1999).

N-grams are hashes (`text.surprise`), so counting is sorting. N-grams of three and more tokens that were seen once are
left out, and their share of the probability goes to the shorter ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmctl.text.compile import kernel
from llmctl.text.surprise import START, first_key, longer_key

PRUNED_FROM = 3  # n-grams of this order on are left out if seen once


@dataclass(frozen=True)
class NgramCounts:
    """The distinct n-grams of one order.

    Attributes:
        keys: uint64, sorted.
        raw: int64, how often each was seen.
        context: uint64, key of all but the last token (0 for single tokens).
        suffix: uint64, key of all but the first token (0 for single tokens).
    """

    keys: np.ndarray
    raw: np.ndarray
    context: np.ndarray
    suffix: np.ndarray


@dataclass(frozen=True)
class Estimates:
    """An estimated model, all orders together: see `text.surprise.Table`."""

    keys: np.ndarray
    log_probabilities: np.ndarray
    backoffs: np.ndarray
    unknown: float
    by_order: list[int]


@kernel
def _keys_of_order(tokens, ends, shorter, order, out, place):
    """Fill in the keys of the n-grams of one order and where each ends; return how many there are."""
    written = 0
    begin = np.int64(0)
    for document in range(ends.size):
        for index in range(begin + order - 1, ends[document]):
            if order == 1:
                out[index] = first_key(tokens[index])
            else:
                out[index] = longer_key(shorter[index - 1], tokens[index])
            place[written] = index
            written += 1
        begin = ends[document]
    return written


def count_ngrams(tokens: np.ndarray, ends: np.ndarray, order: int) -> list[NgramCounts]:
    """Count the n-grams of orders 1 to `order` of documents from `token_stream`."""
    counted = []
    shorter = np.zeros(len(tokens), np.uint64)
    for n in range(1, order + 1):
        keys_at = np.zeros(len(tokens), np.uint64)
        place = np.empty(len(tokens), np.int64)
        place = place[: _keys_of_order(tokens, ends, shorter, n, keys_at, place)]
        keys, first, raw = np.unique(keys_at[place], return_index=True, return_counts=True)
        at = place[first]
        nothing = np.zeros(len(keys), np.uint64)
        context = shorter[at - 1] if n > 1 else nothing
        counted.append(NgramCounts(keys, raw, context, shorter[at] if n > 1 else nothing))
        shorter = keys_at
    return counted


def estimate(counted: list[NgramCounts]) -> Estimates:
    """Turn counts into log-probabilities and backoff weights.

    The probability of a token after a context h is (c − D) / total(h) + backoff(h) · p(token after a shorter context);
    c is the count for the highest order, and below it the number of different tokens before the n-gram.
    """
    probabilities: list[np.ndarray] = []
    backoffs = [np.ones(len(level.keys)) for level in counted]
    kept = [level.raw > 1 if n >= PRUNED_FROM else level.raw > 0 for n, level in enumerate(counted, 1)]
    unknown = 0.0
    for n, level in enumerate(counted, 1):
        counts = _adjusted(counted, n)
        if n == 1:
            # The token that stands before a document follows nothing.
            counts[level.keys == first_key(START)] = 0
        discount = _discount(counts)
        if n == 1:
            total, seen = counts.sum(), int((counts > 0).sum())
            # As many tokens are thought to be still unseen as were seen once.
            base = discount * seen / total / (seen + max(int(((level.raw == 1) & (counts > 0)).sum()), 1))
            probabilities.append(np.maximum(counts - discount, 0) / total + base)
            unknown = float(np.log(base))
            continue
        parents = np.searchsorted(counted[n - 2].keys, level.context)
        total = np.bincount(parents, weights=counts, minlength=len(counted[n - 2].keys))
        shares = (counts - discount) / total[parents]
        stays = kept[n - 1]
        used = np.bincount(parents[stays], weights=shares[stays], minlength=len(total))
        weight = np.where(total > 0, 1 - used, 1.0)
        backoffs[n - 2] = np.maximum(weight, 1e-12)
        lower = probabilities[n - 2][np.searchsorted(counted[n - 2].keys, level.suffix)]
        probabilities.append(shares + weight[parents] * lower)
    chosen = [np.flatnonzero(flags) for flags in kept]
    return Estimates(
        np.concatenate([level.keys[rows] for level, rows in zip(counted, chosen, strict=True)]),
        np.concatenate([np.log(values[rows]) for values, rows in zip(probabilities, chosen, strict=True)]),
        np.concatenate([np.log(values[rows]) for values, rows in zip(backoffs, chosen, strict=True)]),
        unknown,
        [len(rows) for rows in chosen],
    )


def _adjusted(counted: list[NgramCounts], n: int) -> np.ndarray:
    """Return the counts that order `n` is estimated from, float64."""
    level = counted[n - 1]
    if n == len(counted):
        return level.raw.astype(np.float64)
    above = counted[n]
    different = np.bincount(np.searchsorted(level.keys, above.suffix), minlength=len(level.keys))
    # What only ever stands at the beginning of documents has nothing before it.
    return np.where(different > 0, different, level.raw).astype(np.float64)


def _discount(counts: np.ndarray) -> float:
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    # With so few n-grams that one of the two is missing: the middle of what is possible.
    return once / (once + 2 * twice) if once and twice else 0.5
