"""Remove documents whose words are too short or too long on average, in characters.

Meant for scripts with spaces: a Chinese word counts as one character here, so `scripts: spaced` spares such text.
Source of 3 and 10: Rae et al. 2021 (Gopher), appendix A.1.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters, ratio

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("word_chars", "num_words")


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    min: Annotated[float | None, Opt("Shortest mean word length (Gopher: 3).", min=0)] = 3.0
    max: Annotated[float | None, Opt("Longest mean word length (Gopher: 10).", min=0)] = 10.0


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return ratio(columns["word_chars"], columns["num_words"])
