"""The DeepSpeed engine: data parallel with ZeRO 0–3.

DeepSpeed owns the partitioning and the collectives. Ours are the loss scale (sum over the global weight), the
optimizer, the learning rate and the checkpoint: its own checkpoints are pickles and are neither written nor read.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from llmctl.training.config import TrainingConfig
from llmctl.training.distributed import World
from llmctl.training.engines.base import Loss, StepReport
from llmctl.training.engines.common import (
    WEIGHTS,
    Batch,
    Phases,
    StepModule,
    check_stored,
    clip_coefficient,
    local_weight,
    move_module,
    parameters_of,
    to_device,
)
from llmctl.training.optimizers import STATE_NAMES, make_optimizer, set_learning_rate
from llmctl.training.tensors import StoredTensors, write_snapshot

NEVER = 1 << 40
# A clip that no gradient reaches: DeepSpeed computes the norm only where it clips.
NO_CLIP = 1e30
MAX_BUCKET = 50_000_000


def import_deepspeed(device: torch.device) -> Any:
    """Import DeepSpeed without its talk on stdout."""
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        import deepspeed
    for name in ("DeepSpeed", "deepspeed"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # DeepSpeed calls functions of torch that newer versions have renamed; nothing a user could act on.
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*is deprecated.*")
    return deepspeed


class DeepSpeedEngine:
    """Optimizer steps by DeepSpeed; see `Engine` for what each method promises."""

    name = "deepspeed"

    def __init__(self, model: nn.Module, config: TrainingConfig, world: World) -> None:
        self.config, self.world, self.device = config, world, world.device
        self.rank, self.world_size = world.rank, world.world_size
        self.data_parallel_rank, self.data_parallel_size = world.dp_rank, world.layout.dp
        self.max_grad_norm = config.max_grad_norm
        self.model = move_module(model, config.precision, world.device)
        self._parameters = parameters_of(self.model)
        self._shapes = {name: tuple(parameter.shape) for name, parameter in self._parameters}
        self._steps = 0
        deepspeed = import_deepspeed(world.device)
        self._api = deepspeed
        if not dist.is_initialized():  # one process: DeepSpeed wants a group all the same
            dist.init_process_group(
                "nccl" if world.device.type == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1
            )
        os.environ.setdefault("LOCAL_RANK", str(world.local_rank))
        module = StepModule(self.model)
        optimizer = make_optimizer(config, module.parameters())
        with contextlib.redirect_stdout(io.StringIO()):
            self._engine, *_ = deepspeed.initialize(
                model=module,
                optimizer=optimizer,
                config=self._settings(),
                dist_init_required=False,
            )
        self._inner = optimizer

    @property
    def _owns_norm(self) -> bool:
        """Tell whether norm and clipping are ours: plain fp32 without ZeRO reports none."""
        return self.config.zero_stage == 0 and self.config.precision == "fp32"

    def _settings(self) -> dict[str, Any]:
        numel = sum(parameter.numel() for _, parameter in self._parameters)
        bucket = max(1, min(MAX_BUCKET, numel))
        # Without ZeRO DeepSpeed adds up gradients in 16 bits; stage 1 does it in float32 and is otherwise equal.
        stage = max(self.config.zero_stage, 0 if self.config.precision == "fp32" else 1)
        zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": bucket}
        if self.config.zero_stage == 3:
            zero |= {"stage3_prefetch_bucket_size": bucket, "stage3_max_live_parameters": max(bucket, 1_000_000)}
        settings: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "steps_per_print": NEVER,
            "gradient_clipping": 0.0 if self._owns_norm else self.config.max_grad_norm or NO_CLIP,
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        }
        if self.config.precision == "bf16":
            settings["bf16"] = {"enabled": True, "check_grad_overflow": True}
            settings["data_types"] = {"grad_accum_dtype": "fp32"}
        elif self.config.precision == "fp16":
            settings["fp16"] = {"enabled": True, "initial_scale_power": 16, "loss_scale_window": 1000}
        return settings

    # -- steps -----------------------------------------------------------------------------------------------

    def step(self, micro_batches: Sequence[Batch], loss: Loss, lr: float) -> StepReport:
        """Make one optimizer step."""
        phases = Phases()
        self._engine.train()
        with phases.measure("communication"):
            (weight,) = self._sum([local_weight(micro_batches, loss)])
        # DeepSpeed averages gradients over replicas; the loss is a sum over the global weight.
        scale = self.data_parallel_size / max(weight, 1.0)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        metrics: dict[str, torch.Tensor] = {}
        for number, batch in enumerate(micro_batches):
            self._engine.set_gradient_accumulation_boundary(number == len(micro_batches) - 1)
            with phases.measure("forward"):
                output = self._engine(loss, to_device(batch, self.device))
            with phases.measure("backward"):
                self._engine.backward(output.total * scale, scale_wrt_gas=False)
            total += output.total.detach()
            for name, value in output.metrics.items():
                metrics[name] = metrics.get(name, 0.0) + value.detach().double()
        with phases.measure("update"):
            norm, skipped = self._update(lr)
        report = self._report(total, metrics, weight, phases)
        report.grad_norm, report.skipped = norm, skipped
        return report

    def _update(self, lr: float) -> tuple[float, bool]:
        """Return (norm before clipping, whether the update was left out)."""
        set_learning_rate(self._inner, lr)
        if self._owns_norm:
            gradients = [parameter.grad for _, parameter in self._parameters if parameter.grad is not None]
            norms = torch.stack([value.double() for value in torch._foreach_norm(gradients)])
            norm = float(norms.square().sum().sqrt())
            if norm != norm or norm == float("inf"):
                self._engine.zero_grad()
                return norm, True
            factor = clip_coefficient(norm, self.max_grad_norm)
            if factor != 1.0:
                torch._foreach_mul_(gradients, factor)
            self._engine.step()
        else:
            self._engine.optimizer.clip_grad = self.max_grad_norm or NO_CLIP
            self._engine.step()
            norm = float(self._engine.get_global_grad_norm() or 0.0)
        skipped = bool(getattr(self._engine.optimizer, "overflow", False))
        self._steps += 0 if skipped else 1
        return norm, skipped

    def _sum(self, values: Sequence[float] | torch.Tensor) -> list[float]:
        tensor = torch.as_tensor(values, dtype=torch.float64, device=self.device)
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor.tolist()

    def _report(
        self, total: torch.Tensor, metrics: dict[str, torch.Tensor], weight: float, phases: Phases
    ) -> StepReport:
        names = sorted(metrics)
        with phases.measure("communication"):
            sums = self._sum(torch.stack([total, *(metrics[name] for name in names)]))
        means = [value / max(weight, 1.0) for value in sums]
        return StepReport(
            loss=means[0], metrics=dict(zip(names, means[1:], strict=True)), weight=weight, seconds=phases.seconds
        )

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[Batch], loss: Loss) -> StepReport:
        """Return loss and metrics over every process's micro-batches, without gradients and dropout."""
        phases = Phases()
        self._engine.eval()
        (weight,) = self._sum([local_weight(micro_batches, loss)])
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        metrics: dict[str, torch.Tensor] = {}
        with phases.measure("forward"):
            for batch in micro_batches:
                output = self._engine(loss, to_device(batch, self.device))
                total += output.total
                for name, value in output.metrics.items():
                    metrics[name] = metrics.get(name, 0.0) + value.double()
        return self._report(total, metrics, weight, phases)

    # -- state -----------------------------------------------------------------------------------------------

    def full_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, full tensor) of every parameter, in float32."""
        for name, parameter in self._parameters:
            yield name, self._full(name, parameter)

    def _full(self, name: str, parameter: nn.Parameter, kind: str | None = None) -> torch.Tensor:
        """Gather the master values of a parameter, or of one of its optimizer states."""
        with torch.no_grad():
            return self._gather(parameter, kind).reshape(self._shapes[name]).float().cpu()

    def _gather(self, parameter: Any, kind: str | None) -> torch.Tensor:
        if hasattr(parameter, "ds_id"):  # ZeRO 3
            if not parameter.requires_grad:
                with self._api.zero.GatheredParameters([parameter]):
                    return parameter.data.clone()
            return parameter._z3_optimizer.get_full_hp_param(parameter, kind)
        if hasattr(parameter, "_hp_mapping"):  # ZeRO 1 and 2, and bf16 without ZeRO
            return parameter.get_full_hp_param(kind)
        return parameter.data if kind is None else self._inner.state[parameter][kind]

    def _full_state(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self.full_weights():
            yield f"{WEIGHTS}/{name}", tensor
        if not self._steps:
            return
        self._link_states()
        for kind in STATE_NAMES[self.config.optimizer]:
            for name, parameter in self._parameters:
                if parameter.requires_grad:
                    yield f"{kind}/{name}", self._full(name, parameter, kind)

    def snapshot(self) -> tuple[Iterator[tuple[str, torch.Tensor]], dict[str, Any]]:
        """Return weights and optimizer state as full tensors, and the values that belong to them."""
        scalars: dict[str, Any] = {"optimizer": self.config.optimizer, "optimizer_steps": self._steps}
        if self.config.precision == "fp16":
            scalars["loss_scale"] = float(self._engine.optimizer.loss_scale)
        return self._full_state(), scalars

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state as full tensors; process 0 writes."""
        write_snapshot(folder, self.snapshot(), self.world.is_main)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Take weights and optimizer state from a folder that an engine's `save` wrote."""
        stored = StoredTensors(folder)
        for name, parameter in self._parameters:
            check_stored(stored, f"{WEIGHTS}/{name}", self._shapes[name])
            self._set_weight(parameter, stored.piece(f"{WEIGHTS}/{name}")[:].to(self.device))
        kinds = STATE_NAMES[self.config.optimizer]
        trainable = [(name, parameter) for name, parameter in self._parameters if parameter.requires_grad]
        self._steps = int(stored.scalars.get("optimizer_steps", 0))
        same = stored.scalars.get("optimizer") == self.config.optimizer
        if not same or not all(f"{kind}/{name}" in stored for kind in kinds for name, _ in trainable):
            return
        self._make_optimizer_state(kinds)
        for kind in kinds:
            for name, parameter in trainable:
                self._set_state(parameter, kind, stored.piece(f"{kind}/{name}")[:].to(self.device))

    def _set_weight(self, parameter: Any, value: torch.Tensor) -> None:
        if hasattr(parameter, "ds_id"):
            with self._api.zero.GatheredParameters([parameter], modifier_rank=0):
                if self.rank == 0:
                    parameter.data.copy_(value)
            if parameter.requires_grad:
                self._set_partition(parameter, None, value)
            return
        parameter.data.copy_(value)
        if hasattr(parameter, "_hp_mapping"):
            parameter.set_full_hp_param(value.float())

    def _set_state(self, parameter: Any, kind: str, value: torch.Tensor) -> None:
        if hasattr(parameter, "ds_id"):
            self._set_partition(parameter, kind, value)
        elif hasattr(parameter, "_hp_mapping"):
            parameter.set_full_hp_param(value.float(), kind)
        else:
            self._inner.state[parameter][kind].copy_(value)

    def _set_partition(self, parameter: Any, kind: str | None, value: torch.Tensor) -> None:
        """Write this process's ZeRO-3 part; the last one is padded, which DeepSpeed's own setter does not expect."""
        optimizer = parameter._z3_optimizer
        partition, _ = optimizer._get_fp32_opt_state_partition(
            parameter, release_swap_buffers=False, optim_state_key=kind
        )
        start = partition.numel() * optimizer._get_param_partition_rank(parameter)
        mine = value.flatten()[start : start + partition.numel()].to(partition.dtype)
        partition.data.zero_()
        partition.data[: mine.numel()].copy_(mine)

    def _make_optimizer_state(self, kinds: Sequence[str]) -> None:
        """Make the state that the first step would have made, so that it can be filled."""
        optimizer = self._engine.optimizer
        flat: list[torch.Tensor] | None = None
        for attribute in (
            "single_partition_of_fp32_groups",
            "fp32_groups_flat_partition",
            "fp32_partitioned_groups_flat",
        ):
            flat = getattr(optimizer, attribute, flat)
        if flat is None:
            flat = [parameter for _, parameter in self._parameters if parameter.requires_grad]
        for tensor in flat:
            state: dict[str, Any] = {kind: torch.zeros_like(tensor) for kind in kinds}
            if self.config.optimizer != "sgd":
                device = tensor.device if self.config.optimizer == "adamw" else torch.device("cpu")
                state["step"] = torch.tensor(float(self._steps), device=device)
            self._inner.state[tensor] = state
        self._link_states()

    def _link_states(self) -> None:
        """Let DeepSpeed find the optimizer state of each parameter in its flat partitions.

        It links in the update of the first parameter group only and then takes all for linked (0.19.8).
        """
        link = getattr(self._engine.optimizer, "_lazy_init_hp_params_optimizer_state", None)
        if link is not None:
            self._engine.optimizer._hp_optimizer_states_linked = False
            link()

    def close(self) -> None:
        """Take DeepSpeed's hooks off the module."""
        with contextlib.suppress(Exception):
            self._engine.destroy()
