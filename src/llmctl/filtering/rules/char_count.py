"""Remove documents that are too short or too long, in characters (code points).

Source of 190,000: the C4 configuration of DCLM (`baselines_configs/c4.yaml`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("num_chars",)


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    min: Annotated[float | None, Opt("Fewest characters.", min=0)] = None
    max: Annotated[float | None, Opt("Most characters (C4: 190,000).", min=0)] = 190_000


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return columns["num_chars"] * 1.0
