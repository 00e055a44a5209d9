"""What an engine is: it owns a model, its optimizer and its processes, and makes optimizer steps.

The loss of a step is the sum over the whole global batch divided by the whole weight (for language models: the number
of valid tokens), over all micro-batches and all processes; so neither depends on how the batch was cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import nn

    from llmctl.training.config import TrainingConfig

    Batch = dict[str, torch.Tensor]


@dataclass
class LossOutput:
    """What a loss gives for one micro-batch.

    Attributes:
        total: the loss summed over the terms of the micro-batch, a scalar with a gradient.
        metrics: further sums over the same terms, detached scalars.
    """

    total: torch.Tensor
    metrics: dict[str, torch.Tensor] = field(default_factory=dict)


class Loss(Protocol):
    """A training objective."""

    def weight(self, batch: Batch) -> float:
        """Return the number of terms that the loss of this micro-batch sums, e.g. its valid tokens."""
        ...

    def __call__(self, model: Any, batch: Batch) -> LossOutput:
        """Compute the loss of one micro-batch; `model` is the module itself, already on the batch's device."""
        ...


@dataclass
class StepReport:
    """What one optimizer step, or one evaluation, came to.

    Attributes:
        loss: sum over the global batch divided by the global weight.
        grad_norm: norm of the whole gradient before clipping, each parameter counted once.
        metrics: the loss's metrics, divided by the global weight.
        weight: the global weight.
        seconds: time of this process by phase: `forward`, `backward`, `communication`, `update`.
        skipped: the update was left out, because the gradient was not finite.
        lr: the learning rate of the update.
        sent_bytes: bytes that this process sent, by group (``tp``, ``dp``, ``pp``, ``ends``), as a ring sends them.
        waited_s: time of this process in blocking communication, by group.
    """

    loss: float
    grad_norm: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    weight: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    skipped: bool = False
    lr: float = 0.0
    sent_bytes: dict[str, float] = field(default_factory=dict)
    waited_s: dict[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """Makes optimizer steps. A run may own several (policy and value model in PPO).

    Attributes:
        max_grad_norm: gradients are scaled down to this norm, 0 leaves them; may be changed between two steps.
    """

    name: str
    config: TrainingConfig
    max_grad_norm: float
    model: nn.Module
    device: torch.device
    rank: int
    world_size: int
    data_parallel_rank: int
    data_parallel_size: int

    def step(self, micro_batches: Sequence[Batch], loss: Loss, lr: float) -> StepReport:
        """Make one optimizer step over this replica's micro-batches (on any device; moved as needed).

        Every process calls it with its own micro-batches, the same number everywhere (a micro-batch of weight 0 is
        legal: labels of −100 only).
        """
        ...

    def evaluate(self, micro_batches: Sequence[Batch], loss: Loss) -> StepReport:
        """Return loss and metrics over every process's micro-batches, without gradients and dropout."""
        ...

    def full_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, full tensor) of every parameter, on the CPU; every process must exhaust it.

        The tensors are in the optimizer's precision. Only process 0 gets the values; elsewhere they are empty.
        """
        ...

    def snapshot(self) -> tuple[Iterator[tuple[str, torch.Tensor]], dict[str, Any]]:
        """Return what `save` writes: (name, full tensor) lazily, and plain values; every process must exhaust it.

        The tensors may share memory with the engine until the next step; process 0 alone gets their values.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state as logical tensors into a folder; called by every process."""
        ...

    def load(self, folder: Path) -> None:
        """Take weights and optimizer state from a folder that `save` wrote, under any layout."""
        ...

    def close(self) -> None:
        """Release what the engine holds."""
        ...
