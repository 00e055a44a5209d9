"""Layouts and batch arithmetic: every rank once, every layer once, refusals with the nearest that works."""

from __future__ import annotations

import pytest

from llmctl.config.load import build
from llmctl.errors import UserError
from llmctl.model.config import ModelConfig
from llmctl.training.config import TrainingConfig
from llmctl.training.layout import Layout, layout_for, micro_batch_size, stage_layers
from llmctl.training.models import check_model_layout


def config(**values) -> TrainingConfig:
    return build(TrainingConfig, values)


def test_groups_cut_the_ranks():
    layout = Layout(tp=2, dp=3, pp=4)
    for axis, size in (("tp", 2), ("dp", 3), ("pp", 4)):
        groups = layout.groups(axis)
        assert {len(group) for group in groups} == {size}
        assert sorted(rank for group in groups for rank in group) == list(range(24))
    for rank in range(24):
        assert layout.rank_of(*layout.coordinates(rank)) == rank
    assert layout.groups("tp")[0] == [0, 1]  # neighbours, on the fastest links


def test_processes_that_do_not_divide():
    assert layout_for(config(tp=2, pp=2), 8) == Layout(2, 2, 2)
    with pytest.raises(UserError) as refused:
        layout_for(config(tp=8, pp=4), 40)
    assert "32 or 64 processes" in refused.value.hint


@pytest.mark.parametrize(("layers", "stages"), [(30, 4), (80, 16), (5, 5), (7, 2), (1, 1)])
def test_no_layer_is_lost(layers, stages):
    parts = [stage_layers(layers, stages, stage) for stage in range(stages)]
    assert [layer for part in parts for layer in part] == list(range(layers))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_too_many_stages():
    with pytest.raises(UserError, match="more than the model's 3 layers"):
        stage_layers(3, 4, 0)


def test_micro_batches():
    assert micro_batch_size(config(global_batch_size=32), 2) == 8
    assert micro_batch_size(config(global_batch_size=6), 2) == 3
    assert micro_batch_size(config(global_batch_size=22), 1) == 2
    assert micro_batch_size(config(global_batch_size=8, micro_batch_size=4), 2) == 4
    with pytest.raises(UserError) as refused:
        micro_batch_size(config(global_batch_size=30, micro_batch_size=4), 2)
    assert "24 or 32" in refused.value.hint
    assert "--micro-batch-size 3" in refused.value.hint or "--micro-batch-size 5" in refused.value.hint
    with pytest.raises(UserError, match="not a multiple of 4 replicas"):
        micro_batch_size(config(global_batch_size=6), 4)


def test_models_that_cannot_be_split():
    shape = ModelConfig(100, 4, 64, 8, 4, 0, 96)
    check_model_layout(shape, Layout(tp=4))
    with pytest.raises(UserError) as refused:
        check_model_layout(shape, Layout(tp=8))
    assert "num_kv_heads 4" in refused.value.problem
    assert "--tp 4" in refused.value.hint
