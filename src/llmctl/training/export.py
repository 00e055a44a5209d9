"""Write an engine's weights as a Hugging Face folder, and read such weights back; shared by every training stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmctl.model.huggingface import save_weights, weight_files
from llmctl.training.config import TrainingConfig
from llmctl.training.engines.common import DTYPES

if TYPE_CHECKING:
    import torch

    from llmctl.model.config import ModelConfig
    from llmctl.training.distributed import World
    from llmctl.training.engines.base import Engine


def export_model(
    engine: Engine,
    folder: Path,
    config: TrainingConfig,
    world: World,
    *,
    shape: ModelConfig | None = None,
    tokenizer_folder: Path | None = None,
    extra_config: Mapping[str, Any] | None = None,
    weights: Iterable[tuple[str, torch.Tensor]] | None = None,
) -> None:
    """Write the model of an engine; every process calls it, the first one writes.

    Args:
        shape: of the model; the engine's own by default.
        tokenizer_folder: its tokenizer goes along.
        extra_config: more keys for ``config.json``.
        weights: (our name, full tensor) to write instead of the engine's.
    """
    source = engine.full_weights() if weights is None else iter(weights)
    if not world.is_main:
        for _ in source:
            pass
        return
    dtype = DTYPES[config.export_precision]
    narrowed = ((name, tensor.to(dtype)) for name, tensor in source)
    save_weights(shape or engine.model.config, narrowed, folder, tokenizer_folder, extra_config)  # type: ignore[arg-type]


def read_exported(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (our name, tensor) of every weight in a folder that `export_model` wrote."""
    from safetensors import safe_open

    from llmctl.model.huggingface import logical_name

    for theirs, path in weight_files(folder).items():
        name = logical_name(theirs)
        if name is not None:
            with safe_open(path, framework="pt") as handle:
                yield name, handle.get_tensor(theirs)
