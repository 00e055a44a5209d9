"""Remove the documents of chosen clusters: kinds of pages that are kept or dropped as a whole.

`llmctl filter SOURCE FIRST --clusters` groups the documents by density and prints each cluster with its size, its terms
and its usable share (documents that pass every other rule); `--reuse-scores FIRST --drop-clusters 3,7` then removes
those. Numbers belong to one corpus and one set of `cluster` settings. The value is the number of the document's cluster
if it is to go, else 0. No published set of rules has such a one; which clusters go is the user's choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.clusters.choosing import cluster_numbers
from llmctl.filtering.rule import ScoreParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("cluster",)


@dataclass
class Parameters(ScoreParameters):
    """The limits of the rule."""

    drop: Annotated[list[str], Opt("Numbers of the clusters to remove, as `llmctl filter --clusters` prints them.")] = (
        field(default_factory=list)
    )
    max: Annotated[
        float | None, Opt("Largest number that stays; 0, as documents of other clusters have it.", min=0)
    ] = 0

    def validate(self) -> None:
        """Check the numbers.

        Raises:
            UserError: something that is no number of a cluster.
        """
        self.drop = [str(number) for number in cluster_numbers(self.drop)]


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    import numpy as np

    clusters = columns["cluster"]
    return np.where(np.isin(clusters, [int(number) for number in parameters.drop]), clusters, 0.0)
