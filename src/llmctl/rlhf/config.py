"""What the stages of reinforcement learning from human feedback can set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from llmctl.config.schema import Opt
from llmctl.errors import UserError
from llmctl.training.config import TrainingConfig


def _check_parallelism(config: TrainingConfig, what: str) -> None:
    if config.tp > 1 or config.pp > 1:
        raise UserError(
            f"{what} runs on data-parallel processes; tp and pp are for pretraining", "leave tp and pp at 1"
        )


@dataclass
class RewardConfig(TrainingConfig):
    """Train a reward model on comparisons: pairs or ranked lists of answers to one prompt."""

    steps: Annotated[
        int, Opt("Optimizer steps of the whole run; 0 takes `epochs`.", min=0, aliases=("--max-steps",))
    ] = 0
    epochs: Annotated[
        float, Opt("Passes over the comparisons, where `steps` is 0; more than one overfits soon.", min=0)
    ] = 1.0
    global_batch_size: Annotated[int, Opt("Prompts of one optimizer step, with all their answers.", min=1)] = 32
    lr: Annotated[float, Opt("Peak learning rate.", min=0)] = 1e-5
    validation_fraction: Annotated[
        float, Opt("Share of the prompts held out, where no --validation is given.", min=0, max=0.5)
    ] = 0.1
    eval_every: Annotated[int, Opt("Steps between validations; 0 validates at the end of each epoch.", min=0)] = 0
    min_comparisons: Annotated[int, Opt("Warn when there are fewer comparisons than this (row S30).", min=0)] = 50_000
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
        _check_parallelism(self, "a reward model")


@dataclass
class DpoConfig(RewardConfig):
    """Train a model on comparisons directly, without a reward model."""

    lr: Annotated[float, Opt("Peak learning rate.", min=0)] = 1e-6
    beta: Annotated[float, Opt("Strength of the pull to the reference model.", min=0)] = 0.1
    label_smoothing: Annotated[float, Opt("Probability that a pair is the wrong way round.", min=0, max=0.5)] = 0.0
    variant: Annotated[Literal["sigmoid", "ipo"], Opt("Loss of a pair: DPO's sigmoid, or IPO's square.")] = "sigmoid"
    min_comparisons: Annotated[int, Opt("Warn when there are fewer comparisons than this.", min=0)] = 1000

    def validate(self) -> None:
        """Check what spans fields.

        Raises:
            UserError: names the keys that do not go together.
        """
        super().validate()
        if not self.beta:
            raise UserError("`beta` is 0", "give a positive --beta, such as 0.1")


@dataclass
class RolloutConfig(TrainingConfig):
    """What PPO, GRPO and RLOO share: answers are sampled, scored, and learned from while they are fresh."""

    steps: Annotated[
        int, Opt("Updates: rounds of answers, each followed by `ppo_epochs` passes.", min=1, aliases=("--max-steps",))
    ] = 100
    global_batch_size: Annotated[int, Opt("Answers of one update, over all processes.", min=1)] = 64
    lr: Annotated[float, Opt("Peak learning rate of the policy.", min=0)] = 3e-6
    lr_schedule: Annotated[
        Literal["warmup-constant-cosine", "cosine", "wsd", "constant"], Opt("Shape of the learning rates.")
    ] = "constant"
    weight_decay: Annotated[float, Opt("Decoupled weight decay of matrices.", min=0)] = 0.0
    adam_eps: Annotated[float, Opt("Added to the root of the second moment.", min=0)] = 1e-5
    reward_function: Annotated[
        str, Opt("Name of the function in the file of --reward-fn; set by that flag.", flag=False)
    ] = ""
    reward_command: Annotated[
        str,
        Opt("A command as reward: it reads a JSON line (prompt, response) per answer and prints one number a line."),
    ] = ""
    max_new_tokens: Annotated[int, Opt("Longest answer, in tokens.", min=1)] = 128
    temperature: Annotated[
        float, Opt("Of sampling, and of every log-probability; nothing else shapes the distribution.", min=0.01)
    ] = 1.0
    rollout_batch_size: Annotated[int, Opt("Answers that one process writes at once.", min=1, identity=False)] = 64
    kl_coef: Annotated[float, Opt("Weight of the KL penalty to where the policy started (row S31).", min=0)] = 0.05
    clip_ratio: Annotated[float, Opt("How far the probability ratio may move.", min=0, aliases=("--cliprange",))] = 0.2
    ppo_epochs: Annotated[int, Opt("Passes over the answers of one update.", min=1)] = 2
    minibatches: Annotated[int, Opt("Optimizer steps of one pass.", min=1)] = 1
    max_approx_kl: Annotated[
        float, Opt("End the passes of an update when the policy has moved this far, in nats a token; 0 never.", min=0)
    ] = 0.1
    missing_eos_penalty: Annotated[
        float, Opt("Subtracted from the score of an answer that reaches the limit before it ends.", min=0)
    ] = 1.0
    score_clip: Annotated[float, Opt("Scores are clipped to ± this; 0 leaves them.", min=0)] = 10.0
    num_samples: Annotated[
        int, Opt("Prompts whose answers before and after are kept in samples.jsonl.", min=0, identity=False)
    ] = 8
    max_invalid_share: Annotated[
        float,
        Opt("Exit with status 3 when more than this share of the records is invalid.", min=0, max=1, identity=False),
    ] = 0.05

    @property
    def answers_per_prompt(self) -> int:
        """Return how often each prompt is answered in one update."""
        return 1

    @property
    def prompts_per_update(self) -> int:
        """Return how many prompts are answered in one update, over all processes."""
        return self.global_batch_size // self.answers_per_prompt

    def validate(self) -> None:
        """Check what spans fields.

        Raises:
            UserError: names the keys that do not go together.
        """
        super().validate()
        _check_parallelism(self, "reinforcement learning")
        if self.zero_stage == 3:
            raise UserError(
                "answers are written with whole weights, and ZeRO stage 3 splits them", "use --zero-stage 2 or less"
            )
        if self.max_new_tokens >= self.seq_len:
            raise UserError(
                f"`max_new_tokens` {self.max_new_tokens} leaves no room for a prompt in `seq_len` {self.seq_len}",
                "raise --seq-len, or lower --max-new-tokens",
            )
        each = self.answers_per_prompt
        if self.global_batch_size % each:
            raise UserError(
                f"`global_batch_size` {self.global_batch_size} is not a multiple of `group_size` {each}",
                f"use --global-batch-size {-(-self.global_batch_size // each) * each}",
            )
        processes = max(self.processes, 1)
        if self.minibatches * processes > self.prompts_per_update:
            raise UserError(
                f"{self.minibatches} minibatches of {self.prompts_per_update} prompts on {processes} processes",
                "use fewer --minibatches, or a larger --global-batch-size",
            )


@dataclass
class PpoConfig(RolloutConfig):
    """Improve a model against a reward by proximal policy optimisation with a KL penalty to where it started."""

    critic_lr: Annotated[float, Opt("Peak learning rate of the value model.", min=0)] = 1e-5
    kl_target: Annotated[float, Opt("Adapt kl_coef towards this KL per answer, in nats; 0 keeps it.", min=0)] = 0.0
    kl_horizon: Annotated[int, Opt("Answers over which kl_coef adapts.", min=1)] = 10_000
    objective: Annotated[
        Literal["kl", "mixed"],
        Opt("`kl`: score − kl_coef·KL; `mixed`: 0.7·score − 0.2·KL + 0.1·R_length, with R_length in [−1, 0]."),
    ] = "kl"
    target_length: Annotated[int, Opt("Tokens beyond which R_length falls, in `--objective mixed`.", min=1)] = 128
    value_clip: Annotated[float, Opt("How far a value may move in one update; 0 does not clip.", min=0)] = 0.2
    gamma: Annotated[float, Opt("Discount per token.", min=0, max=1)] = 1.0
    lam: Annotated[float, Opt("λ of generalised advantage estimation.", min=0, max=1)] = 0.95


@dataclass
class GroupConfig(RolloutConfig):
    """What GRPO and RLOO share: several answers to one prompt are each other's baseline, so there is no value model."""

    global_batch_size: Annotated[
        int, Opt("Answers of one update, over all processes: a multiple of `group_size`.", min=1)
    ] = 128
    lr: Annotated[float, Opt("Peak learning rate of the policy.", min=0)] = 1e-6
    group_size: Annotated[int, Opt("Answers to each prompt.", min=2)] = 8
    ppo_epochs: Annotated[int, Opt("Passes over the answers of one update.", min=1)] = 1

    @property
    def answers_per_prompt(self) -> int:
        """Return how often each prompt is answered in one update."""
        return self.group_size


@dataclass
class GrpoConfig(GroupConfig):
    """Improve a model by group relative policy optimisation: advantages are scores against those of the same prompt."""

    loss_type: Annotated[
        Literal["dapo", "grpo", "dr_grpo"],
        Opt("What losses are averaged over: all tokens (`dapo`), answers (`grpo`), or answers · limit (`dr_grpo`)."),
    ] = "dapo"
    scale_advantages: Annotated[
        Literal["group", "none"], Opt("Divide advantages by the spread of their group's scores, or do not.")
    ] = "group"
    clip_ratio_high: Annotated[float, Opt("How far the probability ratio may rise; 0 takes `clip_ratio`.", min=0)] = 0.0
    kl_estimator: Annotated[
        Literal["k2", "k3"],
        Opt("KL in the loss: `k2` has the gradient of the KL to the reference, `k3` (as in most trainers) another."),
    ] = "k2"


@dataclass
class RlooConfig(GroupConfig):
    """Improve a model by REINFORCE with the mean of the other answers to the prompt as baseline; KL in the reward."""
