"""Remove documents in which repeated lines hold more than a trace of the characters, newlines left out.

FineWeb's stricter sister of `duplicate_line_chars`.
Source of 0.01: Penedo et al. 2024 (FineWeb), section 3.5; datatrove `fineweb_quality_filter.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters, ratio

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("duplicate_line_chars", "num_chars", "newlines")


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    max: Annotated[
        float | None,
        Opt("Largest share of characters in repeated lines (FineWeb: 0.01).", min=0, max=1),
    ] = 0.01
    text: Annotated[
        Literal["original", "edited"],
        Opt("The text that the rule looks at: as it was read, or as the line rules leave it."),
    ] = "edited"


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return ratio(columns["duplicate_line_chars"], columns["num_chars"] - columns["newlines"])
