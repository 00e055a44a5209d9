"""Put the parts together: one training step, its memory, its rates."""

from __future__ import annotations

from dataclasses import dataclass

from llmctl.planning.communication import Volumes, links, volumes
from llmctl.planning.constants import Constants
from llmctl.planning.hardware import Hardware
from llmctl.planning.layout import PlanLayout, layers_of_stages
from llmctl.planning.memory import Precision, StageMemory, fullest, memory_by_stage, stage_parameters
from llmctl.planning.model import ModelShape
from llmctl.planning.schedule import StageTimes, Timeline, orders_of, simulate
from llmctl.planning.time import Device, LayerTime, device_of, layer_time, optimizer_time, output_time

# Above this many operations a step is simulated with fewer micro-batches and continued at its steady rate.
LARGEST_SIMULATION = 400_000


@dataclass(frozen=True)
class Job:
    """What is planned: a model, hardware, and how numbers are kept.

    Attributes:
        shape: the model.
        hardware: the devices and links.
        precision_name: ``bf16``, ``fp16`` or ``fp32``.
        precision: bytes of each kind of number.
        attention: ``core`` or ``flash``.
        overlap: share of the data-parallel communication that hides behind the backward pass.
        constants: of the time model.
    """

    shape: ModelShape
    hardware: Hardware
    precision_name: str
    precision: Precision
    attention: str
    overlap: float
    constants: Constants

    @property
    def device(self) -> Device:
        """Return the device's rates."""
        return device_of(self.hardware, self.precision_name, self.precision, self.constants)


@dataclass(frozen=True)
class Step:
    """A predicted training step.

    Attributes:
        layout: how it is laid out.
        pipeline_s: forward and backward of all micro-batches.
        data_parallel_s: gradient and weight communication that takes time of its own.
        embedding_s: sum of the tied embedding's gradients over first and last stage.
        optimizer_s: update of the weights.
        bubble_fraction: idle share of the devices while the pipeline runs.
        stage_times: seconds of a micro-batch on each virtual stage.
        transfer_s: seconds of one transfer between stages.
        layer: parts of a layer's time.
        memory: by stage.
        volumes: bytes sent.
        timeline: the simulated schedule; None where a closed form stands for it.
    """

    layout: PlanLayout
    pipeline_s: float
    data_parallel_s: float
    embedding_s: float
    optimizer_s: float
    bubble_fraction: float
    stage_times: tuple[StageTimes, ...]
    transfer_s: float
    layer: LayerTime
    memory: tuple[StageMemory, ...]
    volumes: Volumes
    timeline: Timeline | None

    @property
    def seconds(self) -> float:
        """Return the seconds of the whole step."""
        return self.pipeline_s + self.data_parallel_s + self.embedding_s + self.optimizer_s

    @property
    def fullest(self) -> StageMemory:
        """Return the memory of the fullest device."""
        return fullest(list(self.memory))

    def fits(self, hardware: Hardware) -> bool:
        """Tell whether every device has the memory."""
        return self.fullest.device <= hardware.memory_gb * 1e9


def predict(job: Job, layout: PlanLayout, *, quick: bool = False) -> Step:
    """Predict a step.

    Args:
        quick: put a closed form in place of the simulation, for a search over many layouts.
    """
    shape, device = job.shape, job.device
    layer = layer_time(shape, layout, device, job.attention)
    times = _stage_times(job, layout, layer)
    ways = links(layout, job.hardware, device.link)
    sent = volumes(shape, layout, job.precision)
    transfer = 0.0
    if layout.pp > 1:
        activation = shape.seq_len * layout.micro_batch_size * shape.hidden_size * job.precision.activation
        transfer = activation / layout.tp / ways.pp
    if quick:
        pipeline, bubble, timeline = *_closed_form(layout, times, transfer), None
    else:
        pipeline, bubble, timeline = _simulated(layout, times, transfer)
    parameters = stage_parameters(shape, layout)
    embedding = 0.0
    if layout.pp > 1 and shape.tied_embeddings:
        embedding = shape.vocab_size / layout.tp * shape.hidden_size * job.precision.gradient / ways.pp
    return Step(
        layout=layout,
        pipeline_s=pipeline,
        data_parallel_s=_exposed(job, layout, sent, ways.dp, ways.gather, times),
        embedding_s=embedding,
        optimizer_s=optimizer_time(max(parameters), layout, device, job.precision),
        bubble_fraction=bubble,
        stage_times=times,
        transfer_s=transfer,
        layer=layer,
        memory=tuple(memory_by_stage(shape, layout, job.precision, job.attention, job.hardware)),
        volumes=sent,
        timeline=timeline,
    )


def _stage_times(job: Job, layout: PlanLayout, layer: LayerTime) -> tuple[StageTimes, ...]:
    layers = layers_of_stages(job.shape.num_layers, layout.pp * layout.virtual_stages)
    output = output_time(job.shape, layout, job.device)
    times = []
    for index, count in enumerate(layers):
        last = output if index == len(layers) - 1 else StageTimes(0.0, 0.0, 0.0)
        times.append(
            StageTimes(
                count * layer.times.forward + last.forward,
                count * layer.times.backward_input + last.backward_input,
                count * layer.times.backward_weight + last.backward_weight,
            )
        )
    return tuple(times)


def _simulated(
    layout: PlanLayout, times: tuple[StageTimes, ...], transfer: float
) -> tuple[float, float, Timeline | None]:
    m, chunks = layout.micro_batches, layout.virtual_stages

    def run(micro_batches: int) -> Timeline:
        return simulate(orders_of(layout.schedule, layout.pp, micro_batches, chunks), times, transfer, chunks)

    if m * layout.pp * chunks * 2 <= LARGEST_SIMULATION:
        timeline = run(m)
        return timeline.span, timeline.bubble_fraction, timeline
    # The steady state repeats: two shorter runs give its rate.
    short = min(m, 4 * layout.pp)
    first, second = run(short), run(short + layout.pp)
    rounds = (m - short) / layout.pp
    span = first.span + (second.span - first.span) * rounds
    busy = sum(first.busy) + (sum(second.busy) - sum(first.busy)) * rounds
    return span, 1.0 - busy / (layout.pp * span), None


def _closed_form(layout: PlanLayout, times: tuple[StageTimes, ...], transfer: float) -> tuple[float, float]:
    """Return (seconds, bubble) from the slowest stage and the usual bubble formulas."""
    pp, chunks, m = layout.pp, layout.virtual_stages, layout.micro_batches
    stages = [sum(times[chunk * pp + stage].total for chunk in range(chunks)) for stage in range(pp)]
    slowest = max(stages)
    weight = max(item.backward_weight for item in times)
    fill = (pp - 1) * slowest / chunks
    if layout.schedule == "zb-h1":
        fill -= 2 * (pp - 1) * weight
    elif layout.schedule == "zb-h2":
        fill -= 3 * (pp - 1) * weight
    seconds = m * slowest + max(fill, 0.0) + 2 * (pp * chunks - 1) * transfer
    return seconds, 1.0 - m * sum(stages) / (pp * seconds)


def _exposed(
    job: Job, layout: PlanLayout, sent: Volumes, dp: float, gather: float, times: tuple[StageTimes, ...]
) -> float:
    """Return the seconds of data-parallel communication that nothing hides."""
    if layout.dp == 1:
        return 0.0
    if layout.zero_stage < 3:
        return sent.dp / dp * (1.0 - job.overlap)
    compute = layout.micro_batches * sum(item.total for item in times)
    return max(0.0, sent.dp / gather - job.constants.gather_overlap * compute)
