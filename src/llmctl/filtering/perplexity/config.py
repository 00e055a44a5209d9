"""What `llmctl perplexity train` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.config.schema import Opt


@dataclass
class PerplexityConfig:
    """How an n-gram model is trained."""

    order: Annotated[
        int, Opt("Longest n-grams, in tokens (words, or characters of scripts without spaces).", min=2, max=5)
    ] = 3
    max_bytes: Annotated[
        int,
        Opt(
            "Most text that is used; of more, documents drawn by the seed. About 10 bytes of memory a byte.",
            min=1000,
            size=True,
        ),
    ] = 200_000_000
    held_out: Annotated[
        float, Opt("Share of the documents that the model is judged by and not trained on.", min=0, max=0.5)
    ] = 0.05
    seed: Annotated[int, Opt("Seed of the draws.")] = 0
    max_invalid_share: Annotated[
        float, Opt("Share of invalid records from which the command ends with status 3.", min=0, max=1)
    ] = 0.05
    read: Annotated[ReadOptions, Opt("How raw files are read.", flag=False)] = field(default_factory=ReadOptions)
