"""Run supervised fine-tuning: check the inputs, say what would be done, train."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from llmctl.artifacts.inputs import Input, open_input
from llmctl.artifacts.manifest import Manifest
from llmctl.config.common import RunOptions
from llmctl.model.huggingface import find_model_folder, read_model_config
from llmctl.model.vocabulary import find_tokenizer_folder, grown_shape, growth_of
from llmctl.sft.config import SftConfig
from llmctl.sft.data import build_data, limit_seq_len
from llmctl.sft.pretraining import ROLE, PretrainingText
from llmctl.training.conversations.template import load_chat_template
from llmctl.training.launch import run_stage


def run(
    source: Path,
    output: Path,
    config: SftConfig,
    options: RunOptions,
    *,
    model: Path,
    validation: Path | None = None,
) -> Manifest | None:
    """Fine-tune a model on conversations; see `SftConfig`.

    Args:
        source: conversations, raw or an artifact.
        model: a run or a Hugging Face folder.
        validation: conversations to validate on; a share of `source` where not given.

    Raises:
        UserError: an input that cannot be used, or nothing to learn in it.
    """
    inputs = [
        open_input(source, role="source", kinds=("conversations",)),
        open_input(model, role="model", kinds=("model",), payload="model/"),
    ]
    if validation is not None:
        inputs.append(open_input(validation, role="validation", kinds=("conversations",)))
    folder = find_model_folder(model)
    read_model_config(folder)
    tokenizer = folder
    if config.tokenizer is not None:
        tokenizer = find_tokenizer_folder(config.tokenizer)
        inputs.append(open_input(tokenizer, role="tokenizer"))
    if config.pretrain_shards is not None:
        inputs.append(open_input(config.pretrain_shards, role=ROLE, kinds=("shards",), raw=False))
    return run_stage(
        "llmctl.sft.train:train",
        output,
        config,
        stage="sft",
        inputs=inputs,
        options=options,
        plan=lambda: _plan(inputs, folder, tokenizer, config),
    )


def _plan(inputs: list[Input], folder: Path, tokenizer: Path, config: SftConfig) -> dict[str, Any]:
    """Read and render everything, and say what a run would do with it."""
    shape = read_model_config(folder)
    config = dataclasses.replace(config, seq_len=limit_seq_len(config.seq_len, shape))
    by_role = {source.role: source for source in inputs}
    template = load_chat_template(tokenizer)
    data = build_data(by_role["source"], by_role.get("validation"), template, config)
    more = {}
    if ROLE in by_role:
        vocab_size = grown_shape(shape, growth_of(folder, shape.vocab_size, tokenizer)).vocab_size
        text = PretrainingText(by_role[ROLE].root, config, template, vocab_size, data.training, data.plan)
        more["pretraining"] = text.facts()
    return {
        "records": data.statistics["records"],
        "conversations": data.statistics["conversations"],
        "sequences": len(data.plan.packs),
        "steps": data.total_steps(config),
        "learned_tokens": data.training.num_trained,
        "by_reason": data.statistics["by_reason"],
        "by_error": data.statistics["by_error"],
        **more,
    }
