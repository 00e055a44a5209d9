"""How varied generated text is, from its token ids."""

from __future__ import annotations

from collections.abc import Sequence


def distinct(rows: Sequence[Sequence[int]], size: int) -> float | None:
    """Return the share of different n-grams among all of token ids (Li et al. 2016); None where there are none."""
    grams = [tuple(row[start : start + size]) for row in rows for start in range(len(row) - size + 1)]
    return len(set(grams)) / len(grams) if grams else None


def repeated_share(rows: Sequence[Sequence[int]], size: int = 4) -> float:
    """Return which share of n-grams stands in its own row already: text that goes round in circles; 0 without any."""
    repeated, total = 0, 0
    for row in rows:
        grams = [tuple(row[start : start + size]) for start in range(len(row) - size + 1)]
        repeated += len(grams) - len(set(grams))
        total += len(grams)
    return repeated / total if total else 0.0
