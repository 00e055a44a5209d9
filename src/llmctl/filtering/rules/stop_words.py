"""Remove documents without a few of the commonest words of the language: no running text in it.

The default list is English: with it the rule removes every other language. Case does not matter.
Source of 2 and of the list: Rae et al. 2021 (Gopher), appendix A.1.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("distinct_stop_words",)
WORD_SLOT = 0  # of `text.statistics`
WORDS = (
    "the",
    "be",
    "to",
    "of",
    "and",
    "that",
    "have",
    "with",
)


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    min: Annotated[float | None, Opt("Fewest different words of the list (Gopher: 2).", min=0)] = 2
    words: Annotated[list[str], Opt("The words that count, in lower case; by default English ones.")] = field(
        default_factory=lambda: list(WORDS)
    )


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return columns["distinct_stop_words"] * 1.0
