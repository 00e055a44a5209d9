"""Remove documents in which too many lines repeat an earlier line.

Source of 0.30: Rae et al. 2021 (Gopher), appendix A.1.1, table A1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters, ratio

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("duplicate_lines", "num_lines")


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    max: Annotated[float | None, Opt("Largest share of repeated lines (Gopher: 0.30).", min=0, max=1)] = 0.3


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return ratio(columns["duplicate_lines"], columns["num_lines"])
