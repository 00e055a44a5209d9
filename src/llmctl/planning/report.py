"""A plan as one JSON object, and as a few lines for people."""

from __future__ import annotations

import math
from typing import Any

from llmctl.planning.constants import listed
from llmctl.planning.model import MODEL_FLOPS_FORMULA
from llmctl.planning.plan import Plan
from llmctl.planning.search import why_slower
from llmctl.planning.step import Job, Step


def rates(job: Job, step: Step) -> dict[str, float]:
    """Return what a step achieves: FLOP/s and tokens/s of a device and of all."""
    layout, shape = step.layout, job.shape
    batch, gpus = layout.global_batch_size, layout.gpus
    model, hardware = shape.model_flops(batch), shape.hardware_flops(batch, layout.recompute, job.attention)
    peak = job.hardware.peak(job.precision_name)
    tokens = batch * shape.seq_len / step.seconds
    return {
        "step_time_s": step.seconds,
        "tflops_per_gpu": model / step.seconds / gpus / 1e12,
        "hardware_tflops_per_gpu": hardware / step.seconds / gpus / 1e12,
        "mfu": model / step.seconds / gpus / peak,
        "hfu": hardware / step.seconds / gpus / peak,
        "bubble_fraction": step.bubble_fraction,
        "tokens_per_s": tokens,
        "tokens_per_s_per_gpu": tokens / gpus,
    }


def memory_of(step: Step) -> dict[str, Any]:
    """Return the bytes on the fullest device."""
    full = step.fullest
    return {
        "parameters": full.parameters,
        "gradients": full.gradients,
        "optimizer": full.optimizer,
        "activations": full.activations,
        "other": full.other,
        "total": full.total,
        "reserve": full.reserve,
        "device": full.device,
        "stage": full.stage,
    }


def layout_of(step: Step) -> dict[str, Any]:
    """Return a layout as the flags that give it."""
    layout = step.layout
    return {
        "gpus": layout.gpus,
        "tp": layout.tp,
        "pp": layout.pp,
        "dp": layout.dp,
        "micro_batch_size": layout.micro_batch_size,
        "global_batch_size": layout.global_batch_size,
        "micro_batches": layout.micro_batches,
        "recompute": layout.recompute,
        "sequence_parallel": layout.sequence_parallel,
        "schedule": layout.schedule,
        "virtual_stages": layout.virtual_stages,
        "zero_stage": layout.zero_stage,
        "flags": layout.flags(),
    }


def communication_of(step: Step) -> dict[str, Any]:
    """Return what the quick estimate and the ring say about gradients, beside the bytes by group."""
    sent = step.volumes
    return {
        "gradient_bytes": sent.gradient,
        "gradient_bytes_x_workers_x_synchronisations": sent.workers_times_gradient,
        "exposed_s": {"dp": step.data_parallel_s, "vocabulary": step.embedding_s},
        "transfer_between_stages_s": step.transfer_s,
        "algorithm": "ring: each rank sends 2(N−1)/N × the gradient bytes",
    }


def step_parts(step: Step) -> dict[str, float]:
    """Return the parts of a step in seconds."""
    return {
        "pipeline_s": step.pipeline_s,
        "data_parallel_s": step.data_parallel_s,
        "embedding_s": step.embedding_s,
        "optimizer_s": step.optimizer_s,
    }


def to_json(plan: Plan, rows: list[tuple[str, Step]]) -> dict[str, Any]:
    """Return a plan as plain values.

    Args:
        rows: what `search.against` returned; empty without ``--against``.
    """
    job, step = plan.job, plan.step
    found = plan.found
    data: dict[str, Any] = {
        **rates(job, step),
        "tflops_formula": MODEL_FLOPS_FORMULA,
        "model_flops_per_step": job.shape.model_flops(step.layout.global_batch_size),
        "num_parameters": job.shape.num_parameters,
        "fits": plan.fits,
        "memory_bytes": memory_of(step),
        "memory_bytes_by_stage": [
            {
                "stage": item.stage,
                "parameters": item.parameters,
                "gradients": item.gradients,
                "optimizer": item.optimizer,
                "activations": item.activations,
                "other": item.other,
                "total": item.total,
                "reserve": item.reserve,
            }
            for item in step.memory
        ],
        "comm_bytes": step.volumes.by_group(),
        "communication": communication_of(step),
        "step_parts_s": step_parts(step),
        "stage_times_s": [
            {
                "virtual_stage": index,
                "forward": item.forward,
                "backward_input": item.backward_input,
                "backward_weight": item.backward_weight,
            }
            for index, item in enumerate(step.stage_times)
        ],
        "layout": layout_of(step),
        "cost": vars(plan.cost),
        "hardware": {key: value for key, value in vars(job.hardware).items() if key not in ("constants",)},
        "precision": job.precision_name,
        "attention": job.attention,
        "constants": listed(job.constants),
        "notes": plan.notes,
    }
    if found is not None:
        data["search"] = {
            "legal": found.legal,
            "fitting": found.fitting,
            "layouts": [
                {
                    **layout_of(other),
                    **rates(job, other),
                    "memory_bytes": memory_of(other),
                    "why_slower": None if other is found.steps[0] else why_slower(found.steps[0], other),
                }
                for other in found.steps
            ],
        }
    if rows:
        data["against"] = [
            {
                "name": name,
                **layout_of(other),
                **rates(job, other),
                "memory_bytes": memory_of(other),
                "fits": other.fits(job.hardware),
                "step_time_ratio": other.seconds / step.seconds,
            }
            for name, other in rows
        ]
    return data


