"""Find the best legal layouts, say why the runner-up loses, and set 3D beside pure data parallelism and ZeRO-3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from llmctl.planning.layout import PlanLayout, divisors, problem
from llmctl.planning.model import ModelShape
from llmctl.planning.step import Job, Step, predict

MICRO_BATCHES = (1, 2, 4, 8, 16)
VIRTUAL_STAGES = (2, 3, 4, 6, 8)
# The closed form ranks all layouts; so many of the best are simulated.
SIMULATED = 40


@dataclass(frozen=True)
class Space:
    """What may vary in a search. A single value fixes it.

    Attributes:
        tp, pp, micro_batch_sizes: sizes to try; empty tries all that divide.
        recompute, sequence_parallel, schedules, zero_stages: options to try.
        virtual_stages: for the interleaved schedule; empty tries some.
    """

    tp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    micro_batch_sizes: tuple[int, ...] = ()
    recompute: tuple[str, ...] = ("none", "selective", "full")
    sequence_parallel: tuple[bool, ...] = (True, False)
    schedules: tuple[str, ...] = ("1f1b", "interleaved", "zb-h1")
    virtual_stages: tuple[int, ...] = ()
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)


@dataclass(frozen=True)
class Found:
    """Result of a search.

    Attributes:
        steps: layouts that fit, fastest first.
        legal: how many legal layouts were looked at.
        fitting: how many of them fit in memory.
        smallest: the layout that needs least memory, for when nothing fits.
    """

    steps: list[Step]
    legal: int
    fitting: int
    smallest: Step | None


def layouts(shape: ModelShape, gpus: int, batch: int, space: Space, devices_per_node: int) -> Iterator[PlanLayout]:
    """Yield every legal layout of a space. Tensor-parallel groups stay within a node unless fixed."""
    for tp in space.tp or [size for size in divisors(gpus) if size <= devices_per_node]:
        if gpus % tp:
            continue
        for pp in space.pp or divisors(gpus // tp):
            if gpus // tp % pp or pp > shape.num_layers:
                continue
            dp = gpus // (tp * pp)
            for micro in space.micro_batch_sizes or MICRO_BATCHES:
                base = PlanLayout(tp, pp, dp, micro, batch)
                for layout in _variants(base, space):
                    if problem(shape, layout) is None:
                        yield layout


def _variants(base: PlanLayout, space: Space) -> Iterator[PlanLayout]:
    splits = [split for split in space.sequence_parallel if base.tp > 1 or not split] or [False]
    if len(space.sequence_parallel) > 1:
        splits = splits[:1]  # where it can be used it costs nothing and saves memory
    zeros = [zero for zero in space.zero_stages if base.dp > 1 or zero == 0] or [0]
    if len(space.zero_stages) > 1 and base.dp > 1:
        zeros = [zero for zero in zeros if zero > 0 and (base.pp == 1 or zero == 1)] or zeros
    for schedule in space.schedules if base.pp > 1 else space.schedules[:1]:
        chunks = (space.virtual_stages or VIRTUAL_STAGES) if schedule == "interleaved" else (1,)
        for chunk in chunks:
            for recompute in space.recompute:
                for split in splits:
                    for zero in zeros:
                        yield replace(
                            base,
                            recompute=recompute,
                            sequence_parallel=split,
                            schedule=schedule,
                            virtual_stages=chunk,
                            zero_stage=zero,
                        )


def search(job: Job, gpus: int, batch: int, space: Space, top: int = 5) -> Found:
    """Rank the legal layouts of a space by step time; those that do not fit are left out."""
    quick: list[Step] = []
    smallest: Step | None = None
    legal = 0
    for layout in layouts(job.shape, gpus, batch, space, job.hardware.devices_per_node):
        if layout.recompute == "selective" and job.attention == "flash" and len(space.recompute) > 1:
            continue  # flash attention keeps no scores: nothing to compute again
        legal += 1
        step = predict(job, layout, quick=True)
        if smallest is None or step.fullest.device < smallest.fullest.device:
            smallest = step
        if step.fits(job.hardware):
            quick.append(step)
    quick.sort(key=lambda step: step.seconds)
    best = [predict(job, step.layout) for step in quick[: max(SIMULATED, top)]]
    best.sort(key=lambda step: (step.seconds, step.fullest.device))
    return Found(_distinct(best)[:top], legal, len(quick), smallest)


def _distinct(steps: list[Step]) -> list[Step]:
    """Keep the fastest of those that differ in schedule and options alone: a runner-up should be another layout."""
    kept: dict[tuple[int, int, int], Step] = {}
    for step in steps:
        layout = step.layout
        kept.setdefault((layout.tp, layout.pp, layout.micro_batch_size), step)
    return list(kept.values())


def why_slower(winner: Step, other: Step) -> str:
    """Say in one sentence why `other` takes longer than `winner`."""
    parts = {
        "a larger pipeline bubble": other.bubble_fraction * other.pipeline_s
        - winner.bubble_fraction * winner.pipeline_s,
        "more data-parallel communication": other.data_parallel_s - winner.data_parallel_s,
        "the tied embedding's sum between first and last stage": other.embedding_s - winner.embedding_s,
        "a slower optimizer step": other.optimizer_s - winner.optimizer_s,
    }
    for name, seconds in _busy_parts(other).items():
        parts[name] = seconds - _busy_parts(winner)[name]
    gap = other.seconds - winner.seconds
    if gap <= 0.001 * winner.seconds:
        return "as fast; it needs more memory" if other.fullest.device > winner.fullest.device else "as fast"
    name, seconds = max(parts.items(), key=lambda item: item[1])
    return f"+{gap:.3g} s: {name} (+{seconds:.3g} s)"


def _busy_parts(step: Step) -> dict[str, float]:
    """Return seconds of a step by kind of work on an average device."""
    layout, layer = step.layout, step.layer
    busy = (1.0 - step.bubble_fraction) * step.pipeline_s
    per_layer = layer.times.total
    reduces = layer.collectives * (3 if layout.recompute == "full" else 2)
    again = {
        "full": layer.times.forward,
        "selective": layer.attention,
        "none": 0.0,
    }[layout.recompute]
    layers = busy / per_layer
    return {
        "more tensor-parallel communication": layers * reduces,
        "more recomputation": layers * (again - (layer.collectives if layout.recompute == "full" else 0.0)),
        "slower matrix products (smaller shapes)": layers * 3 * layer.matrices,
        "more element-wise work": layers * 2 * layer.elementwise,
    }


def against(job: Job, gpus: int, batch: int, chosen: Step) -> list[tuple[str, Step]]:
    """Return the chosen layout beside the best pure data-parallel and ZeRO-3 ones, whether they fit or not."""
    rows = [("chosen", chosen)]
    for name, zeros in (("pure data parallel", (0,)), ("ZeRO-1", (1,)), ("ZeRO-3", (3,))):
        space = Space(tp=(1,), pp=(1,), sequence_parallel=(False,), schedules=("1f1b",), zero_stages=zeros)
        steps = [
            predict(job, layout, quick=True)
            for layout in layouts(job.shape, gpus, batch, space, job.hardware.devices_per_node)
        ]
        if not steps:
            continue
        fitting = [step for step in steps if step.fits(job.hardware)]
        pick = min(fitting, key=lambda step: step.seconds) if fitting else min(steps, key=lambda s: s.fullest.device)
        rows.append((name, predict(job, pick.layout)))
    return rows
