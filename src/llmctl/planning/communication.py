"""Bytes that one device sends in a step, by group, and how long they take on the links.

Volumes follow Rajbhandari et al. 2020, §7 (data parallel, ZeRO), and Narayanan et al. 2021, §3.2 and §4.1 (tensor and
pipeline parallel). With ZeRO 2 and 3 gradients are reduced, and with ZeRO-3 weights gathered, for every micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmctl.planning.hardware import Hardware
from llmctl.planning.layout import PlanLayout, layers_of_stages
from llmctl.planning.memory import Precision, stage_parameters
from llmctl.planning.model import ModelShape
from llmctl.planning.time import all_reduce_bytes


@dataclass(frozen=True)
class Volumes:
    """Bytes that one device of the busiest stage sends in a step.

    Attributes:
        tp: all-reduces (or reduce-scatters and all-gathers) of the layers.
        tp_regather: sequence parallelism gathers the inputs of two products again in the backward pass.
        pp: activations and their gradients to neighbouring stages.
        dp: gradients (and weights, under ZeRO) over the data-parallel group.
        vocabulary: output layer's input gradient, and the tied embedding's gradient between first and last stage.
        gradient: bytes of the gradients that are reduced.
        workers_times_gradient: gradient bytes × workers × synchronisations, the quick estimate for the whole cluster.
    """

    tp: float
    tp_regather: float
    pp: float
    dp: float
    vocabulary: float
    gradient: float
    workers_times_gradient: float

    def by_group(self) -> dict[str, float]:
        """Return the bytes by group."""
        return {
            "tp": self.tp,
            "pp": self.pp,
            "dp": self.dp,
            "tp_regather": self.tp_regather,
            "vocabulary": self.vocabulary,
        }


def volumes(shape: ModelShape, layout: PlanLayout, precision: Precision) -> Volumes:
    """Return the bytes that one device of the busiest stage sends in a step."""
    activation = shape.seq_len * layout.micro_batch_size * shape.hidden_size * precision.activation
    layers = layers_of_stages(shape.num_layers, layout.pp * layout.virtual_stages)
    most = max(
        sum(layers[chunk * layout.pp + stage] for chunk in range(layout.virtual_stages)) for stage in range(layout.pp)
    )
    passes = (6 if layout.recompute == "full" else 4) * most * layout.micro_batches
    tp = passes * all_reduce_bytes(activation, layout.tp)
    regather = 2.0 * most * layout.micro_batches * (layout.tp - 1) / layout.tp * activation
    boundary = 2.0 * activation / layout.tp * layout.micro_batches * layout.virtual_stages if layout.pp > 1 else 0.0
    parameters = max(stage_parameters(shape, layout))
    gradient = parameters * precision.gradient
    vocabulary = layout.micro_batches * all_reduce_bytes(activation, layout.tp)
    if layout.pp > 1 and shape.tied_embeddings:
        vocabulary += all_reduce_bytes(shape.vocab_size / layout.tp * shape.hidden_size * precision.gradient, 2)
    return Volumes(
        tp=tp,
        tp_regather=regather if layout.sequence_parallel else 0.0,
        pp=boundary,
        dp=data_parallel_bytes(parameters, layout, precision),
        vocabulary=vocabulary,
        gradient=gradient,
        workers_times_gradient=gradient * layout.tp * layout.pp * layout.dp * _synchronisations(layout),
    )


def _synchronisations(layout: PlanLayout) -> int:
    if layout.dp == 1:
        return 0
    return layout.micro_batches if layout.zero_stage >= 2 and layout.pp == 1 else 1


def data_parallel_bytes(parameters: float, layout: PlanLayout, precision: Precision) -> float:
    """Return the bytes that one rank sends over its data-parallel group.

    Gradients: ring all-reduce 2(N−1)/N·G; under ZeRO a reduce-scatter of (N−1)/N·G and gathers of (N−1)/N·P.
    """
    ranks = layout.dp
    once = (ranks - 1) / ranks
    gradient, weights = parameters * precision.gradient * once, parameters * precision.parameter * once
    if layout.zero_stage == 0:
        return 2.0 * gradient
    rounds = _synchronisations(layout)
    if layout.zero_stage < 3:
        return rounds * gradient + weights
    return rounds * (gradient + 2.0 * weights)


@dataclass(frozen=True)
class Links:
    """Bandwidth in bytes/s that one device has for each group, and whether the group leaves the node."""

    pp: float
    dp: float
    gather: float
    dp_leaves_node: bool


def links(layout: PlanLayout, hardware: Hardware, link: float) -> Links:
    """Return the bandwidths of the groups.

    Ranks are placed tensor-parallel first, then data-parallel, then stages. A ring over nodes uses the adapters of all
    its ranks in a node at once. ZeRO-3's gathers are taken to reach one adapter's rate, as in the published runs
    (Narayanan et al. 2021, table 2: about 23 GB/s where an adapter has 25).

    Args:
        link: bus bandwidth within a node, bytes/s.
    """
    network = hardware.network_gbps * 1e9
    per_node = hardware.devices_per_node
    one_node = layout.gpus <= per_node
    leaves = layout.tp * layout.dp > per_node
    ranks_in_node = max(1, min(layout.dp, per_node // layout.tp))
    return Links(
        pp=link if one_node else network,
        dp=min(link, network * ranks_in_node) if leaves else link,
        gather=network if leaves else link,
        dp_leaves_node=leaves,
    )
