"""What supervised fine-tuning can set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from llmctl.config.schema import Opt
from llmctl.errors import UserError
from llmctl.training.config import TrainingConfig


@dataclass
class SftConfig(TrainingConfig):
    """Fine-tune a model on conversations; the loss is on the assistant's tokens and the end of its turns only."""

    steps: Annotated[
        int, Opt("Optimizer steps of the whole run; 0 takes `epochs`.", min=0, aliases=("--max-steps",))
    ] = 0
    epochs: Annotated[float, Opt("Passes over the training conversations, where `steps` is 0.", min=0)] = 2.0
    global_batch_size: Annotated[int, Opt("Packed sequences of one optimizer step, over all processes.", min=1)] = 16
    lr: Annotated[float, Opt("Peak learning rate.", min=0)] = 2e-5
    tokenizer: Annotated[
        str | None,
        Opt(
            "A tokenizer that was grown from the model's (output of `llmctl tokenize` or `shard`, or a folder); the "
            "model gets its new tokens.",
            identity=False,
        ),
    ] = None
    lora_rank: Annotated[
        int, Opt("Learn low-rank adapters of this rank instead of all weights; 0 learns all weights.", min=0)
    ] = 0
    lora_alpha: Annotated[float, Opt("Adapters are scaled by this over their rank; 0 takes twice the rank.", min=0)] = (
        0.0
    )
    dora: Annotated[bool, Opt("Adapters learn direction and magnitude of weights apart (DoRA).")] = False
    packing: Annotated[
        Literal["isolate", "off"],
        Opt("`isolate` puts several conversations into a sequence, none of which sees another; `off` pads each."),
    ] = "isolate"
    learn: Annotated[
        Literal["assistant", "last"], Opt("Learn every turn of the assistant, or the last answer only.")
    ] = "assistant"
    overlong: Annotated[
        Literal["drop", "truncate"],
        Opt("Conversations longer than `seq_len`: leave them out (counted), or cut off their end."),
    ] = "drop"
    validation_fraction: Annotated[
        float, Opt("Share of the prompts held out for validation, where no --validation is given.", min=0, max=0.5)
    ] = 0.05
    eval_every: Annotated[int, Opt("Steps between validations; 0 validates at the end of each epoch.", min=0)] = 0
    stop_on_rise: Annotated[
        float,
        Opt(
            "Stop, and keep the best weights, when validation loss is above its best by this share; 0 never stops.",
            min=0,
        ),
    ] = 0.01
    stop_patience: Annotated[int, Opt("Validations in a row that must be above before training stops.", min=1)] = 2
    min_seed: Annotated[int, Opt("Warn when there are fewer training conversations than this (row S29).", min=0)] = 1000
    template_phrases: Annotated[
        list[str],
        Opt(
            "Phrases that mark template answers; `builtin` stands for the list that ships, a path for a file of lines."
        ),
    ] = field(default_factory=lambda: ["builtin"])
    drop_template: Annotated[bool, Opt("Leave out conversations with a template phrase in an answer.")] = False
    show: Annotated[
        int, Opt("Print this many rendered conversations with the learned part marked.", min=0, identity=False)
    ] = 0
    pretrain_shards: Annotated[
        str | None,
        Opt(
            "Pretraining shards (output of `llmctl shard`): the perplexity on documents held out of them is reported "
            "before and after.",
            identity=False,
        ),
    ] = None
    mix_pretrain: Annotated[
        float,
        Opt(
            "Share of the tokens of every batch that comes from `pretrain_shards`, all of them learned.", min=0, max=0.9
        ),
    ] = 0.0
    pretrain_validation_fraction: Annotated[
        float, Opt("Share of the documents of `pretrain_shards` that is held out.", min=0, max=0.5)
    ] = 0.01
    pretrain_validation_tokens: Annotated[
        int, Opt("Held-out tokens that forgetting is measured on; 0 takes all.", min=0)
    ] = 200_000
    max_forgetting: Annotated[
        float,
        Opt(
            "Warn when the perplexity on pretraining documents has risen by more than this share.",
            min=0,
            identity=False,
        ),
    ] = 0.1
    max_invalid_share: Annotated[
        float,
        Opt("Exit with status 3 when more than this share of the records is invalid.", min=0, max=1, identity=False),
    ] = 0.05

    def validate(self) -> None:
        """Check what spans fields.

        Raises:
            UserError: names the keys that do not go together.
        """
        super().validate()
        if not self.steps and not self.epochs:
            raise UserError("both `steps` and `epochs` are 0", "give --epochs or --steps")
        if self.mix_pretrain and self.pretrain_shards is None:
            raise UserError(
                "`mix_pretrain` without pretraining text", "give --pretrain-shards, output of `llmctl shard`"
            )
        if self.dora and not self.lora_rank:
            raise UserError("`dora` without adapters", "give --lora-rank, such as 16")
        if self.tp > 1 or self.pp > 1:
            raise UserError(
                "sft runs on data-parallel processes; tp and pp are for pretraining",
                "use --zero-stage to split the state over processes",
            )


@dataclass
class MergeConfig:
    """How an adapter is merged into its model."""

    export_precision: Annotated[Literal["fp32", "bf16"], Opt("Type of the weights in `model/`.")] = "fp32"
