"""Low-rank adapters (Hu et al. 2021) and DoRA (Liu et al. 2024, eq. 5) on a decoder's linear layers.

Embeddings, output layer and norms stay as they are, so that tied embeddings stay tied; only where the vocabulary grows
are embedding and output layer learned as a whole. Merging is done in float32 on the weights that the training started
from, whatever precision it computed in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from llmctl.artifacts.files import write_json
from llmctl.errors import UserError
from llmctl.model.huggingface import exported_name, logical_name, weight_files
from llmctl.model.initialization import normal_slice
from llmctl.model.layers import ColumnLinear, RowLinear, Shard, new_parameter
from llmctl.model.transformer import Transformer
from llmctl.model.vocabulary import VOCABULARY_ROWS

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PEFT_PREFIX = "base_model.model."
_PEFT_NAMES = {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight", "magnitude": "lora_magnitude_vector"}
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def merged_weight(
    weight: torch.Tensor, lora_a: torch.Tensor, lora_b: torch.Tensor, scale: float, magnitude: torch.Tensor | None
) -> torch.Tensor:
    """Return W + scale·B·A; with a magnitude its rows get that length (DoRA)."""
    merged = weight + scale * (lora_b @ lora_a)
    if magnitude is None:
        return merged
    # The length counts as a constant in the gradient (section 4.3): it saves memory and changes little.
    return merged * (magnitude / merged.detach().norm(dim=1)).unsqueeze(1)


class LoraLinear(nn.Module):
    """A frozen linear layer with a low-rank change that is learned."""

    def __init__(self, base: ColumnLinear | RowLinear, rank: int, scale: float, dora: bool) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        outputs, inputs = base.weight.shape
        self.lora_a = new_parameter((rank, inputs), Shard((rank, inputs)))
        self.lora_b = new_parameter((outputs, rank), Shard((outputs, rank)))
        self.magnitude = new_parameter((outputs,), Shard((outputs,))) if dora else None

    @torch.no_grad()
    def initialize(self, name: str, seed: int) -> None:
        """Set A to small random values, B to zero and the magnitude to the rows' lengths: nothing changes at first."""
        rank, inputs = self.lora_a.shape
        self.lora_a.copy_(normal_slice(seed, f"{name}.lora_a", (rank, inputs), range(rank), None) * inputs**-0.5)
        self.lora_b.zero_()
        if self.magnitude is not None:
            self.magnitude.copy_(self.base.weight.float().norm(dim=1))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [..., inputs] to [..., outputs]."""
        if self.magnitude is not None:
            weight = merged_weight(self.base.weight, self.lora_a, self.lora_b, self.scale, self.magnitude)
            return F.linear(hidden, weight, getattr(self.base, "bias", None))
        plain: torch.Tensor = self.base(hidden)
        return plain + self.scale * F.linear(F.linear(hidden, self.lora_a), self.lora_b)


def add_lora(
    model: Transformer, rank: int, alpha: float, *, dora: bool, seed: int, train_vocabulary: bool = False
) -> None:
    """Freeze a model and give its linear layers adapters of a rank, scaled by alpha / rank.

    Args:
        train_vocabulary: go on learning embedding and output layer, for a vocabulary that has grown.
    """
    for name, parameter in model.logical_parameters():
        parameter.requires_grad_(train_vocabulary and name in VOCABULARY_ROWS)
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, ColumnLinear | RowLinear) and name.rsplit(".", 1)[-1] in TARGETS
    ]
    for name, module in layers:
        parent, _, last = name.rpartition(".")
        adapted = LoraLinear(module, rank, alpha / rank, dora)
        adapted.initialize(name, seed)
        setattr(model.get_submodule(parent), last, adapted)


def read_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (our name, tensor) of every weight in a Hugging Face folder."""
    from safetensors import safe_open

    for theirs, path in weight_files(folder).items():
        name = logical_name(theirs)
        if name is not None:
            with safe_open(path, framework="pt") as handle:
                yield name, handle.get_tensor(theirs)


