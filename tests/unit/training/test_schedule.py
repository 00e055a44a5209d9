"""The learning rate: S17's shape, its relatives, and linear scaling."""

from __future__ import annotations

import pytest

from llmctl.config.load import build
from llmctl.errors import UserError
from llmctl.training.config import TrainingConfig
from llmctl.training.schedule import learning_rate


def config(**values) -> TrainingConfig:
    return build(TrainingConfig, {"steps": 200, "lr": 1.0, "min_lr_fraction": 0.1, **values})


def test_warmup_constant_cosine():
    plan = config()
    assert learning_rate(plan, 1) == pytest.approx(0.1)
    assert learning_rate(plan, 10) == 1.0  # 5 % of 200
    assert learning_rate(plan, 11) == learning_rate(plan, 100) == 1.0
    assert learning_rate(plan, 101) < 1.0
    assert learning_rate(plan, 150) == pytest.approx(0.55)  # half way down the cosine
    assert learning_rate(plan, 200) == pytest.approx(0.1)
    rates = [learning_rate(plan, step) for step in range(100, 201)]
    assert rates == sorted(rates, reverse=True)
    assert learning_rate(plan, 10_000) == pytest.approx(0.1)  # never below the floor


def test_other_shapes():
    assert learning_rate(config(lr_schedule="constant"), 200) == 1.0
    assert learning_rate(config(lr_schedule="wsd"), 150) == pytest.approx(0.55)
    assert learning_rate(config(lr_schedule="cosine"), 105) == pytest.approx(0.55)
    assert learning_rate(config(warmup_fraction=0.0), 1) == 1.0
    assert learning_rate(config(steps=1), 1) == 1.0


def test_linear_scaling():
    plan = config(lr_scaling="linear", base_lr=1e-4, global_batch_size=2048)
    assert learning_rate(plan, 50) == pytest.approx(8e-4)
    with pytest.raises(UserError, match="base_lr"):
        config(lr_scaling="linear")
    with pytest.raises(UserError, match="lr_scaling"):
        config(base_lr=1e-4)
    with pytest.raises(UserError, match="warm-up ends"):
        config(warmup_fraction=0.6)
