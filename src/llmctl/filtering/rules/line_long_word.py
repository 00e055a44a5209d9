"""Drop lines with an endless word: encoded data.

Source of 1,000: Raffel et al. 2020 (C4), section 2.2; tensorflow_datasets `text/c4_utils.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import LineParameters


@dataclass
class Parameters(LineParameters):
    """The limits of the rule."""

    max: Annotated[float, Opt("Most characters of a word (C4: 1,000).", min=1)] = 1000.0


def limit(parameters: Parameters) -> float:
    """Return the limit of the line action of this name."""
    return parameters.max
