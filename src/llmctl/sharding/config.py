"""What `llmctl shard` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from llmctl.config.schema import Opt


@dataclass
class ShardConfig:
    """How token ids are laid out in files."""

    shard_size: Annotated[
        int, Opt("Size of a shard at most; a document longer than that has its own.", min=1000, size=True)
    ] = 200_000_000
    shuffle: Annotated[
        bool, Opt("Put the documents of each source in a seeded random order; otherwise they keep theirs.")
    ] = False
    seed: Annotated[int, Opt("Seed of the order.", min=0)] = 0
