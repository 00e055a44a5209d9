"""Remove documents in which too many of the 5-grams of words occur more than once.

Source of 0.3: Laurençon et al. 2022 (ROOTS), the OSCAR filter of BigScience `data-preparation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters, ratio

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("repeated_5grams", "num_5grams")


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    max: Annotated[
        float | None,
        Opt("Largest share of 5-grams that occur more than once (BigScience: 0.3).", min=0, max=1),
    ] = 0.3


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return ratio(columns["repeated_5grams"], columns["num_5grams"])
