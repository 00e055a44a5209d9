"""Drop lines with a phrase of cookie and privacy notes ("terms of use", "privacy policy", "uses cookies", …).

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
