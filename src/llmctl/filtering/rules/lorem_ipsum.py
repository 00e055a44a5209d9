"""Remove documents with the placeholder text "lorem ipsum" in what the line rules leave.

Source: Raffel et al. 2020 (C4), section 2.2; tensorflow_datasets `text/c4_utils.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("lorem_ipsum",)


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    max: Annotated[float | None, Opt("Largest number of finds that is let pass, 0 or 1 (C4: 0).", min=0)] = 0
    text: Annotated[
        Literal["original", "edited"],
        Opt("The text that the rule looks at: as it was read, or as the line rules leave it."),
    ] = "edited"


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return columns["lorem_ipsum"] * 1.0
