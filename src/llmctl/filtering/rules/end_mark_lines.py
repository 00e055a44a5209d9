"""Remove documents in which too few lines end like a sentence: menus, tables, lists.

End marks are ``. ! ?``, quotation marks, and their counterparts in other scripts.
Source of 0.12: Penedo et al. 2024 (FineWeb), section 3.5; datatrove `fineweb_quality_filter.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters, ratio

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("end_mark_lines", "num_lines")


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    min: Annotated[
        float | None,
        Opt("Smallest share of lines that end in an end mark (FineWeb: 0.12).", min=0, max=1),
    ] = 0.12
    text: Annotated[
        Literal["original", "edited"],
        Opt("The text that the rule looks at: as it was read, or as the line rules leave it."),
    ] = "edited"


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return ratio(columns["end_mark_lines"], columns["num_lines"])
