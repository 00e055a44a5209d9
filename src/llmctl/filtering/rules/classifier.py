"""Remove documents by the score of a classifier that you trained, each under a name of your choice.

`llmctl classifier train` makes one, `--classifier NAME=FOLDER` puts it to work, and the policy has its limits under
its name: `classifier: {spam: {max: 0.5}}`, by source as for any other rule. The value is the probability of what the
classifier was trained to find. Without limits of your own, the threshold that training chose for the wanted precision
is the largest probability that stays. Empty documents are not judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import ScoreParameters

if TYPE_CHECKING:
    import numpy as np

# In a policy the rule has a name of its own, `classifier.NAME`, and this column is that classifier's.
COLUMNS = ("classifier",)


@dataclass
class Parameters(ScoreParameters):
    """The limits of the rule."""

    min: Annotated[float | None, Opt("Least probability of a document that stays.", min=0, max=1)] = None
    max: Annotated[
        float | None, Opt("Largest probability of a document that stays; the classifier's own.", min=0, max=1)
    ] = None


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return columns["classifier"]
