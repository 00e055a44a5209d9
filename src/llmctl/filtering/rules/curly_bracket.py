"""Remove documents with an opening curly bracket in what the line rules leave: code.

C4's code looks at the lines that stay; `text: original` looks at the whole page, as the paper's sentence says.
Source of 0: Raffel et al. 2020 (C4), section 2.2; tensorflow_datasets `text/c4_utils.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("curly_brackets",)


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    max: Annotated[float | None, Opt("Most opening curly brackets (C4: 0).", min=0)] = 0
    text: Annotated[
        Literal["original", "edited"],
        Opt("The text that the rule looks at: as it was read, or as the line rules leave it."),
    ] = "edited"


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return columns["curly_brackets"] * 1.0
