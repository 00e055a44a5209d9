"""Remove documents without a single word: empty, blank, or nothing but symbols.

Ratios over words have no value there, and filters that divide all the same stop with an error
(allenai/dolma issue 148). The rule stands first in every policy and can be switched off by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("num_words",)


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    min: Annotated[float | None, Opt("Fewest words.", min=0)] = 1


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return columns["num_words"] * 1.0
