"""What `llmctl shard` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from llmctl.config.schema import Opt
from llmctl.errors import UserError


@dataclass
class ShardConfig:
    """How token ids are laid out in files."""

    format: Annotated[
        Literal["tfrecord", "megatron", "mds", "parquet"],
        Opt("Files to write: `tfrecord` for llmctl and TensorFlow, the others for other tools."),
    ] = "tfrecord"
    shard_size: Annotated[
        int, Opt("Size of a shard at most; a document longer than that has its own.", min=1000, size=True)
    ] = 200_000_000
    shuffle: Annotated[
        bool, Opt("Put the documents of each source in a seeded random order; otherwise they keep theirs.")
    ] = False
    seed: Annotated[int, Opt("Seed of the order.", min=0)] = 0
    tokenizer: Annotated[
        str | None,
        Opt(
            "What made the ids of Megatron, MDS or Parquet files: a Hugging Face folder, a tokenizer.json "
            "or an output of llmctl.",
            identity=False,
        ),
    ] = None
    eos_token: Annotated[str | None, Opt("The token that ends documents of other tools, if --tokenizer has none.")] = (
        None
    )
    append_eos: Annotated[bool, Opt("Add the end-of-text token to documents of other tools that lack it.")] = False

    def validate(self) -> None:
        """Check what spans fields."""
        if self.tokenizer is None and self.eos_token is not None:
            raise UserError("`--eos-token` goes with `--tokenizer`", "tokens and shards of llmctl have their own")
