"""`llmctl rlhf reward | ppo | dpo | grpo | rloo`: reward models, and alignment with or without one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from llmctl.cli.options import report_manifest, stage_command
from llmctl.config.common import RunOptions
from llmctl.rlhf.config import DpoConfig, GrpoConfig, PpoConfig, RewardConfig, RlooConfig

Comparisons = Annotated[
    Path, typer.Argument(help="Comparisons: chosen and rejected, or ranked responses; JSON, JSONL or Parquet.")
]
Model = Annotated[Path, typer.Option("--model", help="The model to start from: a run or a Hugging Face folder.")]
Validation = Annotated[
    Path | None, typer.Option("--validation", help="Comparisons to validate on; a share of SOURCE by default.")
]
Prompts = Annotated[Path, typer.Argument(help="Prompts: `prompt`, `messages` or `instruction`; answers are ignored.")]
RewardRun = Annotated[
    Path | None, typer.Option("--reward", help="A run of `llmctl rlhf reward`, or a folder with its model.")
]
RewardFn = Annotated[
    str | None,
    typer.Option(
        "--reward-fn",
        help="FILE.py:NAME of a function (prompts, responses[, records]) → scores, one per response.",
    ),
]
HeldOutReward = Annotated[
    Path | None,
    typer.Option("--held-out-reward", help="Another reward model, not trained against: it tells when one is gamed."),
]
_OUTPUT_HELP = "Folder of the run; model/ in it is a Hugging Face folder."


def register(app: typer.Typer) -> None:
    """Add `llmctl rlhf` with its stages."""
    group = typer.Typer(
        no_args_is_help=True, help="Learn from preferences and rewards: reward model, PPO, DPO, GRPO, RLOO."
    )
    group.command("reward")(reward)
    group.command("ppo")(ppo)
    group.command("dpo")(dpo)
    group.command("grpo")(grpo)
    group.command("rloo")(rloo)
    app.add_typer(group, name="rlhf")


@stage_command(RewardConfig, stage="rlhf")
def reward(
    source: Comparisons,
    output: Annotated[Path, typer.Argument(help=_OUTPUT_HELP)] = Path("runs/reward"),
    *,
    model: Model,
    validation: Validation = None,
    config: RewardConfig,
    options: RunOptions,
) -> None:
    """Train a reward model on pairs or ranked lists of answers."""
    from llmctl.rlhf.stage import run_reward

    _report(run_reward(source, output, config, options, model=model, validation=validation), output, config)


@stage_command(DpoConfig, stage="rlhf")
def dpo(
    source: Comparisons,
    output: Annotated[Path, typer.Argument(help=_OUTPUT_HELP)] = Path("runs/dpo"),
    *,
    model: Model,
    validation: Validation = None,
    config: DpoConfig,
    options: RunOptions,
) -> None:
    """Train a model on comparisons directly, without a reward model."""
    from llmctl.rlhf.stage import run_dpo

    _report(run_dpo(source, output, config, options, model=model, validation=validation), output, config)


@stage_command(PpoConfig, stage="rlhf")
def ppo(
    source: Prompts,
    output: Annotated[Path, typer.Argument(help=_OUTPUT_HELP)] = Path("runs/ppo"),
    *,
    model: Model,
    reward: RewardRun = None,
    reward_fn: RewardFn = None,
    held_out_reward: HeldOutReward = None,
    config: PpoConfig,
    options: RunOptions,
) -> None:
    """Improve a model against a reward, with a KL penalty to where it started."""
    from llmctl.rlhf.stage import run_ppo

    rewards = {"reward": reward, "reward_fn": reward_fn, "held_out_reward": held_out_reward}
    _report(run_ppo(source, output, config, options, model=model, **rewards), output, config)


@stage_command(GrpoConfig, stage="rlhf")
def grpo(
    source: Prompts,
    output: Annotated[Path, typer.Argument(help=_OUTPUT_HELP)] = Path("runs/grpo"),
    *,
    model: Model,
    reward: RewardRun = None,
    reward_fn: RewardFn = None,
    held_out_reward: HeldOutReward = None,
    config: GrpoConfig,
    options: RunOptions,
) -> None:
    """Improve a model against a reward; the other answers to a prompt are the baseline (GRPO)."""
    from llmctl.rlhf.stage import run_grpo

    rewards = {"reward": reward, "reward_fn": reward_fn, "held_out_reward": held_out_reward}
    _report(run_grpo(source, output, config, options, model=model, **rewards), output, config)


@stage_command(RlooConfig, stage="rlhf")
def rloo(
    source: Prompts,
    output: Annotated[Path, typer.Argument(help=_OUTPUT_HELP)] = Path("runs/rloo"),
    *,
    model: Model,
    reward: RewardRun = None,
    reward_fn: RewardFn = None,
    held_out_reward: HeldOutReward = None,
    config: RlooConfig,
    options: RunOptions,
) -> None:
    """Improve a model against a reward; the mean of the other answers is the baseline (RLOO)."""
    from llmctl.rlhf.stage import run_rloo

    rewards = {"reward": reward, "reward_fn": reward_fn, "held_out_reward": held_out_reward}
    _report(run_rloo(source, output, config, options, model=model, **rewards), output, config)


def _report(manifest: Any, output: Path, config: Any) -> None:
    from llmctl.artifacts.accounting import enforce_invalid_share

    if manifest is None:
        return
    report_manifest(manifest, output)
    enforce_invalid_share(manifest.statistics["records"], config.max_invalid_share)
