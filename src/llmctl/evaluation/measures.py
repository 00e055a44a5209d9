"""Measures of texts and answers, as plain functions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of the chance that one of k samples is right: 1 − C(n−c, k)/C(n, k) (Chen 2021)."""
    if samples - correct < k:
        return 1.0
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def last_number(text: str) -> Decimal | None:
    """Return the number after the last ``####``, or else the last number of a text; None where there is none."""
    found = _NUMBER.findall(text.rsplit("####", 1)[-1]) or _NUMBER.findall(text)
    if not found:
        return None
    try:
        return Decimal(found[-1].replace(",", "")).normalize()
    except InvalidOperation:
        return None


def is_right(response: str, wanted: str, check: str) -> bool:
    """Tell whether an answer is right: its last number, or its whole text without outer white space."""
    if check == "exact":
        return response.strip() == wanted.strip()
    number = last_number(wanted)
    return number is not None and last_number(response) == number


def win_rate(forward: Sequence[int], backward: Sequence[int]) -> dict[str, float]:
    """Return how often the first side wins, from verdicts in both orders.

    Args:
        forward: 1 where the first text won, 2 where the second did, 0 for a tie.
        backward: the same with the texts exchanged.
    """
    points = [{1: 1.0, 2: 0.0, 0: 0.5}[verdict] for verdict in forward]
    points += [{1: 0.0, 2: 1.0, 0: 0.5}[verdict] for verdict in backward]
    agree = sum((one, two) in ((1, 2), (2, 1), (0, 0)) for one, two in zip(forward, backward, strict=True))
    first = sum(verdict == 1 for verdict in (*forward, *backward))
    decided = sum(verdict != 0 for verdict in (*forward, *backward))
    return {
        "win_rate": sum(points) / len(points),
        "orders_agree": agree / len(forward),
        "first_place_wins": first / decided if decided else 0.5,
    }
