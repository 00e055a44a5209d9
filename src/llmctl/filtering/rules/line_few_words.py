"""Drop lines with too few words, and blank lines with them.

Source of 5: Raffel et al. 2020 (C4), section 2.2; tensorflow_datasets `text/c4_utils.py`
(datatrove's filter has 3 here and 5 sentences: the two are swapped).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import LineParameters


@dataclass
class Parameters(LineParameters):
    """The limits of the rule."""

    min: Annotated[float, Opt("Fewest words of a line (C4: 5).", min=1)] = 5.0


def limit(parameters: Parameters) -> float:
    """Return the limit of the line action of this name."""
    return parameters.min
