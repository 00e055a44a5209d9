"""From configuration to a finished plan: fixed layout or search, with cost and warnings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmctl.errors import UserError
from llmctl.planning.config import PlanConfig
from llmctl.planning.constants import Constants
from llmctl.planning.cost import Cost, Rates, cost_of
from llmctl.planning.hardware import Hardware
from llmctl.planning.layout import PlanLayout, check, nearest, problem
from llmctl.planning.memory import precision_of
from llmctl.planning.model import ModelShape
from llmctl.planning.search import MICRO_BATCHES, Found, Space, search
from llmctl.planning.step import Job, Step, predict

DEFAULT_TOKENS_A_STEP = 4_000_000
TOKENS_A_PARAMETER = 20  # Hoffmann et al. 2022


@dataclass(frozen=True)
class Plan:
    """A finished plan.

    Attributes:
        job: what was planned.
        step: the chosen step.
        found: the search it comes from; None for a layout that was given.
        cost: of the whole run.
        notes: what a reader should know, one sentence each.
    """

    job: Job
    step: Step
    found: Found | None
    cost: Cost
    notes: list[str]

    @property
    def fits(self) -> bool:
        """Tell whether the chosen layout fits in memory."""
        return self.step.fits(self.job.hardware)


def job_of(shape: ModelShape, config: PlanConfig, hardware: Hardware) -> Job:
    """Return what is to be planned."""
    if config.seq_len:
        shape = replace(shape, seq_len=config.seq_len)
    gradients = None if config.grad_precision == "auto" else config.grad_precision
    known = set(Constants.__dataclass_fields__)
    wrong = sorted(set(hardware.constants) - known)
    if wrong:
        raise UserError(f"hardware `{hardware.name}` sets an unknown constant `{wrong[0]}`", f"known: {sorted(known)}")
    return Job(
        shape=shape,
        hardware=hardware,
        precision_name=config.precision,
        precision=precision_of(config.precision, config.optimizer, gradients),
        attention=hardware.attention if config.attention == "auto" else config.attention,
        overlap=config.overlap,
        constants=replace(Constants(), **hardware.constants),
    )


def make_plan(shape: ModelShape, config: PlanConfig, hardware: Hardware) -> Plan:
    """Plan a run.

    Raises:
        UserError: a layout that cannot be run (with the nearest that can), or nothing that fits.
    """
    job = job_of(shape, config, hardware)
    notes: list[str] = []
    batch = config.global_batch_size or _default_batch(job.shape, config.gpus, notes)
    if config.tp and config.pp:
        step, found = _fixed(job, config, batch, notes), None
    else:
        step, found = _searched(job, config, batch)
    _warn(job, config, step, notes)
    tokens = config.tokens or TOKENS_A_PARAMETER * job.shape.num_parameters
    if not config.tokens:
        notes.append(f"tokens not given: {TOKENS_A_PARAMETER} a parameter, {tokens / 1e9:.4g} billion")
    return Plan(job, step, found, _cost(job, config, step, tokens), notes)


def _default_batch(shape: ModelShape, gpus: int, notes: list[str]) -> int:
    sequences = max(1, DEFAULT_TOKENS_A_STEP // shape.seq_len)
    batch = max(gpus, round(sequences / gpus) * gpus)
    notes.append(f"global batch not given: {batch} sequences, about 4 million tokens a step")
    return batch


def _fixed(job: Job, config: PlanConfig, batch: int, notes: list[str]) -> Step:
    if config.gpus % (config.tp * config.pp):
        unit = config.tp * config.pp
        low = config.gpus // unit * unit
        counts = " or ".join(str(count) for count in (low, low + unit) if count)
        raise UserError(
            f"{config.gpus} devices cannot be cut into --tp {config.tp} × --pp {config.pp} = {unit}",
            f"use --gpus {counts}" + _hint_layouts(job.shape, config, batch),
        )
    base = _given_layout(config, batch, config.micro_batch_size or 1)
    _check_engine(job, config, base)
    if config.micro_batch_size:
        check(job.shape, base)
        return predict(job, base)
    sizes = tuple(size for size in MICRO_BATCHES if size <= 8)
    options = [_given_layout(config, batch, size) for size in sizes]
    legal = [option for option in options if problem(job.shape, option) is None]
    if not legal:
        check(job.shape, base)
    steps = [predict(job, option) for option in legal]
    fitting = [step for step in steps if step.fits(job.hardware)]
    chosen = min(fitting, key=lambda step: step.seconds) if fitting else steps[0]
    notes.append(f"micro-batch size not given: {chosen.layout.micro_batch_size} is the fastest that fits")
    return chosen


def _given_layout(config: PlanConfig, batch: int, micro: int) -> PlanLayout:
    schedule = config.schedule
    if schedule == "auto":
        schedule = "interleaved" if config.virtual_stages > 1 else "1f1b"
    return PlanLayout(
        tp=config.tp,
        pp=config.pp,
        dp=config.gpus // (config.tp * config.pp),
        micro_batch_size=micro,
        global_batch_size=batch,
        recompute="none" if config.recompute == "auto" else config.recompute,
        sequence_parallel=bool(config.sequence_parallel),
        schedule=schedule,
        virtual_stages=config.virtual_stages,
        zero_stage=max(config.zero_stage, 0),
    )


def _hint_layouts(shape: ModelShape, config: PlanConfig, batch: int) -> str:
    # The same request on as many devices, whatever tp and pp: the nearest that can be run.
    wanted = PlanLayout(config.gpus, 1, 1, config.micro_batch_size or 1, batch)
    legal = [
        option
        for option in nearest(shape, wanted, count=10_000)
        if option.global_batch_size == batch or not config.global_batch_size
    ]
    legal.sort(key=lambda option: abs(option.tp - config.tp) + abs(option.pp - config.pp))
    return f", or --tp {legal[0].tp} --pp {legal[0].pp}" if legal else ""


def _check_engine(job: Job, config: PlanConfig, layout: PlanLayout) -> None:
    if config.engine == "deepspeed" and layout.pp > 1 and layout.zero_stage >= 2:
        near = [
            option
            for option in nearest(job.shape, replace(layout, zero_stage=1), count=200)
            if option.pp == 1 or option.zero_stage <= 1
        ][:2]
        raise UserError(
            f"DeepSpeed's pipeline does not run with ZeRO-{layout.zero_stage} (--pp {layout.pp}): stages 0 and 1 only",
            "works: " + "; or ".join(option.flags() for option in near) if near else "use --zero-stage 1",
        )
    if config.engine == "deepspeed" and layout.pp > 1 and layout.schedule != "1f1b":
        raise UserError(
            f"DeepSpeed's pipeline has no {layout.schedule} schedule", "use --schedule 1f1b, or --engine native"
        )


def _searched(job: Job, config: PlanConfig, batch: int) -> tuple[Step, Found]:
    found = search(job, config.gpus, batch, space_of(config), config.top)
    if found.steps:
        return found.steps[0], found
    if found.smallest is None:
        raise UserError(
            f"no layout of this model uses {config.gpus} devices with a batch of {batch} sequences as asked",
            "change --gpus or --global-batch-size, or leave more options open",
        )
    smallest, available = found.smallest, job.hardware.memory_gb
    raise UserError(
        f"none of {found.legal} layouts fits in {available:g} GB of {job.hardware.name}; the smallest "
        f"({smallest.layout.describe()}) needs {smallest.fullest.device / 1e9:.1f} GB",
        "use more devices, shorter sequences, or devices with more memory",
    )


def space_of(config: PlanConfig) -> Space:
    """Return what a search may vary: all that the configuration leaves open."""
    plain = Space()
    chunks = (config.virtual_stages,) if config.virtual_stages > 1 else ()
    schedules = plain.schedules if config.schedule == "auto" else (config.schedule,)
    if chunks:
        schedules = ("interleaved",)
    if config.engine == "deepspeed":
        schedules = tuple(name for name in schedules if name == "1f1b") or schedules
    return Space(
        tp=(config.tp,) if config.tp else (),
        pp=(config.pp,) if config.pp else (),
        micro_batch_sizes=(config.micro_batch_size,) if config.micro_batch_size else (),
        recompute=plain.recompute if config.recompute == "auto" else (config.recompute,),
        sequence_parallel=plain.sequence_parallel if config.sequence_parallel is None else (config.sequence_parallel,),
        schedules=schedules,
        virtual_stages=chunks,
        zero_stages=plain.zero_stages if config.zero_stage < 0 else (config.zero_stage,),
    )


def _warn(job: Job, config: PlanConfig, step: Step, notes: list[str]) -> None:
    layout, hardware = step.layout, job.hardware
    if not step.fits(hardware):
        notes.append(
            f"does not fit: stage {step.fullest.stage} needs {step.fullest.device / 1e9:.1f} GB of "
            f"{hardware.memory_gb:g} GB on {hardware.name}"
        )
    if layout.zero_stage == 2 and layout.pp > 1:
        notes.append("ZeRO-2 under a pipeline has ZeRO-1's gradient memory: a stage's gradients stay whole")
    if layout.tp > hardware.devices_per_node:
        notes.append(
            f"--tp {layout.tp} leaves the node of {hardware.devices_per_node}: its time is not modelled for that"
        )
    if job.precision.activation == 2 and job.shape.head_size % 8:
        notes.append(
            f"heads are {job.shape.head_size} wide, no multiple of 8: attention misses the tensor cores "
            "(BLOOM's sweep measured 42 % longer steps, more than is predicted here)"
        )
    if config.precision == "bf16" and hardware.name.startswith("v100"):
        notes.append("this accelerator has no bf16: use --precision fp16")
    if layout.pp > 1 and step.bubble_fraction > 0.25:
        notes.append(f"the pipeline idles {step.bubble_fraction:.0%} of its time: more micro-batches, or fewer stages")


def _cost(job: Job, config: PlanConfig, step: Step, tokens: float) -> Cost:
    hardware, layout = job.hardware, step.layout
    rates = Rates(
        price=hardware.price if config.price < 0 else config.price,
        spot_price=hardware.spot_price if config.spot_price < 0 else config.spot_price,
        failures_per_hour=config.failures_per_hour,
        interruptions_per_hour=(
            hardware.interruptions_per_hour if config.interruptions_per_hour < 0 else config.interruptions_per_hour
        ),
        restart_s=config.restart_minutes * 60,
        checkpoint_bytes_per_s=config.checkpoint_gbps * 1e9,
        power_w=hardware.power_w,
        pue=config.pue,
        carbon=config.carbon,
    )
    nodes = -(-layout.gpus // hardware.devices_per_node)
    tokens_per_s = layout.global_batch_size * job.shape.seq_len / step.seconds
    checkpoint = job.shape.num_parameters * (job.precision.parameter + job.precision.optimizer)
    return cost_of(tokens, tokens_per_s, layout.gpus, nodes, checkpoint, rates)
