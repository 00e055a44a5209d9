"""How documents are grouped by density."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from llmctl.config.schema import Opt


@dataclass
class ClusterConfig:
    """How documents are grouped by density."""

    sample: Annotated[
        int, Opt("Documents that the clusters are found on; the others take the cluster of their neighbours.", min=50)
    ] = 20_000
    min_size: Annotated[int, Opt("Fewest documents of the sample in a cluster.", min=5)] = 50
    neighbours: Annotated[
        int, Opt("Neighbours that make a place dense (`min_samples` of HDBSCAN); more leaves more outside.", min=1)
    ] = 10
    dimensions: Annotated[int, Opt("Dimensions that the hashed features are reduced to.", min=2, max=256)] = 32
    words: Annotated[int, Opt("Words of each document that count, from its beginning.", min=16, max=2048)] = 512
    seed: Annotated[int, Opt("Seed of the sample and of the reduction.", min=0, max=2**31 - 1)] = 0
