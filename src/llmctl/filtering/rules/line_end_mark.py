"""Drop lines that do not end like a sentence: navigation, headings, list items.

End marks are ``. ! ?``, quotation marks, and their counterparts in other scripts; a line that ends in an ellipsis goes.
Source: Raffel et al. 2020 (C4), section 2.2; tensorflow_datasets `text/c4_utils.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmctl.filtering.rule import LineParameters


@dataclass
class Parameters(LineParameters):
    """The limits of the rule."""


def limit(parameters: Parameters) -> float:
    """Return the limit of the line action of this name."""
    return 1.0
