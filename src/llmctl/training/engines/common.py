"""What both engines share: the wrapped module, phases of a step, precision, checks of stored tensors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from llmctl.errors import UserError
from llmctl.training.engines.base import Loss, LossOutput
from llmctl.training.tensors import StoredTensors

Batch = dict[str, torch.Tensor]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
WEIGHTS = "weights"


class StepModule(nn.Module):
    """The model and its loss as one forward call, so that wrappers (DDP, ZeRO) see every use of a parameter."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, loss: Loss, batch: Batch) -> LossOutput:
        """Compute the loss of one micro-batch."""
        return loss(self.model, batch)


class Phases:
    """Seconds of a step by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


def autocast(precision: str, device: torch.device) -> Any:
    """Return the context in which forward passes run."""
    if precision in ("bf16", "fp16"):
        return torch.autocast(device.type, dtype=DTYPES[precision])
    return nullcontext()


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch on the device."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def local_weight(micro_batches: Sequence[Batch], loss: Loss) -> float:
    """Return the weight of this replica's micro-batches."""
    return float(sum(loss.weight(batch) for batch in micro_batches))


def parameters_of(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return (full name, parameter), tied weights once."""
    return list(model.named_parameters(remove_duplicate=True))


def clip_coefficient(norm: float, max_norm: float) -> float:
    """Return what gradients are multiplied by, so that their norm is at most `max_norm` (0 leaves them)."""
    return 1.0 if max_norm <= 0 or norm <= max_norm else max_norm / (norm + 1e-6)


def check_stored(stored: StoredTensors, name: str, shape: tuple[int, ...]) -> None:
    """Refuse a stored tensor of another shape."""
    if stored.shape(name) != shape:
        raise UserError(
            f"the checkpoint has `{name}` of shape {stored.shape(name)} instead of {shape}",
            "it belongs to another model",
        )


def move_module(module: nn.Module, precision: str, device: torch.device) -> nn.Module:
    """Put a module on the device with master weights in float32 (float64 for fp64)."""
    return module.to(device=device, dtype=torch.float64 if precision == "fp64" else torch.float32)


def compile_layers(model: nn.Module) -> None:
    """Compile each decoder layer by itself; the first step takes the time of compiling one."""
    import torch._dynamo

    from llmctl.model import dropout
    from llmctl.model.transformer import DecoderLayer

    # Inductor's C++ (torch 2.13) mixes the hash's integers up with floats.
    dropout.keep_mask = torch.compiler.disable(dropout.keep_mask)

    # The number of a layer must not make its code another: one compilation serves all.
    torch._dynamo.config.allow_unspec_int_on_nn_module = True
    for module in model.modules():
        if isinstance(module, DecoderLayer):
            module.compile()
