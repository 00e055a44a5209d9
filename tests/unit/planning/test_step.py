"""Properties that any prediction should have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmctl.planning import step as step_module
from llmctl.planning.constants import Constants
from llmctl.planning.hardware import find
from llmctl.planning.layout import PlanLayout
from llmctl.planning.memory import precision_of
from llmctl.planning.model import ModelShape
from llmctl.planning.report import rates
from llmctl.planning.step import Job, predict

SHAPE = ModelShape(32, 4096, 32, 32000, ffn_hidden_size=11008, tied_embeddings=False)


def job(**values) -> Job:
    base = Job(SHAPE, find("a100-80g"), "bf16", precision_of("bf16"), "core", 0.0, Constants())
    return replace(base, **values)


def test_recomputation_costs_time_and_not_model_flops() -> None:
    layout = PlanLayout(4, 2, 1, 1, 16)
    plain, full = predict(job(), layout), predict(job(), replace(layout, recompute="full"))
    assert 1.2 < full.seconds / plain.seconds < 1.4
    assert rates(job(), full)["mfu"] < rates(job(), plain)["mfu"]
    assert rates(job(), full)["hfu"] == pytest.approx(rates(job(), full)["mfu"] * 4 / 3, rel=0.02)


def test_a_faster_link_or_device_is_never_slower() -> None:
    layout = PlanLayout(4, 2, 2, 1, 16)
    base = predict(job(), layout).seconds
    for name in ("matmul_tflops", "memory_gbps", "link_gbps", "network_gbps"):
        faster = replace(find("a100-80g"), **{name: 2 * getattr(find("a100-80g"), name)})
        assert predict(job(hardware=faster), layout).seconds < base, name


def test_more_micro_batches_shrink_the_bubble() -> None:
    bubbles = [predict(job(), PlanLayout(1, 8, 1, 1, count)).bubble_fraction for count in (8, 16, 64, 256)]
    assert bubbles == sorted(bubbles, reverse=True)


def test_overlap_hides_gradient_communication() -> None:
    layout = PlanLayout(1, 1, 16, 1, 16)
    assert predict(job(overlap=1.0), layout).data_parallel_s == 0
    half, none = predict(job(overlap=0.5), layout), predict(job(), layout)
    assert half.data_parallel_s == pytest.approx(none.data_parallel_s / 2)


def test_closed_form_is_near_the_simulation() -> None:
    for layout in (
        PlanLayout(1, 4, 2, 1, 64),
        PlanLayout(2, 4, 1, 1, 64, schedule="interleaved", virtual_stages=2),
        PlanLayout(1, 8, 1, 1, 64, schedule="zb-h1"),
        PlanLayout(8, 1, 1, 4, 64),
    ):
        quick, exact = predict(job(), layout, quick=True), predict(job(), layout)
        assert quick.seconds == pytest.approx(exact.seconds, rel=0.06), layout
        assert quick.memory == exact.memory


def test_long_steps_continue_at_their_steady_rate(monkeypatch) -> None:
    layout = PlanLayout(1, 4, 1, 1, 256)
    exact = predict(job(), layout)
    monkeypatch.setattr(step_module, "LARGEST_SIMULATION", 100)
    continued = predict(job(), layout)
    assert continued.timeline is None
    assert continued.seconds == pytest.approx(exact.seconds, rel=1e-6)
    assert continued.bubble_fraction == pytest.approx(exact.bubble_fraction, abs=1e-6)


def test_one_device_has_no_communication_and_no_bubble() -> None:
    alone = predict(job(), PlanLayout(1, 1, 1, 1, 4))
    assert alone.bubble_fraction == pytest.approx(0.0, abs=1e-12)
    assert alone.data_parallel_s == alone.embedding_s == 0
    assert set(alone.volumes.by_group().values()) == {0.0}
