"""Which items each step takes: a new order in every epoch, a function of the seed and the step alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Order:
    """A shuffled, endless walk over `count` items in batches.

    Attributes:
        count: items.
        batch_size: items of a step; the last step of an epoch may have fewer, unless `wrap`.
        seed: of the order.
        wrap: fill the last batch of an epoch from the next one.
    """

    count: int
    batch_size: int
    seed: int
    wrap: bool = False

    @property
    def steps_per_epoch(self) -> int:
        """Return the steps of one pass over the items, rounded up."""
        return -(-self.count // self.batch_size)

    def step(self, step: int) -> list[int]:
        """Return the items of a step, counted from 1."""
        if not self.wrap:
            epoch, position = divmod(step - 1, self.steps_per_epoch)
            return self._epoch(epoch)[position * self.batch_size : (position + 1) * self.batch_size].tolist()
        start = (step - 1) * self.batch_size
        found: list[int] = []
        while len(found) < self.batch_size:
            epoch, position = divmod(start + len(found), self.count)
            found += self._epoch(epoch)[position : position + self.batch_size - len(found)].tolist()
        return found

    def _epoch(self, epoch: int) -> np.ndarray:
        return np.random.Generator(np.random.PCG64([self.seed, epoch])).permutation(self.count)
