"""Remove documents in which repeated 5-grams of words hold too many of the characters.

An n-gram seen before counts once per repetition and is stepped over whole, so no character counts twice.
Source of 0.15: Rae et al. 2021 (Gopher), appendix A.1.1, table A1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters, gram_share

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("duplicate_5gram_chars", "stored_chars", "num_words")


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    max: Annotated[
        float | None,
        Opt("Largest share of characters in repeated 5-grams (Gopher: 0.15).", min=0, max=1),
    ] = 0.15


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return gram_share(columns, "duplicate_5gram_chars")
