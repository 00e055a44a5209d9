"""Pipeline parallelism: one forward, one backward (1F1B; Narayanan et al. 2021, §2.2).

A stage runs ahead by as many micro-batches as there are stages after it, then alternates, so that it never keeps the
activations of more than that many. Every stage reads the same micro-batches; only hidden states and their gradients
travel. Works with fewer micro-batches than stages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from llmctl.training.distributed import World
from llmctl.training.engines.base import Loss, LossOutput
from llmctl.training.engines.common import Batch, Phases, autocast, to_device

# What a layer needs beside the hidden states; every stage takes it from the batch.
SIDE_INPUTS = ("position_ids", "document_ids", "attention_mask", "dropout_keys")


class Pipeline:
    """The stages of one replica, seen from one of them.

    Args:
        model: this process's part of a `Transformer`.
        dtype: of the hidden states that travel (the residual stream stays wide under autocast).
    """

    def __init__(self, model: nn.Module, world: World, precision: str) -> None:
        self.model, self.world, self.precision = model, world, precision
        self.dtype = torch.float64 if precision == "fp64" else torch.float32
        self.stage, self.stages = world.pp_rank, world.layout.pp
        self.is_first, self.is_last = self.stage == 0, self.stage == self.stages - 1
        where = world.layout.coordinates(world.rank)
        self._before = None if self.is_first else world.layout.rank_of(where[0], where[1], self.stage - 1)
        self._after = None if self.is_last else world.layout.rank_of(where[0], where[1], self.stage + 1)

    def train(
        self, micro_batches: Sequence[Batch], loss: Loss, scale: float, phases: Phases
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Run forward and backward of every micro-batch; gradients add up in the parameters.

        Args:
            scale: what each loss is multiplied by before its backward pass.

        Returns:
            The summed loss and metrics; zero and empty but on the last stage.
        """
        batches = [to_device(batch, self.world.device) for batch in micro_batches]
        sums = _Sums(self.world.device)
        waiting: deque[tuple[torch.Tensor | None, torch.Tensor]] = deque()
        ahead = min(self.stages - self.stage - 1, len(batches))
        for batch in batches[:ahead]:
            hidden = self._exchange(phases, receive_before=batch)
            output = self._forward(batch, hidden, loss, scale, sums, phases)
            self._exchange(phases, send_after=output)
            waiting.append((hidden, output))
        steady = batches[ahead:]
        hidden = self._exchange(phases, receive_before=steady[0]) if steady else None
        for number, batch in enumerate(steady):
            output = self._forward(batch, hidden, loss, scale, sums, phases)
            waiting.append((hidden, output))
            oldest = batches[number]
            gradient = self._exchange(phases, send_after=output, receive_after=oldest)
            upstream = self._backward(*waiting.popleft(), gradient, phases)
            following = steady[number + 1] if number + 1 < len(steady) else None
            hidden = self._exchange(phases, send_before=upstream, receive_before=following)
        for batch in batches[len(steady) :]:
            gradient = self._exchange(phases, receive_after=batch)
            upstream = self._backward(*waiting.popleft(), gradient, phases)
            self._exchange(phases, send_before=upstream)
        return sums.total, sums.metrics

    def evaluate(
        self, micro_batches: Sequence[Batch], loss: Loss, phases: Phases
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Run forward passes only; returns as `train` does."""
        sums = _Sums(self.world.device)
        for raw in micro_batches:
            batch = to_device(raw, self.world.device)
            hidden = self._exchange(phases, receive_before=batch)
            output = self._forward(batch, hidden, loss, 1.0, sums, phases)
            self._exchange(phases, send_after=output)
        return sums.total, sums.metrics

    def _forward(
        self, batch: Batch, hidden: torch.Tensor | None, loss: Loss, scale: float, sums: _Sums, phases: Phases
    ) -> torch.Tensor:
        """Return the hidden states for the next stage, or on the last one the scaled loss."""
        with phases.measure("forward"), autocast(self.precision, self.world.device):
            inputs = batch["input_ids"] if hidden is None else hidden
            if self.is_last:
                output = loss(self.model, {**batch, "input_ids": inputs})
                sums.add(output)
                return output.total * scale
            sent: torch.Tensor = self.model(inputs, **{name: batch[name] for name in SIDE_INPUTS if name in batch})
            return sent.to(self.dtype)

    def _backward(
        self, hidden: torch.Tensor | None, output: torch.Tensor, gradient: torch.Tensor | None, phases: Phases
    ) -> torch.Tensor | None:
        """Return the gradient of the hidden states that came in (None on the first stage)."""
        with phases.measure("backward"):
            torch.autograd.backward(output, gradient)
        return None if hidden is None else hidden.grad

    def _shape(self, batch: Batch) -> tuple[int, int, int]:
        rows, length = batch["labels"].shape
        return rows, length, int(self.model.config.hidden_size)  # type: ignore[union-attr, arg-type]

    def _exchange(
        self,
        phases: Phases,
        *,
        send_after: torch.Tensor | None = None,
        receive_after: Batch | None = None,
        send_before: torch.Tensor | None = None,
        receive_before: Batch | None = None,
    ) -> torch.Tensor | None:
        """Send to and receive from neighbours at once, so that two stages never wait for each other's send.

        Returns:
            The tensor received for the given batch: hidden states from before (with a gradient to come), or a gradient
            from after. None where there is no such neighbour.
        """
        operations: list[dist.P2POp] = []
        received: torch.Tensor | None = None
        if send_after is not None and self._after is not None:
            operations.append(dist.P2POp(dist.isend, send_after.detach().contiguous(), self._after))
        if send_before is not None and self._before is not None:
            operations.append(dist.P2POp(dist.isend, send_before.contiguous(), self._before))
        for batch, neighbour in ((receive_after, self._after), (receive_before, self._before)):
            if batch is not None and neighbour is not None:
                received = torch.empty(self._shape(batch), dtype=self.dtype, device=self.world.device)
                operations.append(dist.P2POp(dist.irecv, received, neighbour))
        if operations:
            with phases.measure("communication"):
                for work in dist.batch_isend_irecv(operations):
                    work.wait()
        if received is not None and receive_before is not None and torch.is_grad_enabled():
            received.requires_grad_(True)
        return received


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
