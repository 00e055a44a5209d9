"""What `llmctl pretrain` can set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from llmctl.config.schema import Opt
from llmctl.model.config import ModelConfig
from llmctl.training.config import TrainingConfig


@dataclass
class PretrainConfig(TrainingConfig):
    """Model, data order, validation, and everything that all training stages share."""

    model: Annotated[ModelConfig, Opt("The shape of the model.")] = field(default_factory=ModelConfig)
    init_from: Annotated[
        str | None,
        Opt("A model (run or Hugging Face folder) to go on from; `model` is then taken from it.", identity=False),
    ] = None
    validation_fraction: Annotated[float, Opt("Share of the documents that are never trained on.", min=0, max=0.5)] = (
        0.01
    )
    validation_tokens: Annotated[int, Opt("Held-out tokens of one validation; 0 takes all.", min=0)] = 200_000
    validate_every: Annotated[
        int, Opt("Steps between validations; 0 validates after the last step only.", min=0, identity=False)
    ] = 100
    verify_shards: Annotated[bool, Opt("Check the checksum of each record when it is first read.", identity=False)] = (
        True
    )
