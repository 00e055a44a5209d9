"""Remove documents that are smooth and even, as text written by machines tends to be: low perplexity, hardly varying.

The value is the larger of two ranks among the documents of the same source: of the perplexity, and of how much it goes
up and down within the document. It is small only where both are. A rank marks the smoothest and most even documents of
any source, whoever wrote them (with 0.05, up to one in twenty): look at some before you drop them. The guide to models
has measured figures; the limit is llmctl's own. Sources with fewer than 50 documents to rank are not judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import ScoreParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("perplexity_rank", "variation_rank")


@dataclass
class Parameters(ScoreParameters):
    """The limits of the rule."""

    min: Annotated[float | None, Opt("Least value of a document that stays (llmctl's own: 0.05).", min=0, max=1)] = 0.05


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    import numpy as np

    return np.maximum(columns["perplexity_rank"], columns["variation_rank"])
