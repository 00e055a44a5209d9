"""Remove documents of which nearly every line starts with a bullet: menus and lists of links.

Bullets are ``•``, ``-`` and the like; blank lines do not count.
Source of 0.9: Rae et al. 2021 (Gopher), appendix A.1.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters, ratio

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("bullet_lines", "num_lines")


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    max: Annotated[
        float | None,
        Opt("Largest share of lines that start with a bullet (Gopher: 0.9).", min=0, max=1),
    ] = 0.9


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return ratio(columns["bullet_lines"], columns["num_lines"])
