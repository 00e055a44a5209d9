"""The engine in plain PyTorch: DDP or ZeRO 1, tensor parallelism through the model's own layers, pipelines of stages.

Under a pipeline several micro-batches are in flight, which DDP does not allow; gradients are then summed over the
replicas after the last backward pass.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from llmctl.model.collectives import TRAFFIC, ring_bytes
from llmctl.model.layers import shard_of
from llmctl.training.config import TrainingConfig
from llmctl.training.distributed import World
from llmctl.training.engines.base import Loss, StepReport
from llmctl.training.engines.common import (
    Batch,
    Phases,
    StepModule,
    autocast,
    clip_coefficient,
    compile_layers,
    local_weight,
    move_module,
    parameters_of,
    to_device,
)
from llmctl.training.engines.native_state import NativeState
from llmctl.training.engines.pipeline import Pipeline
from llmctl.training.engines.replicas import check_replicas
from llmctl.training.engines.sharded import Shards
from llmctl.training.optimizers import Lamb, make_optimizer, set_learning_rate
from llmctl.training.tensors import StoredTensors, write_snapshot

# Dynamic loss scaling of fp16: Micikevicius et al. 2018, with the constants of torch.amp.GradScaler.
FIRST_LOSS_SCALE, SCALE_GROWTH_STEPS = 2.0**16, 2000


class NativeEngine:
    """Optimizer steps in plain PyTorch; see `Engine` for what each method promises."""

    name = "native"

    def __init__(self, model: nn.Module, config: TrainingConfig, world: World) -> None:
        self.config, self.world, self.device = config, world, world.device
        self.rank, self.world_size = world.rank, world.world_size
        self.data_parallel_rank, self.data_parallel_size = world.dp_rank, world.layout.dp
        self.max_grad_norm = config.max_grad_norm
        self.model = move_module(model, config.precision, world.device)
        self._module: nn.Module = StepModule(self.model)
        self._parameters = parameters_of(self.model)
        self._trainable = [(name, parameter) for name, parameter in self._parameters if parameter.requires_grad]
        self._pipeline = None
        if world.layout.pp > 1:
            self._pipeline = Pipeline(self.model, world, config.precision, config.schedule)
        # The last stage's copy of a tied embedding: kept equal to the first's, counted and saved once.
        self._copy = _tied_copy(self.model) if self._pipeline is not None else None
        self._shards: Shards | None = None
        if config.zero_stage == 1 and self.data_parallel_size > 1:
            # The copy is not updated there but sent: parts of other lengths could round otherwise.
            own = [(name, parameter) for name, parameter in self._trainable if not self._is_foreign_copy(parameter)]
            self._shards = Shards(own, world)
        updated = [parameter for _, parameter in self._trainable] if self._shards is None else self._shards.pieces
        self.optimizer = make_optimizer(config, updated)
        if isinstance(self.optimizer, Lamb):
            self.optimizer.square_sums = self._full_square_sums
        self._state = NativeState(
            self.model, config, world, self._parameters, self._trainable, self.optimizer, self._shards
        )
        self._loss_scale = FIRST_LOSS_SCALE if config.precision == "fp16" else 1.0
        self._good_steps, self._updates = 0, 0
        self._wrapped: nn.Module = self._module
        self._metric_names: list[str] | None = None
        if config.compile:
            compile_layers(self.model)
        if self.data_parallel_size > 1 and self._pipeline is None and self._shards is None:
            self._wrapped = _data_parallel(self._module, world)

    # -- steps -----------------------------------------------------------------------------------------------

    def step(self, micro_batches: Sequence[Batch], loss: Loss, lr: float) -> StepReport:
        """Make one optimizer step."""
        phases = Phases()
        TRAFFIC.take()
        self.model.train()
        with phases.measure("communication"):
            (weight,) = self._sum_over_replicas([local_weight(micro_batches, loss)])
        scale = self._loss_scale / max(weight, 1.0)
        if self._pipeline is not None:
            total, metrics = self._pipeline.train(micro_batches, loss, scale, phases)
        else:
            total, metrics = self._accumulate(micro_batches, loss, scale, phases)
        with phases.measure("communication"):
            self._sum_gradients()
        with phases.measure("update"):
            norm, skipped = self._update(lr)
        if self._shards is not None and not skipped:
            with phases.measure("communication"):
                self._shards.gather()
                if self._copy is not None:
                    first = self.world.layout.rank_of(self.world.tp_rank, self.world.dp_rank, 0)
                    dist.broadcast(self._copy.data, first, group=self.world.groups["ends"])
        report = self._report(total, metrics, weight, phases)
        report.grad_norm, report.skipped = norm, skipped
        if self.config.precision == "fp16":
            report.metrics["loss_scale"] = self._loss_scale
        every = self.config.replica_check_every
        if every and not skipped and self._updates % every == 0:
            check_replicas(self._parameters, self.world, self._updates, self._copy)
        return report

    def _update(self, lr: float) -> tuple[float, bool]:
        """Return (norm before clipping, whether the update was left out)."""
        norm = self._gradient_norm() / self._loss_scale
        skipped = norm != norm or norm == float("inf")
        if not skipped:
            self._unscale(clip_coefficient(norm, self.max_grad_norm) / self._loss_scale)
            set_learning_rate(self.optimizer, lr)
            self.optimizer.step()
            self._updates += 1
        self._adapt_loss_scale(skipped)
        if self._shards is not None:
            self._shards.clear()
            if self._copy is not None and not self._owns_tied:
                self._copy.grad = None
        else:
            self.optimizer.zero_grad(set_to_none=True)
        return norm, skipped

    def _accumulate(
        self, micro_batches: Sequence[Batch], loss: Loss, scale: float, phases: Phases
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        metrics: dict[str, torch.Tensor] = {}
        for number, batch in enumerate(micro_batches):
            last = number == len(micro_batches) - 1
            # Gradients are summed over replicas once, with the last micro-batch.
            wrapped = self._wrapped is not self._module
            quiet = self._wrapped.no_sync() if wrapped and not last else nullcontext()  # type: ignore[operator]
            with quiet:
                with phases.measure("forward"), autocast(self.config.precision, self.device):
                    output = self._wrapped(loss, to_device(batch, self.device))
                with phases.measure("backward"):
                    (output.total * scale).backward()
            total += output.total.detach()
            for name, value in output.metrics.items():
                metrics[name] = metrics.get(name, 0.0) + value.detach().double()
        return total, metrics

    def _gradients(self) -> list[tuple[nn.Parameter | None, torch.Tensor]]:
        """Return (parameter, gradient) of what this process updates; None marks padding."""
        if self._shards is not None:
            return self._shards.gradients()
        return [(parameter, parameter.grad) for _, parameter in self._trainable if parameter.grad is not None]

    def _gradient_norm(self) -> float:
        """Return the norm of the whole gradient, each parameter counted once over all processes."""
        squares = torch.zeros((), dtype=torch.float64, device=self.device)
        counted = [
            gradient
            for parameter, gradient in self._gradients()
            if parameter is not None
            and (shard_of(parameter).dim is not None or self.world.tp_rank == 0)
            and not self._is_foreign_copy(parameter)
        ]
        if counted:
            norms = torch.stack([norm.double() for norm in torch._foreach_norm(counted)])
            squares = norms.square().sum()
        for axis in ("tp", "pp", *(("dp",) if self._shards is not None else ())):
            if getattr(self.world.layout, axis) > 1:
                dist.all_reduce(squares, group=self.world.groups[axis])
        return float(squares.sqrt())

    @property
    def _owns_tied(self) -> bool:
        return self.world.pp_rank == 0

    def _is_foreign_copy(self, parameter: torch.Tensor) -> bool:
        """Tell whether this is the last stage's copy of an embedding that belongs to the first."""
        return parameter is self._copy and not self._owns_tied

    def _sum_gradients(self) -> None:
        """Add the gradients of both copies of a tied embedding, and of all replicas where DDP has not."""
        if self._copy is not None and self._copy.grad is not None:
            with TRAFFIC.measure("ends", ring_bytes(self._copy.grad, 2, 2)):
                dist.all_reduce(self._copy.grad, group=self.world.groups["ends"])
        if self.data_parallel_size == 1:
            return
        if self._shards is not None:
            self._shards.reduce()
        elif self._pipeline is not None:
            gradients = [gradient for _, gradient in self._gradients()]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            with TRAFFIC.measure("dp", ring_bytes(flat, self.data_parallel_size, 2)):
                dist.all_reduce(flat, group=self.world.groups["dp"])
            for gradient, total in zip(gradients, flat.split([item.numel() for item in gradients]), strict=True):
                gradient.copy_(total.view_as(gradient))
        # Otherwise DDP has summed them during the last backward pass.

    def _unscale(self, factor: float) -> None:
        if factor != 1.0:
            torch._foreach_mul_([gradient for _, gradient in self._gradients()], factor)

    def _adapt_loss_scale(self, overflow: bool) -> None:
        if self.config.precision != "fp16":
            return
        if overflow:
            self._loss_scale, self._good_steps = max(1.0, self._loss_scale / 2), 0
            return
        self._good_steps += 1
        if self._good_steps >= SCALE_GROWTH_STEPS:
            self._loss_scale, self._good_steps = self._loss_scale * 2, 0

    def _full_square_sums(self, parameters: list[torch.Tensor], sums: torch.Tensor) -> torch.Tensor:
        """Return LAMB's sums of squares of whole parameters, from those of this process's parts."""
        whole: list[Any] = list(parameters)
        if self._shards is not None:
            whole, sums, rows = self._shards.parameters, self._shards.spread(parameters, sums), parameters
        split = [number for number, parameter in enumerate(whole) if shard_of(parameter).dim is not None]
        if self.world.layout.tp > 1 and split:
            partial = sums[split]
            dist.all_reduce(partial, group=self.world.groups["tp"])
            sums[split] = partial
        return sums if self._shards is None else sums[self._shards.rows_of(rows)]

    def _sum_over_replicas(self, values: Sequence[float] | torch.Tensor) -> list[float]:
        tensor = torch.as_tensor(values, dtype=torch.float64, device=self.device)
        if self.data_parallel_size > 1:
            dist.all_reduce(tensor, group=self.world.groups["dp"])
        return tensor.tolist()

    def _report(
        self, total: torch.Tensor, metrics: dict[str, torch.Tensor], weight: float, phases: Phases
    ) -> StepReport:
        names = self._names_of(metrics)
        zero = torch.zeros_like(total)
        with phases.measure("communication"):
            values = torch.stack([total, *(metrics.get(name, zero) for name in names)])
            if self._pipeline is not None:  # only the last stage has them
                dist.all_reduce(values, group=self.world.groups["pp"])
            sums = self._sum_over_replicas(values)
        means = [value / max(weight, 1.0) for value in sums]
        sent, waited = TRAFFIC.take()
        return StepReport(
            loss=means[0],
            metrics=dict(zip(names, means[1:], strict=True)),
            weight=weight,
            seconds=phases.seconds,
            sent_bytes=sent,
            waited_s=waited,
        )

    def _names_of(self, metrics: dict[str, torch.Tensor]) -> list[str]:
        """Return the names of the loss's metrics; under a pipeline the last stage tells the others, once."""
        if self._pipeline is None:
            return sorted(metrics)
        if self._metric_names is None:
            layout = self.world.layout
            tp, dp, _ = layout.coordinates(self.rank)
            data = json.dumps(sorted(metrics)).encode().ljust(4096)
            buffer = torch.tensor(list(data), dtype=torch.uint8, device=self.device)
            dist.broadcast(buffer, layout.rank_of(tp, dp, layout.pp - 1), group=self.world.groups["pp"])
            self._metric_names = json.loads(bytes(buffer.tolist()))
        return self._metric_names

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[Batch], loss: Loss) -> StepReport:
        """Return loss and metrics over every process's micro-batches, without gradients and dropout."""
        phases = Phases()
        self.model.eval()
        (weight,) = self._sum_over_replicas([local_weight(micro_batches, loss)])
        if self._pipeline is not None:
            return self._report(*self._pipeline.evaluate(micro_batches, loss, phases), weight, phases)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        metrics: dict[str, torch.Tensor] = {}
        with phases.measure("forward"), autocast(self.config.precision, self.device):
            for batch in micro_batches:
                output = self._module(loss, to_device(batch, self.device))
                total += output.total
                for name, value in output.metrics.items():
                    metrics[name] = metrics.get(name, 0.0) + value.double()
        return self._report(total, metrics, weight, phases)

    # -- state -----------------------------------------------------------------------------------------------

    def full_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, full tensor) of every parameter."""
        return self._state.full_weights()

    def snapshot(self) -> tuple[Iterator[tuple[str, torch.Tensor]], dict[str, Any]]:
        """Return weights and optimizer state as full tensors, and the values that belong to them."""
        scalars = {
            "optimizer": self.config.optimizer,
            "optimizer_steps": self._updates,
            "loss_scale": self._loss_scale,
            "good_steps": self._good_steps,
        }
        return self._state.full_state(self._updates > 0), scalars

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state as full tensors; process 0 writes."""
        write_snapshot(folder, self.snapshot(), self.world.is_main)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Take weights and optimizer state from a folder that `save` wrote."""
        stored = StoredTensors(folder)
        self._state.load_weights(stored)
        self._updates = 0
        if stored.scalars.get("optimizer") == self.config.optimizer:
            self._updates = self._state.load_optimizer(stored)
        if self.config.precision == "fp16":
            self._loss_scale = float(stored.scalars.get("loss_scale", FIRST_LOSS_SCALE))
            self._good_steps = int(stored.scalars.get("good_steps", 0))

    def close(self) -> None:
        """Release nothing: the module goes with the object."""


def _tied_copy(model: nn.Module) -> nn.Parameter | None:
    """Return the embedding where the first and the last stage both hold it and are different processes."""
    embedding = getattr(model, "embed_tokens", None)
    config: Any = model.config
    both_here = model.is_first and model.is_last
    return embedding.weight if embedding is not None and config.tied_embeddings and not both_here else None


def _data_parallel(module: nn.Module, world: World) -> nn.Module:
    """Wrap a module so that gradients are summed, not averaged, over the data-parallel group."""
    from torch.nn.parallel import DistributedDataParallel

    group = world.groups["dp"]
    # Buffers are the same everywhere; newer torch renames the flag and warns of the old name.
    flags = inspect.signature(DistributedDataParallel).parameters
    no_sync: dict[str, Any] = {
        "forward_sync_buffers" if "forward_sync_buffers" in flags else "broadcast_buffers": False
    }
    wrapped = DistributedDataParallel(
        module,
        process_group=group,
        **no_sync,
        gradient_as_bucket_view=True,
        device_ids=[world.device.index] if world.device.type == "cuda" else None,
    )

    def sum_gradients(state, bucket):  # torch refuses annotations that are text, as they all are here
        started, buffer = time.perf_counter(), bucket.buffer()
        future = dist.all_reduce(buffer, group=state, async_op=True).get_future()

        def done(finished):
            TRAFFIC.note("dp", started, ring_bytes(buffer, world.layout.dp, 2))
            return finished.value()[0]

        return future.then(done)

    wrapped.register_comm_hook(group, sum_gradients)
    return wrapped
