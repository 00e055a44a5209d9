"""Drop lines that are mostly in upper case: headings and buttons.

Source: Penedo et al. 2023 (RefinedWeb), appendix G.2; 0.5 as in DCLM's `refinedweb.yaml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import LineParameters


@dataclass
class Parameters(LineParameters):
    """The limits of the rule."""

    max: Annotated[
        float,
        Opt("Largest share of upper-case letters among the characters (RefinedWeb: 0.5).", min=0, max=1),
    ] = 0.5


def limit(parameters: Parameters) -> float:
    """Return the limit of the line action of this name."""
    return parameters.max
