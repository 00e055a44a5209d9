"""Watch the gradient norm: past a limit the gradient is scaled down to it and the learning rate is lowered.

The limit for a step is known before the step, from the steps before it; so every engine and layout clips alike, and a
resumed run does what the uninterrupted one would have done.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

from llmctl.training.config import TrainingConfig

# Scales the median absolute deviation to the standard deviation of a normal distribution.
MAD_TO_DEVIATION = 1.4826
# Norms of a quiet run barely differ; below this share of the median nothing counts as a deviation.
LEAST_DEVIATION = 0.05
# Fewer norms than this say nothing about what is usual.
LEAST_HISTORY = 20
# The learning rate is never lowered below this share of the schedule.
LEAST_LR_FACTOR = 0.1


class GradientMonitor:
    """The gradient monitor of one engine.

    Attributes:
        lr_factor: what the schedule's learning rate is multiplied by.
        events: steps at which the norm was over the limit, newest last (the last hundred).
        num_events: how many there were.
    """

    def __init__(self, config: TrainingConfig) -> None:
        self.config = config
        self.lr_factor = 1.0
        self.num_events = 0
        self.events: deque[int] = deque(maxlen=100)
        self._norms: deque[float] = deque(maxlen=config.gradient_window)
        self._quiet_until = 0

    @property
    def limit(self) -> float:
        """Return the norm from which the next step counts as an event; infinity while there is none."""
        if self.config.gradient_monitor == "off":
            return math.inf
        if self.config.gradient_monitor == "absolute":
            return self.config.gradient_limit
        if len(self._norms) < LEAST_HISTORY:
            return math.inf
        median = statistics.median(self._norms)
        deviation = MAD_TO_DEVIATION * statistics.median(abs(norm - median) for norm in self._norms)
        return median + self.config.gradient_deviations * max(deviation, LEAST_DEVIATION * median)

    @property
    def max_grad_norm(self) -> float:
        """Return what the next step's gradient is scaled down to: the usual clip or the limit; 0 for neither."""
        limit = min(self.config.max_grad_norm or math.inf, self.limit)
        return 0.0 if math.isinf(limit) else limit

    def observe(self, step: int, norm: float) -> str | None:
        """Take the norm of a finished step, before clipping.

        Returns:
            What was done about it, in words; None if the norm was usual.
        """
        limit = self.limit
        if norm <= limit or (not math.isfinite(norm) and self.config.precision == "fp16"):  # fp16 finds its scale
            if math.isfinite(norm):
                self._norms.append(norm)
            return None
        if math.isinf(limit):  # no limit yet, and the norm is not finite: the engine has left the update out
            return None
        self.num_events += 1
        self.events.append(step)
        over = f"the gradient norm of step {step} was {norm:.4g}, over {limit:.4g}"
        if step < self._quiet_until or self.lr_factor <= LEAST_LR_FACTOR:
            return f"{over}: clipped"
        self.lr_factor = max(LEAST_LR_FACTOR, self.lr_factor * self.config.gradient_lr_factor)
        self._quiet_until = step + self.config.gradient_cooldown
        return f"{over}: clipped, and the learning rate is {self.lr_factor:.3g} of the schedule from now on"

    def state(self) -> dict[str, Any]:
        """Return the state as plain JSON, for the checkpoint."""
        return {
            "lr_factor": self.lr_factor,
            "num_events": self.num_events,
            "events": list(self.events),
            "norms": list(self._norms),
            "quiet_until": self._quiet_until,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self.lr_factor = float(state["lr_factor"])
        self.num_events = int(state["num_events"])
        self.events.extend(int(step) for step in state["events"])
        self._norms.extend(float(norm) for norm in state["norms"])
        self._quiet_until = int(state["quiet_until"])
