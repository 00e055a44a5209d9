"""Remove documents in which few 10-grams of characters make up much of the text.

Of D distinct 10-grams the floor(sqrt(D)) most frequent ones count, but none that occurs once.
Source of 0.2: Laurençon et al. 2022 (ROOTS), the OSCAR filter of BigScience `data-preparation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters, ratio

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("repeated_10char_grams", "num_10char_grams")


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    max: Annotated[
        float | None,
        Opt("Largest share of the most frequent character 10-grams (BigScience: 0.2).", min=0, max=1),
    ] = 0.2


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return ratio(columns["repeated_10char_grams"], columns["num_10char_grams"])
