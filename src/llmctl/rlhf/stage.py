"""Run the stages of reinforcement learning from human feedback: check the inputs, say what would be done, train."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from llmctl.artifacts.inputs import Input, open_input
from llmctl.artifacts.manifest import Manifest
from llmctl.config.common import RunOptions
from llmctl.errors import UserError
from llmctl.model.huggingface import SCORE_HEAD, find_model_folder, read_model_config, weight_files
from llmctl.rlhf import comparisons, prompts
from llmctl.rlhf.config import DpoConfig, RewardConfig, RolloutConfig
from llmctl.rlhf.rewards import RewardCommand, RewardFunction, split_function_name
from llmctl.training.conversations.template import load_chat_template
from llmctl.training.launch import run_stage


def run_reward(
    source: Path, output: Path, config: RewardConfig, options: RunOptions, *, model: Path, validation: Path | None
) -> Manifest | None:
    """Train a reward model on comparisons; see `RewardConfig`."""
    return _on_comparisons("reward", source, output, config, options, model, validation)


def run_dpo(
    source: Path, output: Path, config: DpoConfig, options: RunOptions, *, model: Path, validation: Path | None
) -> Manifest | None:
    """Train a model on comparisons directly; see `DpoConfig`."""
    return _on_comparisons("dpo", source, output, config, options, model, validation)


def _on_comparisons(
    kind: str,
    source: Path,
    output: Path,
    config: RewardConfig,
    options: RunOptions,
    model: Path,
    validation: Path | None,
) -> Manifest | None:
    inputs = [open_input(source, role="source", kinds=("preferences",)), _model_input(model, "model")]
    if validation is not None:
        inputs.append(open_input(validation, role="validation", kinds=("preferences",)))
    folder = _language_model(model)

    def plan() -> dict[str, Any]:
        shape = read_model_config(folder)
        data = comparisons.build(
            inputs[0],
            inputs[2] if validation is not None else None,
            load_chat_template(folder),
            seq_len=min(config.seq_len, shape.max_seq_len or config.seq_len),
            validation_fraction=config.validation_fraction,
            min_comparisons=config.min_comparisons,
            seed=config.seed,
        )
        return data.statistics

    return run_stage(
        f"llmctl.rlhf.{kind}_train:train",
        output,
        config,
        stage=f"rlhf-{kind}",
        inputs=inputs,
        options=options,
        plan=plan,
    )


def run_ppo(source: Path, output: Path, config: RolloutConfig, options: RunOptions, **given: Any) -> Manifest | None:
    """Improve a model against a reward with a value model; see `PpoConfig` and `_on_prompts`."""
    return _on_prompts("ppo", "ppo_train", source, output, config, options, **given)


def run_grpo(source: Path, output: Path, config: RolloutConfig, options: RunOptions, **given: Any) -> Manifest | None:
    """Improve a model against a reward, relative to groups of answers; see `GrpoConfig` and `_on_prompts`."""
    return _on_prompts("grpo", "group_train", source, output, config, options, **given)


def run_rloo(source: Path, output: Path, config: RolloutConfig, options: RunOptions, **given: Any) -> Manifest | None:
    """Improve a model against a reward with leave-one-out baselines; see `RlooConfig` and `_on_prompts`."""
    return _on_prompts("rloo", "group_train", source, output, config, options, **given)


def _on_prompts(
    kind: str,
    module: str,
    source: Path,
    output: Path,
    config: RolloutConfig,
    options: RunOptions,
    *,
    model: Path,
    reward: Path | None = None,
    reward_fn: str | None = None,
    held_out_reward: Path | None = None,
) -> Manifest | None:
    """Run a stage that samples answers to prompts.

    Args:
        source: prompts, raw or an artifact.
        model: the policy to start from, and the reference.
        reward: a run of `llmctl rlhf reward`, or a folder with its model.
        reward_fn: ``FILE.py:NAME`` of a function of the user's.
        held_out_reward: a reward model that is only watched.

    Raises:
        UserError: not exactly one reward, or an input that cannot be used.
    """
    if (reward is not None) + (reward_fn is not None) + bool(config.reward_command) != 1:
        raise UserError(
            f"{kind} needs one reward",
            "give --reward RUN (made by `llmctl rlhf reward`), --reward-fn FILE.py:NAME or --reward-command COMMAND",
        )
    inputs = [
        open_input(source, role="source", kinds=("conversations", "preferences")),
        _model_input(model, "model"),
    ]
    folder = _language_model(model)
    for role, path in (("reward", reward), ("held_out_reward", held_out_reward)):
        if path is not None:
            inputs.append(_model_input(path, role))
            if SCORE_HEAD not in weight_files(find_model_folder(path)):
                raise UserError(
                    f"{path} holds a language model, not a reward model", "train one with `llmctl rlhf reward`"
                )
    if config.reward_command:
        RewardCommand(config.reward_command)
    if reward_fn is not None:
        file, name = split_function_name(reward_fn)
        RewardFunction(file, name)  # fails now, and not after the models are loaded
        inputs.append(open_input(file, role="reward_fn"))
        config = dataclasses.replace(config, reward_function=name)

    def plan() -> dict[str, Any]:
        limit = read_model_config(folder).max_seq_len or config.seq_len
        return prompts.build(inputs[0], load_chat_template(folder), min(config.seq_len, limit) - config.max_new_tokens)

    return run_stage(
        f"llmctl.rlhf.{module}:train", output, config, stage=f"rlhf-{kind}", inputs=inputs, options=options, plan=plan
    )


def _model_input(path: Path, role: str) -> Input:
    return open_input(path, role=role, kinds=("model",), payload="model/")


def _language_model(path: Path) -> Path:
    """Return the Hugging Face folder of a language model."""
    folder = find_model_folder(path)
    read_model_config(folder)
    if SCORE_HEAD in weight_files(folder):
        raise UserError(f"{path} holds a reward model, not a language model", "give a run of pretrain or sft")
    return folder
