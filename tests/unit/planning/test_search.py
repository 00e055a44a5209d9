"""The search finds what trying everything finds, and says why the runner-up loses."""

from __future__ import annotations

import pytest

from llmctl.errors import UserError
from llmctl.planning.config import PlanConfig
from llmctl.planning.hardware import find
from llmctl.planning.layout import problem
from llmctl.planning.model import ModelShape
from llmctl.planning.plan import job_of, make_plan, space_of
from llmctl.planning.search import against, layouts, why_slower
from llmctl.planning.step import predict

LLAMA = ModelShape(32, 4096, 32, 32000, ffn_hidden_size=11008, tied_embeddings=False)


def config(**values) -> PlanConfig:
    return PlanConfig(**{"gpus": 16, "hw": "a100-40g", "global_batch_size": 64, **values})


def test_the_best_is_as_fast_as_any_that_was_tried() -> None:
    asked = config(micro_batch_size=1, schedule="1f1b", recompute="selective", sequence_parallel=False)
    hardware = find(asked.hw)
    plan = make_plan(LLAMA, asked, hardware)
    job = job_of(LLAMA, asked, hardware)
    tried = [predict(job, layout) for layout in layouts(LLAMA, 16, 64, space_of(asked), 8)]
    fitting = [step.seconds for step in tried if step.fits(hardware)]
    assert plan.step.seconds == pytest.approx(min(fitting), rel=0.005)
    assert all(problem(LLAMA, step.layout) is None for step in tried)


def test_ranking_is_sorted_distinct_and_gives_reasons() -> None:
    plan = make_plan(LLAMA, config(top=4), find("a100-40g"))
    steps = plan.found.steps
    assert len(steps) == 4
    assert [step.seconds for step in steps] == sorted(step.seconds for step in steps)
    assert len({(step.layout.tp, step.layout.pp, step.layout.micro_batch_size) for step in steps}) == 4
    assert all(step.fits(plan.job.hardware) and step.layout.gpus == 16 for step in steps)
    for step in steps[1:]:
        assert why_slower(steps[0], step)


def test_what_is_given_is_kept() -> None:
    plan = make_plan(LLAMA, config(tp=4, recompute="full", zero_stage=1), find("a100-40g"))
    assert {step.layout.tp for step in plan.found.steps} == {4}
    assert {step.layout.recompute for step in plan.found.steps} == {"full"}


def test_nothing_fits_names_the_smallest() -> None:
    big = ModelShape(96, 12288, 96, 51200, gated_mlp=False)
    with pytest.raises(UserError, match=r"none of .* layouts fits in 42.9 GB.*the smallest"):
        make_plan(big, config(), find("a100-40g"))


def test_pure_data_parallelism_of_a_large_model_fits_only_with_zero_3() -> None:
    """175B on 1,024 A100: the claim 'data parallel only fits with ZeRO-3', and 3D is faster."""
    big = ModelShape(96, 12288, 96, 51200, gated_mlp=False)
    asked = PlanConfig(gpus=1024, tp=8, pp=8, micro_batch_size=1, global_batch_size=2048, recompute="full")
    hardware = find("a100-80g")
    plan = make_plan(big, asked, hardware)
    rows = dict(against(plan.job, 1024, 2048, plan.step))
    assert rows["chosen"].fits(hardware)
    assert not rows["pure data parallel"].fits(hardware)
    assert not rows["ZeRO-1"].fits(hardware)
    assert rows["ZeRO-3"].fits(hardware)
    assert rows["ZeRO-3"].seconds > rows["chosen"].seconds


def test_a_fixed_layout_without_micro_batch_takes_the_fastest_that_fits() -> None:
    plan = make_plan(LLAMA, config(tp=4, pp=2, recompute="selective"), find("a100-40g"))
    assert plan.found is None
    assert plan.step.layout.micro_batch_size in (1, 2, 4, 8)
    assert plan.fits
    assert any("micro-batch size not given" in note for note in plan.notes)


def test_deepspeed_pipelines_refuse_zero_2() -> None:
    with pytest.raises(UserError) as failure:
        make_plan(LLAMA, config(tp=1, pp=4, zero_stage=2, micro_batch_size=1, engine="deepspeed"), find("a100-40g"))
    assert "DeepSpeed" in failure.value.problem and "works: " in failure.value.hint
    plan = make_plan(LLAMA, config(tp=1, pp=4, zero_stage=2, micro_batch_size=1, recompute="full"), find("a100-40g"))
    assert any("ZeRO-1's gradient memory" in note for note in plan.notes)


def test_numbers_of_devices_that_do_not_divide() -> None:
    with pytest.raises(UserError) as failure:
        make_plan(LLAMA, config(gpus=30, tp=8, pp=4), find("a100-40g"))
    assert "30 devices cannot be cut into --tp 8 × --pp 4 = 32" in failure.value.problem
    assert "--gpus 32" in failure.value.hint
