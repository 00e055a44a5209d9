"""Orders that depend on a seed alone: permutations without tables, held-out documents, keys of samples."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix64(values: np.ndarray) -> np.ndarray:
    """Return well-mixed 64-bit numbers (SplitMix64's finaliser), uint64 of the same shape."""
    with np.errstate(over="ignore"):
        mixed = values.astype(np.uint64) + _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


@lru_cache(maxsize=4096)
def key_of(*numbers: int) -> np.uint64:
    """Return one 64-bit key for a row of numbers, such as (seed, stream, epoch)."""
    key = np.zeros(1, dtype=np.uint64)
    for number in numbers:
        key = mix64(key ^ mix64(np.array([number % 2**64], dtype=np.uint64)))
    return np.uint64(key[0])


def permuted(values: np.ndarray, size: int, key: np.uint64) -> np.ndarray:
    """Return the places of values under the permutation of range(size) that the key names, int64."""
    from llmctl.loading.kernels import permute

    result: np.ndarray = permute(np.ascontiguousarray(values, dtype=np.int64), size, key)
    return result


def sample_keys(seed: int, samples: np.ndarray) -> np.ndarray:
    """Return a number for each sample of a run, int64: dropout masks depend on it."""
    seeded = mix64(np.array([seed], dtype=np.uint64))
    return (mix64(samples.astype(np.uint64) ^ seeded) >> np.uint64(1)).astype(np.int64)


def hold_out(num_documents: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split documents by a hash of their number: (training, held out), int64, each in order.

    With a fraction above 0 and at least two documents, at least one is held out and at least one is not.
    """
    numbers = np.arange(num_documents, dtype=np.uint64)
    hashes = mix64(numbers ^ mix64(np.array([seed + 1], dtype=np.uint64)))
    held = hashes < np.uint64(int(fraction * float(2**64 - 2**12)))
    if fraction > 0 and num_documents > 1 and not held.any():
        held[int(hashes.argmin())] = True
    if num_documents and held.all():
        held[int(hashes.argmax())] = False
    return np.flatnonzero(~held), np.flatnonzero(held)


def choose_validation(lengths: np.ndarray, members: np.ndarray, max_tokens: int) -> np.ndarray:
    """Return which held-out documents are used, in order.

    Whole documents, so that their bytes are known: taken in the order of a hash until `max_tokens` are reached (0
    takes all); one that would more than double the amount is left out, unless there is no other.
    """
    if not max_tokens:
        return members
    chosen: list[int] = []
    total = 0
    for document in members[np.argsort(mix64(members), kind="stable")]:
        length = int(lengths[document])
        if total >= max_tokens:
            break
        if total + length <= 2 * max_tokens:
            chosen.append(int(document))
            total += length
    if not chosen:
        chosen = [int(members[int(lengths[members].argmin())])]
    return np.array(sorted(chosen), dtype=np.int64)
