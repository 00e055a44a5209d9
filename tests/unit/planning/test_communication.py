"""Bytes by group against the published formulas."""

from __future__ import annotations

import pytest

from llmctl.planning.communication import data_parallel_bytes, links, volumes
from llmctl.planning.hardware import find
from llmctl.planning.layout import PlanLayout
from llmctl.planning.memory import precision_of, stage_parameters
from llmctl.planning.model import ModelShape

GPT = ModelShape(48, 6144, 64, 51200, gated_mlp=False)
HALF = precision_of("bf16")


@pytest.mark.parametrize(("recompute", "elements"), [("none", 8), ("selective", 8), ("full", 12)])
def test_tensor_parallel_bytes(recompute: str, elements: int) -> None:
    layout = PlanLayout(8, 2, 2, 4, 64, recompute)
    expected = elements * 2048 * 4 * 6144 * (7 / 8) * 24 * layout.micro_batches * 2
    assert volumes(GPT, layout, HALF).tp == pytest.approx(expected)


def test_pipeline_bytes_are_split_over_the_tensor_parallel_group() -> None:
    layout = PlanLayout(8, 4, 1, 2, 32)
    assert volumes(GPT, layout, HALF).pp == 2 * 2048 * 2 * 6144 * 2 / 8 * 16
    assert volumes(GPT, PlanLayout(8, 1, 4, 2, 32), HALF).pp == 0


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_data_parallel_bytes(ranks: int) -> None:
    once = (ranks - 1) / ranks
    for zero, elements in ((0, 2), (1, 2), (2, 2), (3, 3)):
        layout = PlanLayout(1, 1, ranks, 1, ranks, zero_stage=zero)
        assert data_parallel_bytes(1e9, layout, HALF) == pytest.approx(elements * once * 1e9 * 2)


def test_zero_2_and_3_reduce_every_micro_batch() -> None:
    one, four = PlanLayout(1, 1, 8, 1, 8, zero_stage=3), PlanLayout(1, 1, 8, 1, 32, zero_stage=3)
    assert data_parallel_bytes(1.0, four, HALF) == 4 * data_parallel_bytes(1.0, one, HALF)
    first = PlanLayout(1, 1, 8, 1, 32, zero_stage=1)
    assert data_parallel_bytes(1.0, first, HALF) == data_parallel_bytes(
        1.0, PlanLayout(1, 1, 8, 1, 8, zero_stage=1), HALF
    )


def test_quick_estimate_is_gradients_times_workers_times_synchronisations() -> None:
    layout = PlanLayout(1, 1, 16, 1, 16)
    sent = volumes(GPT, layout, HALF)
    assert sent.gradient == max(stage_parameters(GPT, layout)) * 2
    assert sent.workers_times_gradient == sent.gradient * 16
    assert sent.dp == pytest.approx(2 * 15 / 16 * sent.gradient)


def test_groups_that_leave_the_node_get_the_network() -> None:
    hardware = find("a100-80g")
    inside = links(PlanLayout(2, 1, 4, 1, 8), hardware, 200e9)
    assert (inside.dp, inside.dp_leaves_node) == (200e9, False)
    assert links(PlanLayout(8, 1, 4, 1, 8), hardware, 200e9).dp == 25e9
    # Four ranks of a group in each node drive four adapters at once.
    assert links(PlanLayout(2, 1, 16, 1, 16), hardware, 200e9).dp == 100e9
