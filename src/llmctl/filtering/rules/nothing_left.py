"""Remove documents that the line rules leave without a single word.

It stands last in every policy, so that a rule with more to say (too few sentences) is named first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("num_words",)


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    min: Annotated[float | None, Opt("Fewest words that are left.", min=0)] = 1
    text: Annotated[
        Literal["original", "edited"],
        Opt("The text that the rule looks at: as it was read, or as the line rules leave it."),
    ] = "edited"


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return columns["num_words"] * 1.0
