"""Remove documents with too many newlines for their words: lists.

Source of 0.3: Penedo et al. 2024 (FineWeb), section 3.5; datatrove `fineweb_quality_filter.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters, ratio

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("newlines", "num_words")


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    max: Annotated[float | None, Opt("Most newlines per word (FineWeb: 0.3).", min=0)] = 0.3
    text: Annotated[
        Literal["original", "edited"],
        Opt("The text that the rule looks at: as it was read, or as the line rules leave it."),
    ] = "edited"


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return ratio(columns["newlines"], columns["num_words"])
