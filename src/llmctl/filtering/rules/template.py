"""Remove template content: of a family of documents with one skeleton and varying slots, keep the first few.

Families are found in the whole corpus: documents that share most of their words in the same order ("Buy {…} in {…}
today …"), at least `templates.min_family` of them, with at most `templates.max_slot_share` of their words in slots. The
value is a document's place in its family, in the order of the input; documents of no family stay. The skeletons stand
in templates.json. The limits are ours: no published set of rules has such a one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import ScoreParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("template_place",)


@dataclass
class Parameters(ScoreParameters):
    """The limits of the rule."""

    max: Annotated[float | None, Opt("Documents of a family that stay.", min=0)] = 1


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return columns["template_place"]
