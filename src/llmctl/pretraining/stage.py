"""Run pretraining: check what can be checked before anything starts, then train."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from llmctl.artifacts.inputs import Input, open_input
from llmctl.artifacts.manifest import Manifest
from llmctl.config.common import RunOptions
from llmctl.config.load import build, find_config, read_yaml
from llmctl.loading.config import MixtureConfig
from llmctl.model.huggingface import read_model_config
from llmctl.pretraining.config import PretrainConfig
from llmctl.training.checkpoint import find_checkpoint
from llmctl.training.launch import check_plan, check_processes, run_stage


def run(source: Path, output: Path, config: PretrainConfig, options: RunOptions) -> Manifest | None:
    """Pretrain a model on shards; see `PretrainConfig`.

    Args:
        source: a `shards` artifact.
        output: the run's folder; an unfinished run in it goes on.

    Returns:
        The manifest; None in processes that are not the first.
    """
    if config.mixture_table is not None:
        config = dataclasses.replace(config, mixture=read_table(config.mixture_table))
    processes = check_processes(config)  # first: a layout that this machine cannot run needs no shards to be refused
    check_plan(config, processes, read_model_config(config.init_from) if config.init_from else config.model)
    inputs: list[Input] = [open_input(source, role="source", kinds=("shards",), raw=False)]
    if config.mixture.phases or config.max_epochs:
        check_mixture(source, config)
    if config.init_from:
        inputs.append(open_input(config.init_from, role="model", kinds=("model",), payload="model/"))
    if config.resume_from:
        folder = find_checkpoint(Path(config.resume_from))
        inputs.append(open_input(folder, role="checkpoint", kinds=("checkpoint",), raw=False, payload=""))
    return run_stage(
        "llmctl.pretraining.train:train",
        output,
        config,
        stage="pretrain",
        inputs=inputs,
        options=options,
        plan=lambda: _plan(source, config),
    )


def read_table(table: str) -> MixtureConfig:
    """Read a mixture of its own YAML file, or one that ships with llmctl.

    Raises:
        UserError: no such table, or it makes no sense.
    """
    return build(MixtureConfig, read_yaml(find_config(table, "mixture")), "mixture.")


def check_mixture(source: Path, config: PretrainConfig) -> None:
    """Refuse a mixture or a limit of epochs that the shards cannot keep, before anything is written.

    Raises:
        UserError: see `plan_mixture` and `columns_of`.
    """
    from llmctl.artifacts.shards import open_shards
    from llmctl.pretraining.data import PretrainingData

    PretrainingData(open_shards(source, verify=False), config, 1)


def _plan(source: Path, config: PretrainConfig) -> dict[str, Any]:
    from llmctl.artifacts.shards import open_shards
    from llmctl.pretraining.data import PretrainingData
    from llmctl.pretraining.mixture_report import say_mixture
    from llmctl.pretraining.train import resolve

    documents = open_shards(source, verify=False)
    resolved = resolve(config, documents)
    data = PretrainingData(documents, resolved, 1)
    say_mixture(data.loader)
    facts = data.loader.packing_facts()
    return {
        "parameters": resolved.model.num_parameters(),
        "training_tokens": data.loader.num_tokens,
        "sequences_per_epoch": facts.sequences,
        "cut_documents": facts.cut_documents,
        "truncated_share": round(facts.truncated_share, 6),
        "padded_share": round(facts.padded_share, 6),
        "mixture": data.loader.plan.to_mapping(),
        "epochs": round(data.epochs, 4),
        "validation_documents": len(data.held_out),
    }
