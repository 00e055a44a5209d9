"""Remove documents in which too few words have a letter: tables of numbers, rulers, symbols.

The share is taken of all tokens, those made of symbols alone included. Letters are Unicode's (`str.isalpha`).
Source of 0.8: Rae et al. 2021 (Gopher), appendix A.1.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters, ratio

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("alpha_words", "num_tokens")


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    min: Annotated[float | None, Opt("Smallest share of words with a letter (Gopher: 0.8).", min=0, max=1)] = 0.8


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return ratio(columns["alpha_words"], columns["num_tokens"])
