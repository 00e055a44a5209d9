"""Remove documents by where their perplexity stands among those of the same source, from 0 (lowest) to 1 (highest).

The whole corpus is scored first and every source ranked by itself, so that one limit fits prose and chat. Sources with
fewer than 50 documents to rank are not judged. By default the worst third goes, the `tail` of cc_net
(Wenzek et al. 2020, https://arxiv.org/abs/1911.00359, section 3.3), which ranks by language.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import ScoreParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("perplexity_rank",)


@dataclass
class Parameters(ScoreParameters):
    """The limits of the rule."""

    min: Annotated[float | None, Opt("Least rank of a document that stays.", min=0, max=1)] = None
    max: Annotated[float | None, Opt("Largest rank of a document that stays (cc_net: two thirds).", min=0, max=1)] = (
        0.6667
    )


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return columns["perplexity_rank"]
