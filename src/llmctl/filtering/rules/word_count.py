"""Remove documents that are too short or too long, in words.

Words have a letter or digit; in scripts without spaces each character is a word.
Source of 50 and 100,000: Rae et al. 2021 (Gopher), appendix A.1.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("num_words",)


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    min: Annotated[float | None, Opt("Fewest words (Gopher: 50).", min=0)] = 50
    max: Annotated[float | None, Opt("Most words (Gopher: 100,000).", min=0)] = 100_000


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return columns["num_words"] * 1.0
