"""What `llmctl pretrain` can set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from llmctl.config.schema import Opt
from llmctl.loading.config import MixtureConfig
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
    packing: Annotated[
        Literal["concat", "best_fit"],
        Opt(
            "`concat` cuts the row of all documents every seq_len tokens; `best_fit` cuts only documents longer than "
            "that, and pads a little."
        ),
    ] = "concat"
    mixture: Annotated[MixtureConfig, Opt("Shares of the sources by phase of the training.")] = field(
        default_factory=MixtureConfig
    )
    mixture_table: Annotated[
        str | None,
        Opt("A YAML file that replaces `mixture`, or the name of one that ships (`staged`).", identity=False),
    ] = None
    max_epochs: Annotated[float, Opt("How often a source may be seen; 0 sets no limit.", min=0)] = 0.0
    when_exhausted: Annotated[
        Literal["refuse", "repeat", "renormalize"],
        Opt(
            "What to do when a source has been seen max_epochs times: refuse the run, repeat the source all the same, "
            "or let the other sources of the phase take its place."
        ),
    ] = "refuse"
    log_samples: Annotated[
        bool, Opt("Write which sequences every step is made of, not only their counts.", identity=False)
    ] = False
    validation_fraction: Annotated[float, Opt("Share of the documents that are never trained on.", min=0, max=0.5)] = (
        0.01
    )
    validation_tokens: Annotated[int, Opt("Held-out tokens of one validation; 0 takes all.", min=0)] = 200_000
    validate_every: Annotated[
        int, Opt("Steps between validations; 0 validates after the last step only.", min=0, identity=False)
    ] = 100
    overfit_watch: Annotated[
        bool,
        Opt("At each validation judge five levels of difficulty and the diversity of samples; stop on overfitting."),
    ] = False
    redraw_validation_every: Annotated[
        int, Opt("Steps after which the overfit watch draws its held-out documents anew; 0 keeps them.", min=0)
    ] = 0
    overfit_limit: Annotated[
        float,
        Opt("Score (0.6 · loss of perplexity + 0.4 · loss of diversity, against the best) that counts.", min=0),
    ] = 0.1
    overfit_patience: Annotated[int, Opt("Validations in a row over that limit that end the run.", min=1)] = 3
    verify_shards: Annotated[bool, Opt("Check the checksum of each record when it is first read.", identity=False)] = (
        True
    )
