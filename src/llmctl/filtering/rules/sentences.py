"""Remove documents with too few sentences, counted after the line rules.

Source of 3: Raffel et al. 2020 (C4), section 2.2; tensorflow_datasets `text/c4_utils.py`
(datatrove's filter has 5 here and 3 for the words of a line: the two are swapped).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("num_sentences",)


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    min: Annotated[float | None, Opt("Fewest sentences (C4: 3).", min=0)] = 3
    text: Annotated[
        Literal["original", "edited"],
        Opt("The text that the rule looks at: as it was read, or as the line rules leave it."),
    ] = "edited"


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return columns["num_sentences"] * 1.0