def finite(value: Any) -> Any:
    """Return plain values with infinities and NaN as None, as JSON has neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def summary(plan: Plan) -> list[tuple[str, str]]:
    """Return (what, value) lines of a plan for people."""
    job, step, cost = plan.job, plan.step, plan.cost
    full, rate = step.fullest, rates(job, step)
    gb = 1e9
    memory = (
        f"{full.device / gb:.1f} of {job.hardware.memory_gb:g} GB on stage {full.stage}: weights "
        f"{full.parameters / gb:.1f}, gradients {full.gradients / gb:.1f}, optimizer {full.optimizer / gb:.1f}, "
        f"activations {full.activations / gb:.1f}, working {full.other / gb:.1f}, reserve {full.reserve / gb:.1f}"
    )
    sent = step.volumes
    groups = [f"tp {_bytes(sent.tp + sent.tp_regather)}", f"pp {_bytes(sent.pp)}", f"dp {_bytes(sent.dp)}"]
    return [
        ("model", f"{job.shape.num_parameters / 1e9:.4g} billion parameters, {job.shape.seq_len} tokens a sequence"),
        ("layout", f"{step.layout.describe()} on {step.layout.gpus} × {job.hardware.name}"),
        (
            "step",
            f"{_seconds(step.seconds)} for {step.layout.global_batch_size} sequences: pipeline "
            f"{_seconds(step.pipeline_s)} (idle {step.bubble_fraction:.1%}), gradients "
            f"{_seconds(step.data_parallel_s)}, optimizer {_seconds(step.optimizer_s)}",
        ),
        (
            "rate",
            f"{rate['tflops_per_gpu']:.4g} model TFLOP/s a device, MFU {rate['mfu']:.1%}, HFU {rate['hfu']:.1%}, "
            f"{rate['tokens_per_s']:,.0f} tokens/s",
        ),
        ("memory", memory),
        ("sent a step", f"{', '.join(groups)} by each device"),
        (
            "run",
            f"{cost.tokens / 1e9:.4g} billion tokens: {cost.days:,.3g} days, {cost.device_hours:,.0f} device-hours, "
            f"{cost.energy_mwh:,.3g} MWh, {cost.co2_tonnes:,.3g} t CO₂",
        ),
        ("on demand", _money(cost.on_demand)),
        ("on spot", _money(cost.spot)),
    ]


def _money(side: dict[str, float | None]) -> str:
    dollars, days = side["dollars"], side["days"]
    if dollars is None or days is None:
        return "never ends: interruptions come faster than checkpoints and restarts"
    text = f"${dollars:,.0f}, {days:,.3g} days"
    interruptions = side["interruptions"] or 0.0
    if interruptions < 0.05:
        return text
    return (
        f"{text}, {interruptions:,.1f} interruptions, checkpoint every {_seconds(side['checkpoint_interval_s'] or 0)}"
    )


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} PB"


def _seconds(seconds: float) -> str:
    if seconds == 0:
        return "0"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def search_rows(plan: Plan) -> list[list[Any]]:
    """Return the rows of the table of a search."""
    assert plan.found is not None
    best = plan.found.steps[0]
    rows = []
    for step in plan.found.steps:
        rate = rates(plan.job, step)
        why = "" if step is best else why_slower(best, step)
        rows.append(_row(step.layout.describe(), step, rate, why))
    return rows


def against_rows(plan: Plan, rows: list[tuple[str, Step]]) -> list[list[Any]]:
    """Return the rows of the comparison with pure data parallelism and ZeRO-3."""
    found = []
    for name, step in rows:
        if step.fits(plan.job.hardware):
            remark = f"{step.seconds / plan.step.seconds:.2f} × the time"
        else:
            remark = f"does not fit; would take {step.seconds / plan.step.seconds:.2f} × the time"
        found.append(_row(f"{name}: {step.layout.describe()}", step, rates(plan.job, step), remark))
    return found


def _row(name: str, step: Step, rate: dict[str, float], remark: str) -> list[Any]:
    return [
        name,
        _seconds(step.seconds),
        f"{rate['mfu']:.1%}",
        f"{step.bubble_fraction:.1%}",
        f"{step.fullest.device / 1e9:.1f}",
        remark,
    ]


ROW_COLUMNS = ("layout", "step", "MFU", "idle", "GB", "")
