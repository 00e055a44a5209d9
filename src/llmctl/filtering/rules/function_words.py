"""Remove documents with a small share of function words: keyword lists, and text in another language.

The default list is English (87 articles, pronouns, prepositions, auxiliaries); give your own for another language.
Source of 0.1: Laurençon et al. 2022 (ROOTS), the OSCAR filter of BigScience `data-preparation`
(whose list is longer, so the limit is stricter here).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import RuleParameters, ratio

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("num_function_words", "num_words")
WORD_SLOT = 1  # of `text.statistics`
WORDS = (
    "a",
    "about",
    "after",
    "all",
    "also",
    "an",
    "and",
    "any",
    "are",
    "as",
    "at",
    "be",
    "because",
    "been",
    "but",
    "by",
    "can",
    "could",
    "did",
    "do",
    "does",
    "for",
    "from",
    "had",
    "has",
    "have",
    "he",
    "her",
    "his",
    "how",
    "i",
    "if",
    "in",
    "into",
    "is",
    "it",
    "its",
    "just",
    "may",
    "me",
    "more",
    "most",
    "my",
    "no",
    "not",
    "of",
    "on",
    "one",
    "only",
    "or",
    "other",
    "our",
    "out",
    "over",
    "she",
    "should",
    "so",
    "some",
    "such",
    "than",
    "that",
    "the",
    "their",
    "them",
    "then",
    "there",
    "these",
    "they",
    "this",
    "those",
    "to",
    "up",
    "us",
    "was",
    "we",
    "were",
    "what",
    "when",
    "where",
    "which",
    "while",
    "who",
    "will",
    "with",
    "would",
    "you",
    "your",
)


@dataclass
class Parameters(RuleParameters):
    """The limits of the rule."""

    min: Annotated[
        float | None,
        Opt("Smallest share of words that are in the list (BigScience: 0.1).", min=0, max=1),
    ] = 0.1
    words: Annotated[list[str], Opt("The words that count, in lower case; by default English ones.")] = field(
        default_factory=lambda: list(WORDS)
    )


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return ratio(columns["num_function_words"], columns["num_words"])
