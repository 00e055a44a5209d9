"""What a step is made of: seconds and shares of waiting, computing, communicating and updating."""

from __future__ import annotations

from dataclasses import dataclass

from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.signals import STEP_PARTS

OTHER = "other"
# Parts may be measured on a device that runs ahead of the host; a little more than the whole is rounding.
TOLERANCE = 1.02


@dataclass(frozen=True)
class StepPart:
    """One part of the median step: its seconds and its share of the step."""

    name: str
    seconds: float
    share: float


def step_breakdown(evidence: Evidence) -> list[StepPart]:
    """Return the parts of the median step, in the order in which they happen; empty if they were not logged.

    What no part covers is `other`. Where parts add up to more than the step (they overlap), shares are of their sum.
    """
    whole = evidence.step_time()
    seconds = {}
    for column, name in STEP_PARTS.items():
        series = evidence.steady(column)
        if len(series):
            seconds[name] = series.median()
    if not seconds or not len(whole):
        return []
    total, known = whole.median(), sum(seconds.values())
    if known < total:
        seconds[OTHER] = total - known
    elif known > TOLERANCE * total:
        total = known
    return [StepPart(name, value, value / total) for name, value in seconds.items()]
