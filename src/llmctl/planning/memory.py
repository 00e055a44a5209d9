"""Memory of one GPU, by pipeline stage.

Model state follows Rajbhandari et al. 2020 (ZeRO): 2 + 2 + 12 bytes a parameter in mixed precision. Activations follow
Korthikanti et al. 2022, table 2, whose terms are kept apart here so that grouped queries, gated feed-forward parts and
fused attention have theirs. All sizes are bytes; a gigabyte is 10⁹ bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmctl.planning.hardware import Hardware
from llmctl.planning.layout import PlanLayout, layers_of_stages
from llmctl.planning.model import ModelShape
from llmctl.planning.schedule import Operation, orders_of, peak_live

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Precision:
    """Bytes of one number of each kind.

    Attributes:
        parameter: weights as the forward pass reads them.
        gradient: accumulated gradients.
        optimizer: all optimizer state of one parameter, the master copy included.
        activation: activations.
    """

    parameter: int
    gradient: int
    optimizer: int
    activation: int

    @property
    def state(self) -> int:
        """Return the bytes of model state of one parameter: 16 for Adam in mixed precision."""
        return self.parameter + self.gradient + self.optimizer


def precision_of(precision: str, optimizer: str = "adamw", gradients: str | None = None) -> Precision:
    """Return the bytes of numbers under a training precision.

    Args:
        precision: ``bf16``, ``fp16`` (with float32 master weights) or ``fp32``.
        optimizer: ``adamw`` and ``lamb`` keep two moments, ``sgd`` one.
        gradients: precision of accumulated gradients; None takes that of the weights.
    """
    width = BYTES[precision]
    moments = 4 if optimizer == "sgd" else 8
    master = 0 if precision == "fp32" else 4
    return Precision(width, BYTES[gradients or precision], master + moments, width)


@dataclass(frozen=True)
class StageMemory:
    """Bytes on one GPU of one pipeline stage.

    Attributes:
        stage: pipeline stage, from 0.
        parameters, gradients, optimizer: model state, split as the ZeRO stage says.
        activations: kept between forward and backward at the fullest moment.
        other: working memory: logits, embedding and output-layer inputs, one layer being recomputed, gathered weights.
        reserve: device context, communication buffers and fragmentation, as nvidia-smi shows beyond `total`.
    """

    stage: int
    parameters: float
    gradients: float
    optimizer: float
    activations: float
    other: float
    reserve: float

    @property
    def total(self) -> float:
        """Return the bytes that the framework allocates at the fullest moment."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.other

    @property
    def device(self) -> float:
        """Return the bytes that the device must have."""
        return self.total + self.reserve


def state_bytes(parameters: float, precision: Precision, zero_stage: int, dp: int) -> tuple[float, float, float]:
    """Return bytes of (parameters, gradients, optimizer) on each of `dp` ranks.

    ZeRO-1 splits optimizer state, ZeRO-2 gradients as well, ZeRO-3 parameters as well: (4 + 12/N)·P, (2 + 14/N)·P and
    16·P/N bytes in mixed precision.
    """
    return (
        parameters * precision.parameter / (dp if zero_stage >= 3 else 1),
        parameters * precision.gradient / (dp if zero_stage >= 2 else 1),
        parameters * precision.optimizer / (dp if zero_stage >= 1 else 1),
    )


def layer_activation_bytes(
    shape: ModelShape,
    micro_batch: int,
    tp: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
    attention: str = "core",
    width: int = 2,
) -> float:
    """Return the bytes that one layer keeps for the backward pass of one micro-batch.

    Args:
        attention: ``core`` keeps scores, probabilities and their dropout mask; ``flash`` keeps one float32 a row.
        width: bytes of an activation.
    """
    tokens = shape.seq_len * micro_batch
    hidden = shape.hidden_size
    if recompute == "full":
        return tokens * hidden * width / (tp if sequence_parallel else 1)
    masks = 2 * hidden if shape.has_dropout else 0
    whole = 4 * width * hidden + masks  # inputs of two norms and of qkv and MLP, dropout masks of both outputs
    split = float(width * (2 * shape.query_size + 2 * shape.kv_size))  # q, k, v, input of the output projection
    split += width * shape.ffn_size * (4 if shape.gated_mlp else 2)  # gated: gate, silu(gate), up, their product
    if attention == "flash":
        split += 4 * shape.num_heads
    elif recompute == "none":
        split += (2 * width + 1 if shape.has_dropout else width) * shape.num_heads * shape.seq_len
    return tokens * (whole / (tp if sequence_parallel else 1) + split / tp)


