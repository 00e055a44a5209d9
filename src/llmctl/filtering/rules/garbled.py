"""Remove documents with traces of broken decoding: U+FFFD, control characters, UTF-8 read as Latin-1 (``Ã©``).

The limit is llmctl's own: one such character in 200 is far above what clean text shows, and well below garbage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters, ratio

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("replacement_chars", "control_chars", "mojibake", "num_chars")


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    max: Annotated[float | None, Opt("Largest share of garbled characters (llmctl: 0.005).", min=0, max=1)] = 0.005


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return ratio(columns["replacement_chars"] + columns["control_chars"] + columns["mojibake"], columns["num_chars"])
