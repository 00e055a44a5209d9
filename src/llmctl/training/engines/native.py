"""The engine in plain PyTorch: DDP, tensor parallelism through the model's own layers, pipelines of stages.

Under a pipeline several micro-batches are in flight, which DDP does not allow; gradients are then summed over the
replicas after the last backward pass.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from llmctl.model.huggingface import copy_shard
from llmctl.model.layers import shard_of
from llmctl.training.config import TrainingConfig
from llmctl.training.distributed import World
from llmctl.training.engines.base import Loss, StepReport
from llmctl.training.engines.common import (
    WEIGHTS,
    Batch,
    Phases,
    StepModule,
    autocast,
    check_stored,
    clip_coefficient,
    local_weight,
    move_module,
    parameters_of,
    to_device,
)
from llmctl.training.engines.pipeline import Pipeline
from llmctl.training.optimizers import STATE_NAMES, Lamb, make_optimizer, set_learning_rate
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
        self.optimizer = make_optimizer(config, [parameter for _, parameter in self._trainable])
        if isinstance(self.optimizer, Lamb):
            self.optimizer.square_sums = self._full_square_sums
        self._loss_scale = FIRST_LOSS_SCALE if config.precision == "fp16" else 1.0
        self._good_steps = 0
        self._wrapped: nn.Module = self._module
        self._pipeline = Pipeline(self.model, world, config.precision) if world.layout.pp > 1 else None
        self._metric_names: list[str] | None = None
        # The last stage's copy of a tied embedding: kept equal to the first's, counted and saved once.
        self._copy = _tied_copy(self.model) if self._pipeline is not None else None
        if self.data_parallel_size > 1 and self._pipeline is None:
            self._wrapped = _data_parallel(self._module, world)

    # -- steps -----------------------------------------------------------------------------------------------

    def step(self, micro_batches: Sequence[Batch], loss: Loss, lr: float) -> StepReport:
        """Make one optimizer step."""
        phases = Phases()
        self.model.train()
        with phases.measure("communication"):
            (weight,) = self._sum_over_replicas([local_weight(micro_batches, loss)])
        scale = self._loss_scale / max(weight, 1.0)
        if self._pipeline is not None:
            total, metrics = self._pipeline.train(micro_batches, loss, scale, phases)
            with phases.measure("communication"):
                self._sum_pipeline_gradients()
        else:
            total, metrics = self._accumulate(micro_batches, loss, scale, phases)
        with phases.measure("update"):
            norm = self._gradient_norm() / self._loss_scale
            skipped = norm != norm or norm == float("inf")
            if not skipped:
                self._unscale(clip_coefficient(norm, self.max_grad_norm) / self._loss_scale)
                set_learning_rate(self.optimizer, lr)
                self.optimizer.step()
            self._adapt_loss_scale(skipped)
            self.optimizer.zero_grad(set_to_none=True)
        report = self._report(total, metrics, weight, phases)
        report.grad_norm, report.skipped = norm, skipped
        return report

    def _accumulate(
        self, micro_batches: Sequence[Batch], loss: Loss, scale: float, phases: Phases
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        metrics: dict[str, torch.Tensor] = {}
        for number, batch in enumerate(micro_batches):
            last = number == len(micro_batches) - 1
            # Gradients are summed over replicas once, with the last micro-batch.
            quiet = self._wrapped.no_sync() if not last and self.data_parallel_size > 1 else nullcontext()  # type: ignore[operator]
            with quiet:
                with phases.measure("forward"), autocast(self.config.precision, self.device):
                    output = self._wrapped(loss, to_device(batch, self.device))
                with phases.measure("backward"):
                    (output.total * scale).backward()
            total += output.total.detach()
            for name, value in output.metrics.items():
                metrics[name] = metrics.get(name, 0.0) + value.detach().double()
        return total, metrics

    def _gradient_norm(self) -> float:
        """Return the norm of the whole gradient, each parameter counted once over all processes."""
        squares = torch.zeros((), dtype=torch.float64, device=self.device)
        gradients = [
            parameter.grad
            for _, parameter in self._trainable
            if parameter.grad is not None
            and (shard_of(parameter).dim is not None or self.world.tp_rank == 0)
            and not (parameter is self._copy and not self._owns_tied)
        ]
        if gradients:
            norms = torch.stack([norm.double() for norm in torch._foreach_norm(gradients)])
            squares = norms.square().sum()
        for axis in ("tp", "pp"):
            if getattr(self.world.layout, axis) > 1:
                dist.all_reduce(squares, group=self.world.groups[axis])
        return float(squares.sqrt())

    @property
    def _owns_tied(self) -> bool:
        return self.world.pp_rank == 0

    def _sum_pipeline_gradients(self) -> None:
        """Add the gradients of both copies of a tied embedding, and of all replicas."""
        if self._copy is not None and self._copy.grad is not None:
            dist.all_reduce(self._copy.grad, group=self.world.groups["ends"])
        if self.data_parallel_size == 1:
            return
        gradients = [parameter.grad for _, parameter in self._trainable if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=self.world.groups["dp"])
        for gradient, total in zip(gradients, flat.split([item.numel() for item in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient))

    def _unscale(self, factor: float) -> None:
        if factor == 1.0:
            return
        gradients = [parameter.grad for _, parameter in self._trainable if parameter.grad is not None]
        torch._foreach_mul_(gradients, factor)

    def _adapt_loss_scale(self, overflow: bool) -> None:
        if self.config.precision != "fp16":
            return
        if overflow:
            self._loss_scale, self._good_steps = max(1.0, self._loss_scale / 2), 0
            return
        self._good_steps += 1
        if self._good_steps >= SCALE_GROWTH_STEPS:
            self._loss_scale, self._good_steps = self._loss_scale * 2, 0

    def _full_square_sums(self, parameter: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
        if self.world.layout.tp > 1 and shard_of(parameter).dim is not None:
            dist.all_reduce(sums, group=self.world.groups["tp"])
        return sums

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
        return StepReport(
            loss=means[0], metrics=dict(zip(names, means[1:], strict=True)), weight=weight, seconds=phases.seconds
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
        mine = dict(self._parameters)
        for name, stage in self._logical_names():
            yield name, self._gather(mine.get(name), lambda parameter: parameter.detach(), stage)

    def _logical_names(self, trainable: bool = False) -> list[tuple[str, int]]:
        """Return (name, pipeline stage that has it) of every parameter of the whole model, on every process alike."""
        if self._pipeline is None:
            return [(name, 0) for name, _ in (self._trainable if trainable else self._parameters)]
        from llmctl.model.transformer import Transformer
        from llmctl.training.layout import stage_layers

        shape, stages = self.model.config, self.world.layout.pp
        found: dict[str, int] = {}
        for stage in range(stages):
            with torch.device("meta"):
                part = Transformer(
                    shape,  # type: ignore[arg-type]
                    layers=stage_layers(shape.num_layers, stages, stage),  # type: ignore[union-attr, arg-type]
                    seed=None,
                )
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
            if self.rank == owner:
                _send(full, 0)
            elif self.rank == 0:
                return _receive(owner, self.device).cpu()
        return full.cpu() if self.world.is_main and here else empty

    def _full_state(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self.full_weights():
            yield f"{WEIGHTS}/{name}", tensor
        if not self.optimizer.state:  # alike on every process
            return
        mine = dict(self._trainable)
        for kind in STATE_NAMES[self.config.optimizer]:
            for name, stage in self._logical_names(trainable=True):
                state = self._gather(mine.get(name), partial(self._state_of, kind), stage)
                yield f"{kind}/{name}", state

    def _state_of(self, kind: str, parameter: torch.Tensor) -> torch.Tensor:
        state: torch.Tensor = self.optimizer.state[parameter][kind]
        return state

    def snapshot(self) -> tuple[Iterator[tuple[str, torch.Tensor]], dict[str, Any]]:
        """Return weights and optimizer state as full tensors, and the values that belong to them."""
        scalars = {
            "optimizer": self.config.optimizer,
            "optimizer_steps": self._optimizer_steps(),
            "loss_scale": self._loss_scale,
            "good_steps": self._good_steps,
        }
        return self._full_state(), scalars

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state as full tensors; process 0 writes."""
        write_snapshot(folder, self.snapshot(), self.world.is_main)

    def _optimizer_steps(self) -> int:
        counts = [int(state["step"]) for state in self.optimizer.state.values() if "step" in state]
        return max(counts, default=0)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Take weights and optimizer state from a folder that `save` wrote."""
        stored = StoredTensors(folder)
        for name, parameter in self._parameters:
            check_stored(stored, f"{WEIGHTS}/{name}", shard_of(parameter).shape)
            copy_shard(parameter, stored.piece(f"{WEIGHTS}/{name}"))
        if stored.scalars.get("optimizer") == self.config.optimizer:
            self._load_optimizer(stored)
        if self.config.precision == "fp16":
            self._loss_scale = float(stored.scalars.get("loss_scale", FIRST_LOSS_SCALE))
            self._good_steps = int(stored.scalars.get("good_steps", 0))

    def _load_optimizer(self, stored: StoredTensors) -> None:
        self.optimizer.state.clear()
        for name, parameter in self._trainable:
            state: dict[str, Any] = {}
            for kind in STATE_NAMES[self.config.optimizer]:
                if f"{kind}/{name}" in stored:
                    state[kind] = torch.zeros_like(parameter)
                    state[kind].shard = shard_of(parameter)
                    copy_shard(state[kind], stored.piece(f"{kind}/{name}"))
            if state and self.config.optimizer != "sgd":
                state["step"] = torch.tensor(float(stored.scalars["optimizer_steps"]), device=self._step_device())
            if state:
                self.optimizer.state[parameter] = state

    def _step_device(self) -> torch.device:
        # The fused AdamW keeps its counter beside the parameters.
        return self.device if self.config.optimizer == "adamw" else torch.device("cpu")

    def close(self) -> None:
        """Release nothing: the module goes with the object."""


def _tied_copy(model: nn.Module) -> nn.Parameter | None:
    """Return the embedding where the first and the last stage both hold it and are different processes."""
    embedding = getattr(model, "embed_tokens", None)
    config: Any = model.config
    both_here = model.is_first and model.is_last
    return embedding.weight if embedding is not None and config.tied_embeddings and not both_here else None


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
        future = dist.all_reduce(bucket.buffer(), group=state, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    wrapped.register_comm_hook(group, sum_gradients)
    return wrapped
