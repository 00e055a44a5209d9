"""How a model is laid out on GPUs, what is legal, and the nearest layout that is.

This is the one place that decides legality: a refusal is one sentence, and comes with layouts that work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from llmctl.errors import UserError
from llmctl.planning.model import ModelShape

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class PlanLayout:
    """One way to run a model.

    Attributes:
        tp, pp, dp: tensor-parallel, pipeline and data-parallel sizes; the GPUs are their product.
        micro_batch_size: sequences of one micro-batch.
        global_batch_size: sequences of one step.
        recompute: ``none``, ``selective`` (the attention core) or ``full`` (whole layers).
        sequence_parallel: norms and dropout are split along the sequence over the tensor-parallel group.
        schedule: name of the pipeline schedule.
        virtual_stages: virtual stages of a device (interleaved only).
        zero_stage: ZeRO 0 to 3 over the data-parallel group.
    """

    tp: int
    pp: int
    dp: int
    micro_batch_size: int
    global_batch_size: int
    recompute: str = "none"
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    virtual_stages: int = 1
    zero_stage: int = 0

    @property
    def gpus(self) -> int:
        """Return the number of GPUs."""
        return self.tp * self.pp * self.dp

    @property
    def micro_batches(self) -> int:
        """Return the micro-batches of one replica's step."""
        return self.global_batch_size // (self.micro_batch_size * self.dp)

    def describe(self) -> str:
        """Say the layout in a few words, for tables and hints."""
        words = f"tp {self.tp} · pp {self.pp} · dp {self.dp} · micro-batch {self.micro_batch_size}"
        if self.pp > 1 and self.schedule != "1f1b":
            words += f" · {self.schedule}"
            words += f" ×{self.virtual_stages}" if self.virtual_stages > 1 else ""
        words += f" · ZeRO-{self.zero_stage}" if self.zero_stage else ""
        words += f" · recompute {self.recompute}" if self.recompute != "none" else ""
        return words + (" · sequence parallel" if self.sequence_parallel else "")

    def flags(self) -> str:
        """Return the command-line flags of this layout."""
        parts = [
            f"--tp {self.tp} --pp {self.pp} --micro-batch-size {self.micro_batch_size}",
            f"--global-batch-size {self.global_batch_size} --zero-stage {self.zero_stage}",
            f"--recompute {self.recompute} --schedule {self.schedule}",
        ]
        if self.virtual_stages > 1:
            parts.append(f"--virtual-stages {self.virtual_stages}")
        if self.sequence_parallel:
            parts.append("--sequence-parallel")
        return " ".join(parts)


def problem(shape: ModelShape, layout: PlanLayout) -> str | None:
    """Return why a layout cannot be run, in one sentence, or None if it can."""
    for check in (_tensor_problem, _pipeline_problem, _batch_problem, _schedule_problem, _zero_problem):
        found = check(shape, layout)
        if found:
            return found
    return None


def _tensor_problem(shape: ModelShape, layout: PlanLayout) -> str | None:
    tp = layout.tp
    if layout.sequence_parallel and tp == 1:
        return "sequence parallelism splits what tensor parallelism leaves whole, and --tp is 1"
    for value, name in (
        (shape.num_heads, "num_heads"),
        (shape.kv_heads, "num_kv_heads"),
        (shape.ffn_size, "ffn_hidden_size"),
    ):
        if value % tp:
            return f"`{name}` {value} cannot be split over --tp {tp}"
    if layout.sequence_parallel and shape.seq_len % tp:
        return f"`seq_len` {shape.seq_len} cannot be split over --tp {tp} (sequence parallelism)"
    return None


def _pipeline_problem(shape: ModelShape, layout: PlanLayout) -> str | None:
    virtual = layout.pp * layout.virtual_stages
    # A chunk may hold the embedding or the output layer alone, a device may not (Qi et al. 2024, interleaved runs).
    ends_alone = layout.virtual_stages > 1 and virtual == shape.num_layers + 2
    if virtual > shape.num_layers and not ends_alone:
        stages = f"--pp {layout.pp}" + (
            f" × --virtual-stages {layout.virtual_stages}" if layout.virtual_stages > 1 else ""
        )
        return f"{stages} is more than the model's {shape.num_layers} layers"
    return None


def _batch_problem(shape: ModelShape, layout: PlanLayout) -> str | None:
    unit = layout.micro_batch_size * layout.dp
    if layout.global_batch_size % unit:
        return (
            f"--global-batch-size {layout.global_batch_size} is not a multiple of --micro-batch-size "
            f"{layout.micro_batch_size} × {layout.dp} data-parallel replicas = {unit}"
        )
    return None


