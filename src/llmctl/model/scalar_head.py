"""A decoder with one number per position instead of logits: reward models and value functions.

Saved in the layout of transformers' `…ForSequenceClassification` (one label), which reads it back and scores the
last token of a text, as `score_last` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from llmctl.artifacts.files import FileRecord
from llmctl.errors import UserError
from llmctl.model.config import ModelConfig
from llmctl.model.huggingface import (
    CONFIG_NAME,
    SCORE_HEAD,
    exported_config,
    find_model_folder,
    logical_name,
    read_model_config,
    save_weights,
    weight_files,
)
from llmctl.model.initialization import normal_slice
from llmctl.model.layers import Shard
from llmctl.model.transformer import Transformer

BIAS_KEY = "llmctl_score_bias"


class ScalarModel(nn.Module):
    """A decoder and a linear head from its final hidden states to one number.

    Attributes:
        backbone: the decoder; its own output layer is not used.
        score: weight [1, width].
        bias: added to every number, so that the mean score of reference answers can be set to zero. Not learned.
    """

    def __init__(self, backbone: Transformer, *, bias: float = 0.0) -> None:
        super().__init__()
        if not backbone.config.tied_embeddings:
            # An untied output layer would be trained, counted and saved for nothing.
            backbone.lm_head = None
        self.backbone = backbone
        width = backbone.config.hidden_size
        self.score = nn.Parameter(torch.zeros(1, width))
        self.score.shard = Shard((1, width))  # type: ignore[attr-defined]
        self.bias = bias

    @property
    def config(self) -> ModelConfig:
        """Return the shape of the decoder."""
        return self.backbone.config

    def logical_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield (name, parameter) in the decoder's names; the head is called as in transformers."""
        yield from self.backbone.logical_parameters()
        yield SCORE_HEAD, self.score

    @torch.no_grad()
    def initialize_head(self, std: float, seed: int = 0) -> None:
        """Set the head's initial values: N(0, std²), or zero for a value function that should start neutral."""
        shape = (1, self.config.hidden_size)
        values = normal_slice(seed, SCORE_HEAD, shape, range(1), None) * std if std else torch.zeros(shape)
        self.score.copy_(values)

    def forward(self, input_ids: torch.Tensor, **positions: Any) -> torch.Tensor:
        """Return one number per position, at least float32 [batch, positions]; arguments as of `Transformer`."""
        hidden = self.backbone(input_ids, **positions)
        wide = hidden if hidden.dtype == torch.float64 else hidden.float()
        return F.linear(wide, self.score.to(wide.dtype)).squeeze(-1) + self.bias


def score_last(model: ScalarModel, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the number at the last token of each row, [batch].

    Args:
        input_ids: int64 [batch, positions], padded on the right; under a causal mask padding there changes nothing.
        lengths: int64 [batch], tokens of each row.
    """
    values = model(input_ids)
    return values.gather(1, (lengths - 1).unsqueeze(1)).squeeze(1)


def scalar_config_keys(config: ModelConfig) -> dict[str, Any]:
    """Return the keys of ``config.json`` that make transformers read a folder as a scalar model."""
    causal = str(exported_config(config)["architectures"][0])
    return {
        "architectures": [causal.replace("ForCausalLM", "ForSequenceClassification")],
        "id2label": {"0": "score"},
        "label2id": {"score": 0},
        "num_labels": 1,
    }


def save_scalar_model(
    model: ScalarModel, folder: Path | str, tokenizer_folder: Path | str | None = None
) -> list[FileRecord]:
    """Write a folder that `load_scalar_model` and `AutoModelForSequenceClassification` load (scores less the bias).

    Returns:
        The files written, with paths relative to `folder`.
    """
    weights = [(name, parameter.detach()) for name, parameter in model.logical_parameters()]
    extra = {**scalar_config_keys(model.config), BIAS_KEY: model.bias}
    return save_weights(model.config, weights, folder, tokenizer_folder, extra)


def load_scalar_model(
    folder: Path | str, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> ScalarModel:
    """Load a reward model (a folder that `save_scalar_model` or transformers wrote, or a run that holds one).

    Raises:
        UserError: no such model there.
    """
    from safetensors import SafetensorError, safe_open

    folder = find_model_folder(folder)
    files = weight_files(folder)
    if SCORE_HEAD not in files:
        raise UserError(f"{folder} holds a language model, not a reward model", "train one with `llmctl rlhf reward`")
    model = ScalarModel(Transformer(read_model_config(folder), seed=None))
    named = dict(model.logical_parameters())
    theirs = {logical_name(name): name for name in files}
    try:
        for name, parameter in named.items():
            if name not in theirs:
                raise UserError(f"{folder} lacks the weight {name}", "train or export the model again")
            with safe_open(files[theirs[name]], framework="pt") as handle, torch.no_grad():
                tensor = handle.get_tensor(theirs[name])
                if tensor.shape != parameter.shape:
                    raise UserError(
                        f"{folder} has {name} of shape {tuple(tensor.shape)} instead of {tuple(parameter.shape)}",
                        f"its {CONFIG_NAME} belongs to another model",
                    )
                parameter.copy_(tensor)
    except (SafetensorError, OSError) as failure:
        raise UserError(f"cannot read the weights in {folder}: {failure}", "train the model again") from None
    stored = json.loads((folder / CONFIG_NAME).read_bytes())
    model.bias = float(stored.get(BIAS_KEY, 0.0))
    return model.to(device=device, dtype=dtype or torch.float32)
