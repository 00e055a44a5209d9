"""Every refusal is one sentence and names layouts that do work."""

from __future__ import annotations

import pytest

from llmctl.errors import UserError
from llmctl.planning.layout import PlanLayout, check, divisors, layers_of_stages, nearest, problem
from llmctl.planning.model import ModelShape

LLAMA = ModelShape(32, 4096, 32, 32000, num_kv_heads=8, ffn_hidden_size=11008)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (PlanLayout(3, 1, 2, 1, 4), "`num_heads` 32 cannot be split over --tp 3"),
        (PlanLayout(16, 1, 1, 1, 4), "`num_kv_heads` 8 cannot be split over --tp 16"),
        (PlanLayout(1, 64, 1, 1, 64), "--pp 64 is more than the model's 32 layers"),
        (PlanLayout(1, 8, 1, 1, 64, schedule="interleaved", virtual_stages=8), "more than the model's 32 layers"),
        (PlanLayout(1, 1, 8, 3, 64), "--global-batch-size 64 is not a multiple of --micro-batch-size 3 × 8"),
        (PlanLayout(1, 8, 1, 4, 16), "4 micro-batches a replica cannot fill a pipeline of 8 stages"),
        (PlanLayout(1, 4, 1, 1, 6, schedule="interleaved", virtual_stages=2), "in multiples of --pp 4"),
        (PlanLayout(1, 4, 1, 1, 8, schedule="interleaved"), "needs --virtual-stages of 2 or more"),
        (PlanLayout(1, 4, 1, 1, 8, virtual_stages=2), "needs --schedule interleaved"),
        (PlanLayout(1, 4, 2, 1, 8, zero_stage=3), "ZeRO-3 saves nothing under a pipeline"),
        (PlanLayout(1, 1, 8, 1, 8, sequence_parallel=True), "--tp is 1"),
    ],
)
def test_illegal_layouts_are_refused_with_legal_ones(layout: PlanLayout, words: str) -> None:
    with pytest.raises(UserError) as failure:
        check(LLAMA, layout)
    assert words in failure.value.problem
    assert "\n" not in failure.value.problem
    assert failure.value.hint.startswith("works: --tp ")
    near = nearest(LLAMA, layout)
    assert near and all(problem(LLAMA, option) is None and option.gpus == layout.gpus for option in near)


def test_legal_layouts_pass() -> None:
    check(LLAMA, PlanLayout(8, 4, 2, 1, 32, "selective", True, "interleaved", 2, 1))
    check(LLAMA, PlanLayout(1, 1, 8, 2, 32, zero_stage=3))


def test_nothing_works_says_what_to_change() -> None:
    tiny = ModelShape(1, 7, 1, 11, ffn_hidden_size=13)
    with pytest.raises(UserError) as failure:
        check(tiny, PlanLayout(2, 3, 1, 1, 6))
    assert "works: --tp 1 --pp 1" in failure.value.hint or "change one of them" in failure.value.hint


@pytest.mark.parametrize("layers", range(1, 40))
@pytest.mark.parametrize("stages", [1, 2, 3, 5, 8])
def test_no_layer_is_dropped(layers: int, stages: int) -> None:
    if stages > layers:
        return
    split = layers_of_stages(layers, stages)
    assert sum(split) == layers
    assert len(split) == stages
    assert max(split) - min(split) <= 1


def test_embedding_and_output_count_as_a_layer_each_where_that_divides() -> None:
    assert layers_of_stages(22, 8) == [2, 3, 3, 3, 3, 3, 3, 2]
    assert layers_of_stages(24, 8) == [3] * 8
    assert layers_of_stages(70, 12) == [5, *[6] * 10, 5]
    assert layers_of_stages(78, 12) == [7] * 6 + [6] * 6


def test_divisors() -> None:
    assert divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
