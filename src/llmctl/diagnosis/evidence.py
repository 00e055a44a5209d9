"""Everything that is known of a run, as arrays: its log, its validation, its ranks' events and its configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl.diagnosis.columns import EMPTY, Columns, Series

if TYPE_CHECKING:
    from llmctl.training.hang import Stuck

# Below this many logged steps noise and trend cannot be told apart; only faults that show at once are judged.
MIN_STEPS = 20


@dataclass
class Evidence:
    """What the rules look at.

    Attributes:
        path: the run, as the user named it.
        origin: who wrote it: ``llmctl``, ``Hugging Face Trainer``, ``TensorBoard``, ``CSV``.
        metrics: one row a step; our names (``loss``, ``grad_norm``, ``lr``, ``step_time_s``, …).
        validation: by the name of the validation set.
        ranks: by rank, the events of each process.
        config: the run's configuration, flat, keys joined by dots.
        stage: the command that made the run, if known.
        finished: whether the run came to its end; None if that cannot be told.
        restarts: steps at which the run was taken up again after a stop.
        hosts: by rank, the host that the process ran on.
        hang: where each process stood when the run was ended because it hung.
        notes: what a reader should know about the log itself (lines that could not be read, a cut last line).
    """

    path: Path
    origin: str
    metrics: Columns = field(default_factory=Columns)
    validation: dict[str, Columns] = field(default_factory=dict)
    ranks: dict[int, Columns] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    stage: str | None = None
    finished: bool | None = None
    restarts: list[int] = field(default_factory=list)
    hosts: dict[int, str] = field(default_factory=dict)
    hang: list[Stuck] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def num_steps(self) -> int:
        """Return how many steps were logged."""
        return self.metrics.num_steps

    @property
    def is_reinforcement(self) -> bool:
        """Tell whether the run maximises a reward: then `loss` is no measure of progress."""
        return "reward_mean" in self.metrics

    def series(self, name: str) -> Series:
        """Return a column of the log without its non-finite values; empty if it was not logged."""
        return self.metrics.series(name).finite()

    def raw(self, name: str) -> Series:
        """Return a column of the log as it is, NaN and infinity included."""
        return self.metrics.series(name)

    def validation_loss(self) -> dict[str, Series]:
        """Return the loss of each validation set that has one (perplexity's logarithm where only that was logged)."""
        found = {}
        for name, columns in self.validation.items():
            series = columns.series("loss").finite()
            if not len(series):
                perplexity = columns.series("perplexity").finite()
                perplexity = perplexity.where(perplexity.values > 0)
                series = Series(perplexity.steps, np.log(perplexity.values))
            if len(series):
                found[name] = series
        return found

    def setting(self, name: str) -> Any:
        """Return the value of a configuration key by its last part (``max_grad_norm``), or None."""
        if name in self.config:
            return self.config[name]
        for key, value in self.config.items():
            if key.rpartition(".")[2] == name:
                return value
        return None

    def number(self, name: str) -> float | None:
        """Return a configuration value as a number, or None."""
        value = self.setting(name)
        try:
            return None if value is None or isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            return None

    def steady(self, name: str) -> Series:
        """Return a timing column without what is slow by nature: the first steps (compilation, caches) and the
        first step after each restart.
        """
        series = self.series(name)
        if not len(series):
            return EMPTY
        skip = min(max(3, len(series) // 20), 20, len(series) // 2)
        keep = np.ones(len(series), dtype=bool)
        keep[:skip] = False
        for step in self.restarts:
            keep &= ~((series.steps >= step) & (series.steps < step + 2))
        return series.where(keep)

    def step_time(self) -> Series:
        """Return seconds per step."""
        times = self.steady("step_time_s")
        return times.where(times.values > 0)

    def share_of_step(self, name: str) -> Series:
        """Return a part's share of the step's time, at the steps that logged both."""
        part, whole = self.steady(name), self.step_time()
        common, left, right = np.intersect1d(part.steps, whole.steps, assume_unique=True, return_indices=True)
        return Series(common, part.values[left] / whole.values[right])
