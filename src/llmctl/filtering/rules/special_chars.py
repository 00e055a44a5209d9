"""Remove documents with too many characters that are no letters: digits, punctuation, symbols, white space.

Source of 0.4: Laurençon et al. 2022 (ROOTS), the OSCAR filter of BigScience `data-preparation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters, ratio

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("digits", "punctuation", "symbols", "whitespace", "num_chars")


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    max: Annotated[
        float | None,
        Opt("Largest share of digits, punctuation, symbols and white space (BigScience: 0.4).", min=0, max=1),
    ] = 0.4


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return ratio(
        columns["digits"] + columns["punctuation"] + columns["symbols"] + columns["whitespace"], columns["num_chars"]
    )
