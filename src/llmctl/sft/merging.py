"""Merge an adapter into the model that it was trained on."""

from __future__ import annotations

from pathlib import Path

import torch

from llmctl.artifacts.inputs import open_input
from llmctl.artifacts.manifest import Manifest
from llmctl.artifacts.output import open_output
from llmctl.config.common import RunOptions
from llmctl.errors import UserError
from llmctl.model.huggingface import find_model_folder, read_model_config, save_weights
from llmctl.model.lora import ADAPTER_CONFIG, load_adapter, merge, read_tensors
from llmctl.sft.config import MergeConfig
from llmctl.training.launch import MODEL_FOLDER, model_files

ADAPTER_FOLDER = "adapter"


def run(model: Path, adapter: Path, output: Path, config: MergeConfig, options: RunOptions) -> Manifest:
    """Write a model with an adapter merged into it, in float32, as a Hugging Face folder.

    Args:
        model: the run or Hugging Face folder that the adapter was trained on.
        adapter: peft's folder, or a run of ``llmctl sft --lora-rank``.

    Raises:
        UserError: no adapter there, one of another model, or one that cannot be merged exactly.
    """
    inputs = [
        open_input(model, role="model", kinds=("model",), payload="model/"),
        open_input(adapter, role="adapter", kinds=("model",), payload="adapter/"),
    ]
    folder = find_model_folder(model)
    shape = read_model_config(folder)
    tensors, scale = load_adapter(_adapter_folder(adapter))
    with open_output(output, kind="model", stage="merge", config=config, inputs=inputs, options=options) as out:
        if out.finished is not None:
            return out.finished
        layers = len({name.rpartition(".")[0] for name in tensors})
        statistics = {"layers": layers, "parameters": shape.num_parameters(), "scale": scale}
        if options.dry_run:
            return Manifest(kind="model", stage="merge", config={}, files=[], statistics=statistics)
        dtype = torch.float32 if config.export_precision == "fp32" else torch.bfloat16
        merged = ((name, tensor.to(dtype)) for name, tensor in merge(read_tensors(folder), tensors, scale))
        save_weights(shape, merged, out.root / MODEL_FOLDER, folder)
        return out.finish(model_files(out.root), statistics)


def _adapter_folder(path: Path) -> Path:
    if (path / ADAPTER_CONFIG).is_file():
        return path
    if (path / ADAPTER_FOLDER / ADAPTER_CONFIG).is_file():
        return path / ADAPTER_FOLDER
    if (path / MODEL_FOLDER).is_dir():
        raise UserError(
            f"{path} holds no adapter", f"its model is whole already: {path / MODEL_FOLDER} needs no merging"
        )
    raise UserError(f"{path} holds no adapter", f"give a folder with {ADAPTER_CONFIG}, or a run of sft --lora-rank")
