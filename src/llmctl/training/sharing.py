"""Cut the items of a step into micro-batches, as many on every replica."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def replica_parts(items: Sequence[Item], size: int, rank: int, replicas: int) -> list[tuple[list[Item], bool]]:
    """Return (items, counted) of each micro-batch of one replica, of at most `size` items.

    Every replica must make as many micro-batches, or the others wait for it for ever: where one has fewer, as in the
    last step of an epoch, it gets micro-batches that must not count.
    """
    mine = list(items[rank::replicas])
    parts = [(mine[start : start + size], True) for start in range(0, len(mine), size)]
    most = math.ceil(len(items) / replicas)
    while len(parts) < math.ceil(most / size):
        parts.append(([items[0]], False))
    return parts