def merge(
    weights: Iterable[tuple[str, torch.Tensor]], adapter: Mapping[str, torch.Tensor], scale: float
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every weight of a model with an adapter merged into it, float32.

    Args:
        weights: of the model that the adapter was trained on, by our names.
        adapter: tensors by ``<layer>.lora_a``, ``<layer>.lora_b`` and, for DoRA, ``<layer>.magnitude``; a weight that
            was learned as a whole stands under its own name.

    Raises:
        UserError: the adapter has layers that the model has not, or other shapes.
    """
    left = set(adapter)
    for name, tensor in weights:
        if name in adapter:
            left.discard(name)
            yield name, adapter[name].float()
            continue
        layer = name.removesuffix(".weight")
        first, second = adapter.get(f"{layer}.lora_a"), adapter.get(f"{layer}.lora_b")
        if first is None or second is None:
            yield name, tensor.float()
            continue
        if (second.shape[0], first.shape[1]) != tuple(tensor.shape):
            raise UserError(
                f"the adapter changes {layer} of shape {(second.shape[0], first.shape[1])}, and the model's is "
                f"{tuple(tensor.shape)}",
                "give the model that it was trained on",
            )
        magnitude = adapter.get(f"{layer}.magnitude")
        left -= {f"{layer}.lora_a", f"{layer}.lora_b", f"{layer}.magnitude"}
        yield (
            name,
            merged_weight(
                tensor.float(), first.float(), second.float(), scale, None if magnitude is None else magnitude.float()
            ),
        )
    if left:
        raise UserError(f"the model has no layer for {sorted(left)[0]}", "give the model that it was trained on")


def adapter_tensors(
    weights: Iterable[tuple[str, torch.Tensor]], *, train_vocabulary: bool = False
) -> dict[str, torch.Tensor]:
    """Return what is learned, out of all weights of an adapted model; exhausts them."""
    return {
        name: tensor
        for name, tensor in weights
        if name.rsplit(".", 1)[-1] in _PEFT_NAMES or (train_vocabulary and name in VOCABULARY_ROWS)
    }


def save_adapter(folder: Path, adapter: Mapping[str, torch.Tensor], rank: int, alpha: float) -> None:
    """Write an adapter in the format of peft."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, tensor in adapter.items():
        layer, _, kind = name.rpartition(".")
        theirs = exported_name(f"{layer}.weight").removesuffix(".weight")
        tensors[f"{_PEFT_PREFIX}{theirs}.{_PEFT_NAMES[kind]}"] = tensor.float().contiguous()
    save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_dora": any(name.endswith(".magnitude") for name in adapter),
        "target_modules": list(TARGETS),
        "base_model_name_or_path": None,
        "inference_mode": True,
    }
    write_json(folder, ADAPTER_CONFIG, settings)


def load_adapter(folder: Path) -> tuple[dict[str, torch.Tensor], float]:
    """Return (tensors in our names, scale) of an adapter that peft or `save_adapter` wrote.

    Raises:
        UserError: no adapter there, or one that cannot be merged exactly.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        settings: dict[str, Any] = json.loads((folder / ADAPTER_CONFIG).read_bytes())
        tensors = load_file(folder / ADAPTER_WEIGHTS)
    except (OSError, ValueError, SafetensorError) as failure:
        raise UserError(f"{folder} holds no adapter that can be read: {failure}", "give peft's folder") from None
    odd = [key for key in ("rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out") if settings.get(key)]
    if settings.get("peft_type") != "LORA" or odd or settings.get("bias", "none") != "none":
        what = ", ".join(odd) or f"type {settings.get('peft_type')}, bias {settings.get('bias')}"
        raise UserError(f"the adapter uses {what}", "merge it with peft")
    kinds = {theirs: ours for ours, theirs in _PEFT_NAMES.items()}
    found = {}
    for name, tensor in tensors.items():
        layer, kind = next(
            ((name.removesuffix(f".{theirs}"), ours) for theirs, ours in kinds.items() if name.endswith(theirs)),
            (name, ""),
        )
        ours = logical_name(layer.removeprefix(_PEFT_PREFIX))
        if not kind or ours is None or ours.rsplit(".", 1)[-1] not in TARGETS:
            # An adapter on the embedding of a tied model would change the output layer too.
            raise UserError(f"the adapter changes {layer.removeprefix(_PEFT_PREFIX)}", "merge it with peft")
        found[f"{ours}.{kind}"] = tensor
    rank = float(settings["r"])
    return found, float(settings["lora_alpha"]) / (rank**0.5 if settings.get("use_rslora") else rank)
