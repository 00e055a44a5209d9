"""Remove documents with too many ``#`` for their words: tag clouds, logs, code.

Source of 0.1: Rae et al. 2021 (Gopher), appendix A.1.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters, ratio

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("num_hashes", "num_words")


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    max: Annotated[float | None, Opt("Most hash signs per word (Gopher: 0.1).", min=0)] = 0.1


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return ratio(columns["num_hashes"], columns["num_words"])
