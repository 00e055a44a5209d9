"""Remove documents in which the most frequent 2-gram of words holds too many of the characters.

The n-gram must occur twice and the document have 50 words: the plain rule removes "hello world" for its only 2-gram.
Source of 0.20: Rae et al. 2021 (Gopher), appendix A.1.1, table A1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters, gram_share

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("top_2gram_chars", "stored_chars", "num_words")


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    max: Annotated[
        float | None,
        Opt("Largest share of characters in the most frequent 2-gram (Gopher: 0.20).", min=0),
    ] = 0.2
    min_words: Annotated[int, Opt("Fewest words of a document that is looked at.", min=0)] = 50


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return gram_share(columns, "top_2gram_chars", parameters.min_words)
