"""How many processes a run has and what each of them holds. Pure arithmetic: nothing is started here.

Rank order: tensor-parallel neighbours are adjacent (the fastest links), then data-parallel replicas, then stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmctl.errors import UserError

if TYPE_CHECKING:
    from llmctl.training.config import TrainingConfig

# Default micro-batch: the largest divisor of a replica's share up to this.
LARGEST_DEFAULT_MICRO_BATCH = 8


@dataclass(frozen=True)
class Layout:
    """A product of tensor-, data- and pipeline-parallel groups."""

    tp: int = 1
    dp: int = 1
    pp: int = 1

    @property
    def world_size(self) -> int:
        """Return the number of processes."""
        return self.tp * self.dp * self.pp

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """Return (tp, dp, pp) coordinates of a rank."""
        return rank % self.tp, rank // self.tp % self.dp, rank // (self.tp * self.dp)

    def rank_of(self, tp: int, dp: int, pp: int) -> int:
        """Return the rank at the given coordinates."""
        return (pp * self.dp + dp) * self.tp + tp

    def groups(self, axis: str) -> list[list[int]]:
        """Return the ranks of every group along ``tp``, ``dp`` or ``pp``."""
        found: dict[tuple[int, ...], list[int]] = {}
        drop = ("tp", "dp", "pp").index(axis)
        for rank in range(self.world_size):
            where = self.coordinates(rank)
            found.setdefault(where[:drop] + where[drop + 1 :], []).append(rank)
        return list(found.values())

    def describe(self) -> str:
        """Say the layout in words."""
        return f"{self.dp} data-parallel × {self.tp} tensor-parallel × {self.pp} pipeline"


def layout_for(config: TrainingConfig, world_size: int) -> Layout:
    """Return the layout of `world_size` processes.

    Raises:
        UserError: tp × pp does not divide the number of processes.
    """
    model_parallel = config.tp * config.pp
    if world_size % model_parallel:
        low = world_size // model_parallel * model_parallel
        counts = [str(count) for count in (low, low + model_parallel) if count]
        raise UserError(
            f"{world_size} processes cannot be cut into tp {config.tp} × pp {config.pp} = {model_parallel}",
            f"use {' or '.join(counts)} processes, or another tp and pp",
        )
    return Layout(config.tp, world_size // model_parallel, config.pp)


def micro_batch_size(config: TrainingConfig, data_parallel_size: int) -> int:
    """Return the sequences of one micro-batch.

    Raises:
        UserError: the global batch does not divide; the hint names the nearest sizes that do.
    """
    total, asked = config.global_batch_size, config.micro_batch_size
    replicas = f"{data_parallel_size} replica{'s' if data_parallel_size > 1 else ''}"
    if not asked:
        if total % data_parallel_size:
            raise UserError(
                f"`global_batch_size` {total} is not a multiple of {replicas}",
                f"nearest: --global-batch-size {_nearest_multiples(total, data_parallel_size)}",
            )
        share = total // data_parallel_size
        return max(size for size in range(1, LARGEST_DEFAULT_MICRO_BATCH + 1) if share % size == 0)
    unit = asked * data_parallel_size
    if total % unit:
        hint = f"nearest: --global-batch-size {_nearest_multiples(total, unit)}"
        if total % data_parallel_size == 0:
            share = total // data_parallel_size
            sizes = sorted(
                (size for size in range(1, share + 1) if share % size == 0), key=lambda size: abs(size - asked)
            )
            hint += f"; or --micro-batch-size {sizes[0]}"
        raise UserError(
            f"`global_batch_size` {total} is not a multiple of `micro_batch_size` {asked} × {replicas} = {unit}", hint
        )
    return asked


def _nearest_multiples(value: int, unit: int) -> str:
    low = value // unit * unit
    return " or ".join(str(multiple) for multiple in (low, low + unit) if multiple)


def stage_layers(num_layers: int, stages: int, stage: int) -> range:
    """Return the layers of one pipeline stage: as even as possible, the first stages one more.

    Raises:
        UserError: more stages than layers.
    """
    if stages > num_layers:
        raise UserError(
            f"`pp` {stages} is more than the model's {num_layers} layers", f"use --pp {num_layers} or fewer"
        )
    base, extra = divmod(num_layers, stages)
    start = stage * base + min(stage, extra)
    return range(start, start + base + (1 if stage < extra else 0))


def stage_chunks(num_layers: int, stages: int, stage: int, virtual_stages: int = 1) -> list[range]:
    """Return the layers of each virtual stage of a process: virtual stage ``chunk·stages + stage`` is chunk `chunk`.

    Raises:
        UserError: more (virtual) stages than layers.
    """
    total = stages * virtual_stages
    if virtual_stages > 1 and total > num_layers:
        fitting = num_layers // stages
        raise UserError(
            f"`pp` {stages} × `virtual_stages` {virtual_stages} is more than the model's {num_layers} layers",
            f"use --virtual-stages {fitting}" if fitting > 1 else "use --schedule 1f1b and no virtual stages",
        )
    return [stage_layers(num_layers, total, chunk * stages + stage) for chunk in range(virtual_stages)]


def check_schedule(config: TrainingConfig, layout: Layout) -> None:
    """Refuse a pipeline schedule that the number of micro-batches does not fit.

    Raises:
        UserError: an interleaved schedule takes micro-batches in groups of `pp`.
    """
    if config.schedule != "interleaved":
        return
    size = micro_batch_size(config, layout.dp)
    share = config.global_batch_size // layout.dp
    if share // size % layout.pp:
        fitting = [each for each in range(1, share + 1) if share % each == 0 and share // each % layout.pp == 0]
        nearest = min(fitting, key=lambda each: abs(each - size), default=0)
        unit = size * layout.dp * layout.pp
        raise UserError(
            f"the interleaved schedule takes micro-batches in groups of pp {layout.pp}, and a step has {share // size}",
            f"use --micro-batch-size {nearest}, or --schedule 1f1b"
            if nearest
            else f"use --global-batch-size {_nearest_multiples(config.global_batch_size, unit)}, or --schedule 1f1b",
        )
