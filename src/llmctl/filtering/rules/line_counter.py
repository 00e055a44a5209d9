"""Drop lines that count reactions and say nothing else, such as "3 likes".

Source: Penedo et al. 2023 (RefinedWeb), appendix G.2.
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