def layer_weight_gradient_bytes(shape: ModelShape, micro_batch: int, tp: int, width: int = 2) -> float:
    """Return what one layer keeps between the backward pass for the input and that for the weights (zero bubble).

    Inputs of the linear layers and gradients of their outputs: 32·s·b·h for a GPT (Qi et al. 2024, §2.3).
    """
    inputs = 2 * shape.hidden_size + shape.query_size + shape.ffn_size
    outputs = shape.query_size + 2 * shape.kv_size + 2 * shape.hidden_size
    outputs += shape.ffn_size * (2 if shape.gated_mlp else 1)
    return shape.seq_len * micro_batch * width * (inputs + outputs) / tp


def stage_parameters(shape: ModelShape, layout: PlanLayout) -> list[float]:
    """Return the parameters on one GPU of each pipeline stage.

    A tied output layer is a second copy where the last stage is not the first.
    """
    layers = layers_of_stages(shape.num_layers, layout.pp * layout.virtual_stages)
    split = (shape.layer_matrices + shape.layer_split_vectors) / layout.tp
    vocabulary = -(-shape.vocab_size // layout.tp) * shape.hidden_size
    counts = []
    for stage in range(layout.pp):
        mine = sum(layers[chunk * layout.pp + stage] for chunk in range(layout.virtual_stages))
        count = mine * (split + shape.layer_whole_vectors)
        if stage == 0:
            count += vocabulary + shape.position_parameters
        if stage == layout.pp - 1:
            count += shape.norm_size
            if layout.pp > 1 or not shape.tied_embeddings:
                count += vocabulary
        counts.append(count)
    return counts


def memory_by_stage(
    shape: ModelShape,
    layout: PlanLayout,
    precision: Precision,
    attention: str = "core",
    hardware: Hardware | None = None,
) -> list[StageMemory]:
    """Return the memory of one GPU of every pipeline stage.

    Args:
        hardware: says what context and fragmentation take; None leaves `reserve` at 0.
    """
    # After 4·p micro-batches a schedule holds no more than before.
    enough = min(layout.micro_batches, 4 * layout.pp)
    orders = orders_of(layout.schedule, layout.pp, enough, layout.virtual_stages)
    layers = layers_of_stages(shape.num_layers, layout.pp * layout.virtual_stages)
    one_layer = layer_activation_bytes(
        shape,
        layout.micro_batch_size,
        layout.tp,
        layout.sequence_parallel,
        layout.recompute,
        attention,
        precision.activation,
    )
    for_weights = min(
        one_layer,
        layer_weight_gradient_bytes(shape, layout.micro_batch_size, layout.tp, precision.activation),
    )
    stages = []
    for stage, parameters in enumerate(stage_parameters(shape, layout)):
        chunks = [layers[chunk * layout.pp + stage] for chunk in range(layout.virtual_stages)]
        activations = peak_live(
            orders[stage], [count * one_layer for count in chunks], [count * for_weights for count in chunks]
        )
        zero = _effective_zero(layout)
        state = state_bytes(parameters, precision, zero, layout.dp)
        other = _working_bytes(shape, layout, precision, attention, stage, orders[stage])
        total = sum(state) + activations + other
        stages.append(StageMemory(stage, *state, activations, other, _reserve(total, hardware)))
    return stages


def _reserve(total: float, hardware: Hardware | None) -> float:
    return hardware.context_gb * 1e9 + hardware.fragmentation * total if hardware else 0.0


def _effective_zero(layout: PlanLayout) -> int:
    """Return the ZeRO stage whose memory a layout has: under a pipeline gradients stay whole until the last one."""
    return min(layout.zero_stage, 1) if layout.pp > 1 else layout.zero_stage


def _working_bytes(
    shape: ModelShape, layout: PlanLayout, precision: Precision, attention: str, stage: int, order: Sequence[Operation]
) -> float:
    tokens, width = shape.seq_len * layout.micro_batch_size, precision.activation
    split = layout.tp if layout.sequence_parallel else 1
    size = 0.0
    if layout.recompute == "full":
        size += layer_activation_bytes(
            shape, layout.micro_batch_size, layout.tp, layout.sequence_parallel, "none", attention, width
        )
    elif layout.recompute == "selective" and attention == "core":
        pair = [
            layer_activation_bytes(shape, layout.micro_batch_size, layout.tp, layout.sequence_parallel, policy)
            for policy in ("none", "selective")
        ]
        size += pair[0] - pair[1]
    if stage == 0 and shape.has_dropout:
        in_flight = peak_live(order, [1.0, *[0.0] * (layout.virtual_stages - 1)])
        size += in_flight * tokens * shape.hidden_size / split
    if stage == layout.pp - 1:
        # Inputs of the last norm and of the output layer; logits, and their float32 copy in the loss.
        size += 2 * tokens * shape.hidden_size * width / split
        size += tokens * shape.vocab_size / layout.tp * (width + 4)
    if layout.zero_stage >= 3:
        size += 2 * shape.layer_parameters / layout.tp * precision.parameter  # this layer's and the next one's
    return size


def fullest(stages: list[StageMemory]) -> StageMemory:
    """Return the stage that needs most memory."""
    return max(stages, key=lambda stage: stage.device)
