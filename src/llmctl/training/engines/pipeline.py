"""Pipeline parallelism: runs the operations that a schedule gives this process (`schedules.py`).

Every stage reads the same micro-batches; only hidden states and their gradients travel. Sends never wait; the receive
of the next operation is posted before the present one computes. Works with fewer micro-batches than stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from llmctl.model.collectives import TRAFFIC
from llmctl.model.deferred import WeightGradients
from llmctl.model.layers import ColumnLinear, RowLinear
from llmctl.training.distributed import World
from llmctl.training.engines.base import Loss, LossOutput
from llmctl.training.engines.common import Batch, Phases, autocast, to_device
from llmctl.training.engines.schedules import Operation, orders_of

# What a layer needs beside the hidden states; every stage takes it from the batch.
SIDE_INPUTS = ("position_ids", "document_ids", "attention_mask", "dropout_keys")


class Pipeline:
    """The stages of one replica, seen from one process.

    Args:
        model: this process's part of a `Transformer`: one stage, or several virtual ones.
        schedule: see `schedules.SCHEDULES`.
    """

    def __init__(self, model: nn.Module, world: World, precision: str, schedule: str = "1f1b") -> None:
        self.model: Any = model
        self.world, self.precision, self.schedule = world, precision, schedule
        # The residual stream stays wide under autocast.
        self.dtype = torch.float64 if precision == "fp64" else torch.float32
        self.stage, self.stages = world.pp_rank, world.layout.pp
        chunks: Any = model.chunks
        self.chunks = len(chunks)
        self._deferred: WeightGradients | None = None
        if schedule.startswith("zb"):
            self._deferred = WeightGradients()
            for module in model.modules():
                if isinstance(module, (ColumnLinear, RowLinear)):
                    module.deferred = self._deferred

    def train(
        self, micro_batches: Sequence[Batch], loss: Loss, scale: float, phases: Phases
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Run forward and backward of every micro-batch; gradients add up in the parameters.

        Args:
            scale: what each loss is multiplied by before its backward pass.

        Returns:
            The summed loss and metrics; zero and empty but on the last stage.
        """
        order = orders_of(self.schedule, self.stages, len(micro_batches), self.chunks)[self.stage]
        return self._run(order, micro_batches, loss, scale, phases)

    def evaluate(
        self, micro_batches: Sequence[Batch], loss: Loss, phases: Phases
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Run forward passes only; returns as `train` does."""
        count = len(micro_batches)
        order = [
            Operation("F", number, chunk)
            for first in range(0, count, self.stages)
            for chunk in range(self.chunks)
            for number in range(first, min(first + self.stages, count))
        ]
        return self._run(order, micro_batches, loss, 1.0, phases)

    def _run(
        self, order: Sequence[Operation], micro_batches: Sequence[Batch], loss: Loss, scale: float, phases: Phases
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        batches = [to_device(batch, self.world.device) for batch in micro_batches]
        links = _Links(self, batches, phases)
        sums = _Sums(self.world.device)
        live: dict[tuple[int, int], tuple[torch.Tensor | None, torch.Tensor]] = {}
        for number, operation in enumerate(order):
            links.expect(operation)
            if number + 1 < len(order):
                links.expect(order[number + 1])
            kind, micro_batch, chunk = operation
            key = (micro_batch, chunk)
            if kind == "W":
                assert self._deferred is not None
                with phases.measure("backward"):
                    self._deferred.compute()
                continue
            received = links.receive(operation)
            if kind == "F":
                if received is not None and torch.is_grad_enabled():
                    received.requires_grad_(True)
                output = self._forward(batches[micro_batch], chunk, received, loss, scale, sums, phases)
                links.send(operation, output.detach())
                if torch.is_grad_enabled():
                    live[key] = (received, output)
                continue
            hidden, output = live.pop(key)
            if self._deferred is not None:
                self._deferred.begin()
            with phases.measure("backward"):
                torch.autograd.backward(output, received)
            if hidden is not None:  # a stage without trained weights has no gradient, and the one before it waits
                links.send(operation, hidden.grad if hidden.grad is not None else torch.zeros_like(hidden))
        links.close()
        return sums.total, sums.metrics

    def _forward(
        self,
        batch: Batch,
        chunk: int,
        hidden: torch.Tensor | None,
        loss: Loss,
        scale: float,
        sums: _Sums,
        phases: Phases,
    ) -> torch.Tensor:
        """Return the hidden states for the next virtual stage, or on the last one the scaled loss."""
        self.model.chunk = chunk
        with phases.measure("forward"), autocast(self.precision, self.world.device):
            inputs = batch["input_ids"] if hidden is None else hidden
            if self.virtual(chunk) == self.stages * self.chunks - 1:
                output = loss(self.model, {**batch, "input_ids": inputs})
                sums.add(output)
                return output.total * scale
            sent: torch.Tensor = self.model(inputs, **{name: batch[name] for name in SIDE_INPUTS if name in batch})
            return sent.to(self.dtype)

    def virtual(self, chunk: int) -> int:
        """Return the number of a chunk's virtual stage."""
        return chunk * self.stages + self.stage

    def hidden_shape(self, batch: Batch) -> tuple[int, int, int]:
        """Return the shape of what travels between stages."""
        rows, length = batch["labels"].shape
        group = self.model.group
        return rows, length // (group.size if group.splits_sequence else 1), int(self.model.config.hidden_size)


class _Links:
    """What one process sends to and receives from its neighbours in one pass over the micro-batches."""

    def __init__(self, pipeline: Pipeline, batches: Sequence[Batch], phases: Phases) -> None:
        self.pipeline, self.batches, self.phases = pipeline, batches, phases
        self._arriving: dict[Operation, tuple[torch.Tensor, Any]] = {}
        self._leaving: list[tuple[torch.Tensor, Any]] = []

    def _link(self, operation: Operation, step: int) -> tuple[int, Any, int] | None:
        """Return (rank, group, tag) of the link over which a message crosses to or from a virtual stage.

        Each direction has its own group where the backend sends in order (NCCL), so that two stages that send to each
        other never wait for one another; tags tell messages apart where it does not (gloo).

        Args:
            step: +1 for the virtual stage after this operation's, −1 for the one before.
        """
        pipeline = self.pipeline
        here = pipeline.virtual(operation.chunk)
        other = here + step
        if not 0 <= other < pipeline.stages * pipeline.chunks:
            return None
        tp, dp, _ = pipeline.world.layout.coordinates(pipeline.world.rank)
        rank = pipeline.world.layout.rank_of(tp, dp, other % pipeline.stages)
        # Named by the edge between two virtual stages and the way the message goes.
        low = min(here, other)
        forward = operation.kind == "F"
        wraps = low % pipeline.stages == pipeline.stages - 1
        name = ("wrap " if wraps else "") + ("forward" if forward else "backward")
        tag = 1 + 2 * (operation.micro_batch * pipeline.stages * pipeline.chunks + low) + int(forward)
        return rank, pipeline.world.groups.get(name), tag

    def expect(self, operation: Operation) -> None:
        """Post the receive of what an operation needs, once."""
        if operation.kind == "W" or operation in self._arriving:
            return
        link = self._link(operation, -1 if operation.kind == "F" else 1)
        if link is None:
            return
        rank, group, tag = link
        batch = self.batches[operation.micro_batch]
        tensor = torch.empty(
            self.pipeline.hidden_shape(batch), dtype=self.pipeline.dtype, device=self.pipeline.world.device
        )
        self._arriving[operation] = (tensor, dist.irecv(tensor, rank, group=group, tag=tag))

    def receive(self, operation: Operation) -> torch.Tensor | None:
        """Return what an operation needs from a neighbour, None if it needs nothing."""
        if operation not in self._arriving:
            return None
        tensor, work = self._arriving.pop(operation)
        with self.phases.measure("communication"), TRAFFIC.measure("pp", 0):
            work.wait()
        return tensor

    def send(self, operation: Operation, tensor: torch.Tensor) -> None:
        """Send what an operation made to the neighbour that needs it; returns at once."""
        link = self._link(operation, 1 if operation.kind == "F" else -1)
        if link is None:
            return
        rank, group, tag = link
        # A tensor stays until it has gone.
        self._leaving = [(kept, work) for kept, work in self._leaving if not work.is_completed()]
        tensor = tensor.contiguous()
        self._leaving.append((tensor, dist.isend(tensor, rank, group=group, tag=tag)))
        TRAFFIC.add("pp", tensor.numel() * tensor.element_size())

    def close(self) -> None:
        """Wait until everything has gone."""
        with self.phases.measure("communication"):
            for _, work in self._leaving:
                work.wait()


class _Sums:
    """Loss and metrics summed over micro-batches."""

    def __init__(self, device: torch.device) -> None:
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.metrics: dict[str, torch.Tensor] = {}

    def add(self, output: LossOutput) -> None:
        self.total += output.total.detach()
        for name, value in output.metrics.items():
            known: Any = self.metrics.get(name, 0.0)
            self.metrics[name] = known + value.detach().double()
