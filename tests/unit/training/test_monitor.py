"""The gradient monitor: at, under and over its limit, its cool-down, and its state through a checkpoint."""

from __future__ import annotations

import json
import math

import pytest
import torch

from llmctl.config.load import build
from llmctl.model.config import ModelConfig
from llmctl.model.transformer import Transformer
from llmctl.training.config import TrainingConfig
from llmctl.training.distributed import World
from llmctl.training.engines.base import LossOutput
from llmctl.training.engines.native import NativeEngine
from llmctl.training.losses.next_token import NextTokenLoss
from llmctl.training.monitor import LEAST_HISTORY, GradientMonitor
from llmctl.training.run import Job, TrainingRun, fit

SHAPE = ModelConfig(31, 1, 16, 2, 1, 0, 24)


def monitor(**changes) -> GradientMonitor:
    return GradientMonitor(build(TrainingConfig, changes))


def test_the_absolute_limit_is_the_published_one():
    watch = monitor()
    assert watch.limit == 1e5 and watch.max_grad_norm == 1.0  # the usual clip is tighter
    assert watch.observe(1, 1e5) is None and watch.lr_factor == 1.0
    told = watch.observe(2, math.nextafter(1e5, math.inf))
    assert told is not None and "step 2" in told and watch.lr_factor == 0.8


def test_off_does_nothing():
    watch = monitor(gradient_monitor="off", max_grad_norm=0)
    assert watch.observe(1, 1e30) is None and watch.lr_factor == 1.0 and watch.max_grad_norm == 0.0


def test_the_limit_clips_where_the_usual_clip_does_not():
    assert monitor(max_grad_norm=0, gradient_limit=5).max_grad_norm == 5
    assert monitor(max_grad_norm=3, gradient_limit=5).max_grad_norm == 3


def test_the_robust_limit_is_median_plus_deviations():
    watch = monitor(gradient_monitor="robust", gradient_deviations=4.0)
    norms = [1.0 + 0.1 * (step % 5) for step in range(LEAST_HISTORY)]  # median 1.2, median absolute deviation 0.1
    for step, norm in enumerate(norms):
        assert math.isinf(watch.limit)
        assert watch.observe(step, norm) is None
    assert watch.limit == pytest.approx(1.2 + 4 * 1.4826 * 0.1)
    assert watch.observe(90, watch.limit) is None
    limit = watch.limit
    assert watch.observe(91, 50.0) is not None
    assert watch.limit == limit  # an unusual norm does not become usual by itself


def test_a_run_whose_norms_hardly_differ_is_left_in_peace():
    watch = monitor(gradient_monitor="robust")
    for step in range(100):
        assert watch.observe(step, 1.0 + 1e-6 * (step % 3)) is None
    assert watch.observe(100, 1.4) is None
    assert watch.observe(101, 1.6) is not None


def test_the_cool_down_and_the_floor():
    watch = monitor(gradient_limit=10, gradient_cooldown=3)
    factors = []
    for step in range(1, 60):
        assert watch.observe(step, 11.0) is not None
        factors.append(watch.lr_factor)
    assert factors[:7] == pytest.approx([0.8, 0.8, 0.8, 0.64, 0.64, 0.64, 0.512])
    assert min(factors) == pytest.approx(0.1) and watch.num_events == 59


def test_fp16_overflow_is_not_an_event_and_nan_elsewhere_is():
    assert monitor(precision="fp16").observe(1, math.inf) is None
    assert monitor(precision="fp32").observe(1, math.inf) is not None


def test_state_survives_json():
    watch = monitor(gradient_monitor="robust")
    for step in range(40):
        watch.observe(step, 1.0 + 0.01 * (step % 7))
    watch.observe(40, 9.0)
    again = monitor(gradient_monitor="robust")
    again.restore(json.loads(json.dumps(watch.state())))
    assert again.state() == watch.state() and again.limit == watch.limit
    for step, norm in ((41, 9.0), (95, 9.0), (96, 1.0)):
        assert again.observe(step, norm) == watch.observe(step, norm)


class SpikeLoss(NextTokenLoss):
    """Next-token loss that is a thousand times too large in one step."""

    def __init__(self, spike: int) -> None:
        super().__init__()
        self.spike, self.step = spike, 0

    def __call__(self, model, batch) -> LossOutput:
        output = super().__call__(model, batch)
        self.step = int(batch["step"][0])
        return LossOutput(output.total * (1000.0 if self.step == self.spike else 1.0), output.metrics)


def _train(root, steps: int, **changes) -> tuple[list[dict], dict[str, torch.Tensor]]:
    torch.set_num_threads(1)
    settings = {"steps": 40, "precision": "fp32", "lr": 1e-2, "tensorboard": False, "checkpoint_every": 10}
    config = build(TrainingConfig, {**settings, "gradient_monitor": "robust", **changes})
    engine = NativeEngine(Transformer(SHAPE, seed=0), config, World())

    def batches(step: int):
        ids = torch.randint(0, 31, (4, 9), generator=torch.Generator().manual_seed(step))
        return [{"input_ids": ids[:, :-1], "labels": ids[:, 1:], "step": torch.full((4, 1), step)}]

    loss = SpikeLoss(30)
    with TrainingRun(Job(root, "test", config, {}), {"model": engine}, label="test", total_steps=steps) as run:
        fit(run, engine, loss, batches)
    lines = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    return lines, dict(engine.full_weights())


def test_a_spike_in_a_run_is_clipped_and_lowers_the_rate(tmp_path):
    lines, _ = _train(tmp_path, 40)
    by_step = {line["step"]: line for line in lines}
    assert by_step[30]["grad_norm"] > 100 * by_step[29]["grad_norm"]
    assert by_step[30]["gradient_events"] == 1
    quiet, _ = _train(tmp_path / "quiet", 40, gradient_monitor="off")
    rates = {line["step"]: line["lr"] for line in quiet}
    assert by_step[30]["lr"] == pytest.approx(rates[30])
    assert by_step[31]["lr"] == pytest.approx(0.8 * rates[31])


def test_a_resumed_run_remembers_the_event(tmp_path):
    whole, weights = _train(tmp_path / "whole", 40)
    _train(tmp_path / "cut", 32)
    again, resumed = _train(tmp_path / "cut", 40)
    assert [line["lr"] for line in again] == [line["lr"] for line in whole]
    assert all(torch.equal(weights[name], resumed[name]) for name in weights)
