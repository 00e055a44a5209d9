"""Weights and optimizer state of the native engine as full tensors, gathered from and cut for any layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from llmctl.model.huggingface import copy_shard
from llmctl.model.layers import shard_of
from llmctl.training.config import TrainingConfig
from llmctl.training.distributed import World
from llmctl.training.engines.common import WEIGHTS, check_stored
from llmctl.training.engines.sharded import Shards
from llmctl.training.layout import stage_chunks
from llmctl.training.optimizers import STATE_NAMES
from llmctl.training.tensors import StoredTensors

Named = list[tuple[str, nn.Parameter]]


class NativeState:
    """The state of one process's part of a model.

    Args:
        parameters, trainable: (full name, parameter).
        shards: where optimizer state is split over the replicas.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainingConfig,
        world: World,
        parameters: Named,
        trainable: Named,
        optimizer: torch.optim.Optimizer,
        shards: Shards | None,
    ) -> None:
        self.model, self.config, self.world = model, config, world
        self.parameters, self.trainable = parameters, trainable
        self.optimizer, self.shards = optimizer, shards

    def full_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, full tensor) of every parameter; process 0 gets the values."""
        mine = dict(self.parameters)
        for name, stage in self._logical_names():
            yield name, self._gather(mine.get(name), lambda parameter: parameter.detach(), stage)

    def full_state(self, with_optimizer: bool) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (kind/name, full tensor) of weights and optimizer state."""
        for name, tensor in self.full_weights():
            yield f"{WEIGHTS}/{name}", tensor
        if not with_optimizer:
            return
        mine = dict(self.trainable)
        for kind in STATE_NAMES[self.config.optimizer]:
            for name, stage in self._logical_names(trainable=True):
                state = self._gather(mine.get(name), partial(self._state_of, kind), stage)
                yield f"{kind}/{name}", state

    def _state_of(self, kind: str, parameter: Any) -> torch.Tensor:
        if self.shards is not None:
            return self.shards.whole_state(self.optimizer, kind, parameter)
        state: torch.Tensor = self.optimizer.state[parameter][kind]
        return state

    def _logical_names(self, trainable: bool = False) -> list[tuple[str, int]]:
        """Return (name, pipeline stage that has it) of every parameter of the whole model, on every process alike."""
        stages = self.world.layout.pp
        if stages == 1:
            return [(name, 0) for name, _ in (self.trainable if trainable else self.parameters)]
        from llmctl.model.transformer import Transformer

        shape: Any = self.model.config
        found: dict[str, int] = {}
        for stage in range(stages):
            chunks = stage_chunks(shape.num_layers, stages, stage, self.config.virtual_stages)
            with torch.device("meta"):
                part = Transformer(shape, layers=chunks, seed=None)
            for name, _ in part.logical_parameters():
                found.setdefault(name, stage)
        return list(found.items())

    def _gather(
        self, parameter: torch.Tensor | None, values_of: Callable[[torch.Tensor], torch.Tensor], stage: int
    ) -> torch.Tensor:
        """Put the shards of a parameter (or of its optimizer state) together on process 0, without padding."""
        layout, empty = self.world.layout, torch.empty(0)
        here = stage == self.world.pp_rank and parameter is not None
        full = empty
        if here and parameter is not None:
            full, shard = values_of(parameter), shard_of(parameter)
            if shard.dim is not None and layout.tp > 1:
                pieces = [torch.empty_like(full) for _ in range(layout.tp)]
                dist.all_gather(pieces, full.contiguous(), group=self.world.groups["tp"])
                full = torch.cat(pieces, dim=shard.dim).narrow(shard.dim, 0, shard.shape[shard.dim])
        if stage > 0:
            owner = layout.rank_of(0, 0, stage)
            if self.world.rank == owner:
                _send(full, 0)
            elif self.world.rank == 0:
                return _receive(owner, self.world.device).cpu()
        return full.cpu() if self.world.is_main and here else empty

    def load_weights(self, stored: StoredTensors) -> None:
        """Take this process's part of stored weights."""
        for name, parameter in self.parameters:
            check_stored(stored, f"{WEIGHTS}/{name}", shard_of(parameter).shape)
            copy_shard(parameter, stored.piece(f"{WEIGHTS}/{name}"))

    def load_optimizer(self, stored: StoredTensors) -> int:
        """Take this process's part of stored optimizer state; returns the number of updates that made it."""
        self.optimizer.state.clear()
        steps = 0
        for target, name, parameter, offset in self._targets():
            state: dict[str, Any] = {}
            for kind in STATE_NAMES[self.config.optimizer]:
                if f"{kind}/{name}" not in stored:
                    continue
                whole = torch.zeros_like(parameter)
                whole.shard = shard_of(parameter)  # type: ignore[attr-defined]
                copy_shard(whole, stored.piece(f"{kind}/{name}"))
                flat = whole.flatten()[offset : offset + target.numel()]
                state[kind] = whole if target is parameter else flat.clone()
            if not state:
                continue
            steps = int(stored.scalars["optimizer_steps"])
            if self.config.optimizer != "sgd":
                state["step"] = torch.tensor(float(steps), device=self._step_device())
            self.optimizer.state[target] = state
        return steps

    def _targets(self) -> Iterator[tuple[nn.Parameter, str, nn.Parameter, int]]:
        """Yield what the optimizer updates: (parameter or piece, name, whole parameter, first element there)."""
        if self.shards is None:
            for name, parameter in self.trainable:
                yield parameter, name, parameter, 0
            return
        for piece, (number, offset) in zip(self.shards.pieces, self.shards.places, strict=True):
            if number >= 0:
                yield piece, self.shards.names[number], self.shards.parameters[number], offset

    def _step_device(self) -> torch.device:
        # The fused AdamW keeps its counter beside the parameters.
        return self.world.device if self.config.optimizer == "adamw" else torch.device("cpu")


def _send(tensor: torch.Tensor, target: int) -> None:
    """Send a tensor of any shape (up to eight dimensions)."""
    device = tensor.device
    header = torch.full((9,), -1, dtype=torch.int64, device=device)
    header[0] = 1 if tensor.dtype == torch.float64 else 0
    header[1 : 1 + tensor.ndim] = torch.tensor(tensor.shape, dtype=torch.int64, device=device)
    dist.send(header, target)
    dist.send(tensor.contiguous(), target)


def _receive(source: int, device: torch.device) -> torch.Tensor:
    header = torch.empty(9, dtype=torch.int64, device=device)
    dist.recv(header, source)
    wide, *shape = header.tolist()
    tensor = torch.empty(
        [size for size in shape if size >= 0], dtype=torch.float64 if wide else torch.float32, device=device
    )
    dist.recv(tensor, source)
    return tensor
