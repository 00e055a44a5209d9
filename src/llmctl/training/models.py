"""Build the part of a decoder that this process holds under the run's layout."""

from __future__ import annotations

from pathlib import Path

from llmctl.errors import UserError
from llmctl.model.config import ModelConfig
from llmctl.model.huggingface import find_model_folder, load_weights
from llmctl.model.layers import TensorGroup
from llmctl.model.transformer import Transformer
from llmctl.model.vocabulary import GrownTokens
from llmctl.training.config import TrainingConfig
from llmctl.training.distributed import World
from llmctl.training.layout import Layout, stage_chunks


def check_model_layout(shape: ModelConfig, layout: Layout, virtual_stages: int = 1) -> None:
    """Refuse a shape that cannot be split as the layout asks.

    Raises:
        UserError: names what does not divide, and the nearest number that does.
    """
    stage_chunks(shape.num_layers, layout.pp, 0, virtual_stages)
    for what, count in (
        ("num_heads", shape.num_heads),
        ("num_kv_heads", shape.kv_heads),
        ("ffn_hidden_size", shape.ffn_hidden_size),
    ):
        if count % layout.tp:
            fitting = [size for size in range(1, layout.tp + 1) if _divides(shape, size)]
            raise UserError(
                f"model.{what} {count} cannot be split over tp {layout.tp}",
                f"use --tp {max(fitting)}, or make it a multiple of {layout.tp}",
            )


def _divides(shape: ModelConfig, size: int) -> bool:
    return not (shape.num_heads % size or shape.kv_heads % size or shape.ffn_hidden_size % size)


def build_model(
    shape: ModelConfig,
    config: TrainingConfig,
    world: World,
    weights: Path | str | None = None,
    grown: GrownTokens | None = None,
) -> Transformer:
    """Return this process's part of a decoder, with initial values by `config.seed` or weights from a folder.

    Args:
        grown: new tokens that the shape has and the weights have not.

    Raises:
        UserError: see `check_model_layout` and `load_weights`.
    """
    check_model_layout(shape, world.layout, config.virtual_stages)
    group = TensorGroup(world.layout.tp, world.tp_rank, world.groups.get("tp"), config.sequence_parallel)
    layers = stage_chunks(shape.num_layers, world.layout.pp, world.pp_rank, config.virtual_stages)
    model = Transformer(shape, group=group, layers=layers, seed=None if weights is not None else config.seed)
    model.recompute = config.recompute
    if weights is not None:
        load_weights(model, find_model_folder(weights), grown)
    return model
