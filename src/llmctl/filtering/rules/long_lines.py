"""Remove documents with too few long lines (200 characters or more): no paragraph of running text.

Source of 3: Xue et al. 2021 (mT5), section 3.1: a page needs three lines of 200 characters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("long_lines",)


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    min: Annotated[float | None, Opt("Fewest lines of at least 200 characters (mC4: 3).", min=0)] = 3


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return columns["long_lines"] * 1.0
