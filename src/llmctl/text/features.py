"""Hashed features of documents: their tokens and pairs of neighbouring tokens, as rows of a sparse matrix."""

from __future__ import annotations

import numpy as np

from llmctl.text.compile import kernel
from llmctl.text.hashing import fmix64

_STEP = np.uint64(0x9FB21C651E98DF25)


@kernel
def feature_counts(tokens, ends, most, bits):
    """Count the features of every document.

    Args:
        tokens, ends: from `text.skeletons.token_sequences`.
        most: so many tokens of each document count.
        bits: of a feature's number.

    Returns:
        (features, counts, row_ends): int32 and float32, ascending features of each document, and int64 of shape
        [rows + 1]: a matrix in compressed sparse rows.
    """
    rows = len(ends) - 1
    capacity = 0
    for row in range(rows):
        capacity += 2 * min(ends[row + 1] - ends[row], most)
    features = np.empty(capacity, np.int32)
    counts = np.empty(capacity, np.float32)
    row_ends = np.zeros(rows + 1, np.int64)
    hashed = np.empty(2 * most, np.int32)
    shift = np.uint64(64 - bits)
    filled = 0
    for row in range(rows):
        made = 0
        begin, end = ends[row], min(ends[row + 1], ends[row] + most)
        for place in range(begin, end):
            token = np.uint64(tokens[place])
            hashed[made] = np.int32(fmix64(token * _STEP) >> shift)
            made += 1
            if place + 1 < end:
                pair = (token << np.uint64(32)) | np.uint64(tokens[place + 1])
                hashed[made] = np.int32(fmix64(pair * _STEP) >> shift)
                made += 1
        ordered = np.sort(hashed[:made])
        first = filled
        for place in range(made):
            if filled > first and features[filled - 1] == ordered[place]:
                counts[filled - 1] += np.float32(1)
            else:
                features[filled] = ordered[place]
                counts[filled] = np.float32(1)
                filled += 1
        row_ends[row + 1] = filled
    return features[:filled].copy(), counts[:filled].copy(), row_ends


@kernel
def feature_numbers(keys, bits):
    """Return the features of tokens, and of pairs given as ``first << 32 | second``; uint64 to int32."""
    features = np.empty(len(keys), np.int32)
    for place in range(len(keys)):
        features[place] = np.int32(fmix64(keys[place] * _STEP) >> np.uint64(64 - bits))
    return features
