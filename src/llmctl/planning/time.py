"""How long the parts of a training step take on one device.

A layer is a list of matrix products (time by shape), element-wise work (bytes over memory bandwidth) and
tensor-parallel collectives (bytes over link bandwidth). `step.py` puts the parts into a pipeline schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmctl.planning.constants import (
    FLASH_BACKWARD_SHARE,
    FLASH_BACKWARD_WORK,
    FLASH_FORWARD_SHARE,
    MISALIGNED_SLOWDOWN,
    Constants,
)
from llmctl.planning.hardware import Hardware
from llmctl.planning.layout import PlanLayout
from llmctl.planning.memory import Precision
from llmctl.planning.model import ModelShape
from llmctl.planning.schedule import StageTimes


@dataclass(frozen=True)
class Device:
    """A device as the time model sees it: rates in FLOP/s and bytes/s.

    Attributes:
        matmul: rate of very large matrix products.
        peak: the vendor's rate.
        memory: bandwidth of element-wise work.
        link: bus bandwidth of collectives within a node.
        constants: the other constants.
        pass_overhead: seconds of each pass through a layer that nothing else explains.
        width: bytes of an activation.
    """

    matmul: float
    peak: float
    memory: float
    link: float
    constants: Constants
    pass_overhead: float
    width: int

    def product(self, rows: float, columns: float, inner: float, batch: float = 1.0) -> float:
        """Return the seconds of a matrix product [rows, inner] × [inner, columns], `batch` times at once."""
        flops = 2.0 * rows * columns * inner * batch
        slowed = rows / (rows + self.constants.matmul_rows_half)
        arithmetic = flops / (self.matmul * slowed) + self.constants.matmul_work_half / self.matmul
        return max(arithmetic, self.width * (rows * inner + inner * columns + rows * columns) * batch / self.memory)

    def attention_product(self, rows: float, columns: float, inner: float, batch: float, head: int) -> float:
        """Return the seconds of a batched product of the attention core; the batch fills the device."""
        misaligned = MISALIGNED_SLOWDOWN if self.width == 2 and head % 8 else 1.0
        arithmetic = 2.0 * rows * columns * inner * batch * misaligned / self.matmul
        return max(arithmetic, self.width * (rows * inner + inner * columns + rows * columns) * batch / self.memory)

    def touch(self, size: float) -> float:
        """Return the seconds of element-wise work that reads and writes `size` bytes."""
        return size / self.memory


def device_of(hardware: Hardware, precision_name: str, precision: Precision, constants: Constants) -> Device:
    """Return the rates of a device in a training precision."""
    return Device(
        matmul=hardware.matmul(precision_name) * constants.matmul_share,
        peak=hardware.peak(precision_name),
        memory=hardware.memory_gbps * 1e9 * constants.memory_share,
        link=hardware.link_gbps * 1e9 * constants.link_share,
        constants=constants,
        pass_overhead=hardware.pass_overhead_ms * 1e-3,
        width=precision.activation,
    )


@dataclass(frozen=True)
class LayerTime:
    """Seconds of one layer and micro-batch.

    Attributes:
        matrices, attention, elementwise, collectives: parts of one forward pass.
        times: forward, backward for the input (recomputation included) and for the weights.
    """

    matrices: float
    attention: float
    elementwise: float
    collectives: float
    times: StageTimes


def layer_time(shape: ModelShape, layout: PlanLayout, device: Device, attention: str) -> LayerTime:
    """Return the time of one layer for one micro-batch on one tensor-parallel rank."""
    tokens = shape.seq_len * layout.micro_batch_size
    products = _layer_products(shape, layout.tp, tokens)
    forward_products = sum(device.product(*product) for product in products)
    input_products = sum(device.product(rows, inner, columns) for rows, columns, inner in products)
    weight_products = sum(device.product(columns, inner, rows) for rows, columns, inner in products)
    core_forward, core_backward = _attention_core(shape, layout, device, attention)
    light_forward, light_backward = _elementwise(shape, layout, device)
    reduce = all_reduce_bytes(tokens * shape.hidden_size * device.width, layout.tp) / device.link
    constants = device.constants

    forward = forward_products + core_forward + light_forward + 2 * reduce + device.pass_overhead
    backward = input_products + core_backward + light_backward + device.pass_overhead
    backward += 2 * reduce * (1 - constants.backward_overlap)
    if layout.sequence_parallel:
        backward += reduce * constants.regather_exposed  # two gathers, each half of an all-reduce
    if layout.recompute == "full":
        backward += forward
    elif layout.recompute == "selective" and attention == "core":
        backward += core_forward
    return LayerTime(
        forward_products,
        core_forward,
        light_forward,
        2 * reduce,
        StageTimes(forward, backward, weight_products),
    )


def _layer_products(shape: ModelShape, tp: int, tokens: int) -> list[tuple[float, float, float]]:
    hidden, ffn = shape.hidden_size, shape.ffn_size / tp
    return [
        (tokens, (shape.query_size + 2 * shape.kv_size) / tp, hidden),
        (tokens, hidden, shape.query_size / tp),
        (tokens, ffn * (2 if shape.gated_mlp else 1), hidden),
        (tokens, hidden, ffn),
    ]


def _attention_core(shape: ModelShape, layout: PlanLayout, device: Device, attention: str) -> tuple[float, float]:
    """Return seconds of scores, softmax and weighted values: (forward, backward)."""
    length, head = shape.seq_len, shape.head_size
    batch = layout.micro_batch_size * shape.num_heads / layout.tp
    if attention == "flash":
        flops = 0.5 * 4.0 * length**2 * head * batch
        return (
            flops / (device.peak * FLASH_FORWARD_SHARE),
            flops * FLASH_BACKWARD_WORK / (device.peak * FLASH_BACKWARD_SHARE),
        )
    products = device.attention_product(length, length, head, batch, head)
    products += device.attention_product(length, head, length, batch, head)
    scores, width = batch * length**2, device.width
    # Softmax reads and writes the scores; dropout does so again, with a mask of one byte.
    forward = scores * (4 * width + 1 if shape.has_dropout else 2 * width)
    backward = scores * (5 * width + 1 if shape.has_dropout else 3 * width)
    return products + device.touch(forward), 2 * products + device.touch(backward)


def _elementwise(shape: ModelShape, layout: PlanLayout, device: Device) -> tuple[float, float]:
    """Return seconds of norms, residuals, dropout, activation functions and copies: (forward, backward)."""
    tokens, width, hidden = shape.seq_len * layout.micro_batch_size, device.width, shape.hidden_size
    mask = 1 if shape.has_dropout else 0
    # A norm reads and writes, a residual reads two and writes one; backward they read one more.
    whole = 2 * (5 * width + mask) * hidden
    whole_backward = 2 * ((7 if mask else 5) * width + mask) * hidden
    whole_split = layout.tp if layout.sequence_parallel else 1
    # The activation function (gate and up in, product out), and copies of q, k, v and of the attention output.
    numbers = 3 if shape.gated_mlp else 2
    copies = 2 * width * (2 * shape.query_size + 2 * shape.kv_size)
    split = width * numbers * shape.ffn_size + copies
    split_backward = width * (numbers + (2 if shape.gated_mlp else 1)) * shape.ffn_size + copies
    return (
        device.touch(tokens * (whole / whole_split + split / layout.tp)),
        device.touch(tokens * (whole_backward / whole_split + split_backward / layout.tp)),
    )


def output_time(shape: ModelShape, layout: PlanLayout, device: Device) -> StageTimes:
    """Return the time of output layer and loss for one micro-batch on one tensor-parallel rank."""
    tokens = shape.seq_len * layout.micro_batch_size
    vocabulary = shape.vocab_size / layout.tp
    # Logits to float32, softmax, loss; backward their gradient.
    light = device.touch(tokens * vocabulary * (3 * device.width + 8))
    return StageTimes(
        device.product(tokens, vocabulary, shape.hidden_size) + light,
        device.product(tokens, shape.hidden_size, vocabulary) + light / 2,
        device.product(vocabulary, shape.hidden_size, tokens),
    )


def optimizer_time(parameters: float, layout: PlanLayout, device: Device, precision: Precision) -> float:
    """Return seconds of unscaling, norm, clipping and update of the parameters on one rank.

    Mixed precision touches 60 bytes a parameter: gradients to float32 and unscaled (14), norm (4), clip (8), Adam
    (28), copy to half precision (6); float32 touches 40. ZeRO splits them.
    """
    touched = 60 if precision.parameter == 2 else 40
    return device.touch(parameters * touched / (layout.dp if layout.zero_stage else 1))


def all_reduce_bytes(size: float, ranks: int) -> float:
    """Return the bytes that each rank sends in a ring all-reduce of `size` bytes: 2(N−1)/N × size."""
    return 2.0 * (ranks - 1) / ranks * size
