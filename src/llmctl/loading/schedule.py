"""Say which sequence of which column every sample of a run is: a pure function of (plan, step)."""

from __future__ import annotations

import numpy as np

from llmctl.loading.kernels import take_turns
from llmctl.loading.mixture import MixturePlan
from llmctl.loading.packing import by_value

# Steps that are passed over at once on the way to a later one: bounds the memory that it takes.
MAX_STEPS_AT_ONCE = 1_000


class Schedule:
    """The samples of each step of a plan.

    Within a phase the columns take turns so that after every sample each of them is within one sample of its share
    of the phase so far. The samples of a column are its sequences 0, 1, 2, … over the whole run.
    """

    def __init__(self, plan: MixturePlan) -> None:
        self.plan = plan
        self._counts = np.array([phase.counts for phase in plan.phases], dtype=np.int64)
        # Where the last answer ended: (phase, step, samples of each column taken in the phase).
        self._answer: tuple[int, np.ndarray, np.ndarray] | None = None
        self._state = (-1, 0, np.zeros(len(plan.columns), dtype=np.int64))

    def step(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (column, number of the sequence in the column) of each sample of a step, int64.

        Args:
            step: from 1.
        """
        if self._answer is not None and self._answer[0] == step:
            return self._answer[1], self._answer[2]
        columns, numbers = self._choose(step)
        self._answer = (step, columns, numbers)
        return columns, numbers

    def _choose(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        phase = self._phase(step)
        first = self.plan.phases[phase].first_step
        at_phase, at_step, taken = self._state
        if at_phase != phase or at_step > step:
            at_step, taken = first, np.zeros_like(taken)
        size = self.plan.global_batch_size
        for start in range(at_step, step, MAX_STEPS_AT_ONCE):
            take_turns(self._counts[phase], taken, (min(step, start + MAX_STEPS_AT_ONCE) - start) * size)
        before = self._counts[:phase].sum(axis=0) + taken
        columns = take_turns(self._counts[phase], taken, size)
        self._state = (phase, step + 1, taken)
        numbers = np.empty(size, dtype=np.int64)
        for column, chosen in by_value(columns):
            numbers[chosen] = before[column] + np.arange(len(chosen))
        return columns, numbers

    def _phase(self, step: int) -> int:
        for index, phase in enumerate(self.plan.phases):
            if phase.first_step <= step < phase.first_step + phase.steps:
                return index
        raise IndexError(f"step {step} is not in the plan")