def _schedule_problem(shape: ModelShape, layout: PlanLayout) -> str | None:
    m, pp = layout.micro_batches, layout.pp
    if layout.schedule == "interleaved":
        if layout.virtual_stages < 2:
            return "the interleaved schedule needs --virtual-stages of 2 or more"
        if pp == 1:
            return "the interleaved schedule needs a pipeline, and --pp is 1"
        if m % pp:
            return f"the interleaved schedule needs micro-batches in multiples of --pp {pp}, and a replica has {m}"
    elif layout.virtual_stages > 1:
        return f"--virtual-stages {layout.virtual_stages} needs --schedule interleaved, not {layout.schedule}"
    if pp > 1 and layout.schedule != "gpipe" and m < pp:
        batches = "1 micro-batch" if m == 1 else f"{m} micro-batches"
        return f"{batches} a replica cannot fill a pipeline of {pp} stages ({layout.schedule})"
    return None


def _zero_problem(shape: ModelShape, layout: PlanLayout) -> str | None:
    if layout.zero_stage == 3 and layout.pp > 1:
        return (
            f"ZeRO-3 saves nothing under a pipeline (--pp {layout.pp}): weights and gradients of a stage stay whole "
            "until its last micro-batch"
        )
    return None


def check(shape: ModelShape, layout: PlanLayout) -> None:
    """Refuse a layout that cannot be run.

    Raises:
        UserError: why, and the nearest layouts with as many GPUs that can.
    """
    found = problem(shape, layout)
    if found:
        near = nearest(shape, layout)
        if near:
            raise UserError(found, "works: " + "; or ".join(option.flags() for option in near))
        raise UserError(found, "no layout of this model uses that many GPUs with this batch; change one of them")


def nearest(shape: ModelShape, layout: PlanLayout, count: int = 2) -> list[PlanLayout]:
    """Return the legal layouts most like `layout`, with as many GPUs and the batch as near as can be."""
    legal = [candidate for candidate in _neighbours(layout) if problem(shape, candidate) is None]
    return sorted(legal, key=lambda candidate: _distance(layout, candidate))[:count]


def _neighbours(layout: PlanLayout) -> Iterator[PlanLayout]:
    for tp in divisors(layout.gpus):
        for pp in divisors(layout.gpus // tp):
            dp = layout.gpus // (tp * pp)
            for micro in sorted({1, 2, 4, 8, layout.micro_batch_size}):
                for batch in _batches(layout.global_batch_size, micro * dp):
                    base = replace(layout, tp=tp, pp=pp, dp=dp, micro_batch_size=micro, global_batch_size=batch)
                    yield from _plainer(base)


def _batches(wanted: int, unit: int) -> set[int]:
    low = wanted // unit * unit
    return {size for size in (low, low + unit if low != wanted else low) if size}


def _plainer(layout: PlanLayout) -> Iterator[PlanLayout]:
    """Yield the layout with its options, and with those removed that may stand in the way."""
    schedules = {(layout.schedule, layout.virtual_stages), ("1f1b", 1)}
    if layout.schedule == "interleaved":
        schedules.add(("interleaved", max(2, layout.virtual_stages)))
    for schedule, chunks in sorted(schedules):
        for zero in sorted({layout.zero_stage, 1 if layout.zero_stage == 3 else layout.zero_stage}):
            for split in sorted({layout.sequence_parallel, False}):
                yield replace(
                    layout, schedule=schedule, virtual_stages=chunks, zero_stage=zero, sequence_parallel=split
                )


def _distance(wanted: PlanLayout, other: PlanLayout) -> tuple[float, int, int]:
    steps = abs(math.log2(other.tp / wanted.tp)) + abs(math.log2(other.pp / wanted.pp))
    steps += abs(math.log2(other.micro_batch_size / wanted.micro_batch_size))
    steps += 4 * abs(math.log2(other.global_batch_size / wanted.global_batch_size))
    steps += (other.schedule != wanted.schedule) + (other.zero_stage != wanted.zero_stage)
    steps += 0.5 * (other.sequence_parallel != wanted.sequence_parallel)
    return (steps, other.tp, other.pp)


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    small = [value for value in range(1, math.isqrt(number) + 1) if number % value == 0]
    return sorted({*small, *(number // value for value in small)})


def layers_of_stages(num_layers: int, virtual: int) -> list[int]:
    """Return the number of layers on each virtual stage.

    Even where it divides. Otherwise, where embedding and output layer count as a layer each and then it divides, the
    first and last stage hold one fewer (Qi et al. 2024; BLOOM). Otherwise as even as possible, the last stages
    holding fewer, as the output layer is theirs.
    """
    base, extra = divmod(num_layers, virtual)
    if extra and virtual > 1 and (num_layers + 2) % virtual == 0:
        full = (num_layers + 2) // virtual
        return [full - 1, *[full] * (virtual - 2), full - 1]
    return [base + (1 if index < extra else 0) for index in range(virtual)]
