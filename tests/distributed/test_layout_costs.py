"""What layouts save is counted in tensors, and processes that drift apart are named."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("parity_harness", Path(__file__).with_name("harness.py"))
harness = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(harness)

pytestmark = pytest.mark.distributed
# Activations outweigh weights and their gradients.
LONG = {"seq_len": 256, "global_batch_size": 4, "micro_batch_size": 4, "run_steps": 2, "measure": True}
NORM = "layers.1.post_attention_layernorm.weight"
FLIP = {"name": NORM, "rank": 1}
CASES = {
    "tp": harness.case(engine="native", tp=2, **LONG),
    "sequence": harness.case(engine="native", tp=2, sequence_parallel=True, **LONG),
    "sequence selective": harness.case(engine="native", tp=2, sequence_parallel=True, recompute="selective", **LONG),
    "selective": harness.case(engine="native", tp=2, recompute="selective", **LONG),
    "full": harness.case(engine="native", tp=2, recompute="full", **LONG),
    "zero0": harness.case(engine="native", run_steps=1),
    "zero1": harness.case(engine="native", run_steps=1, zero_stage=1),
    "flip tp": harness.case(engine="native", tp=2, replica_check_every=2, flip=FLIP),
    "flip dp": harness.case(
        engine="native", replica_check_every=2, flip=FLIP | {"name": "layers.0.mlp.up_proj.weight"}
    ),
    "flip tied": harness.case(
        engine="native", pp=2, replica_check_every=2, flip=FLIP | {"name": "embed_tokens.weight"}
    ),
    "no flip": harness.case(engine="native", tp=2, replica_check_every=2),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    found = harness.run_cases(2, list(CASES.values()), tmp_path_factory.mktemp("costs"))
    return dict(zip(CASES, found, strict=True))


def test_sequence_parallelism_keeps_less(results):
    assert results["sequence"]["losses"] == pytest.approx(results["tp"]["losses"], rel=1e-5)
    assert results["sequence"]["peak_bytes"] < 0.85 * results["tp"]["peak_bytes"]
    assert results["sequence selective"]["peak_bytes"] < 0.8 * results["selective"]["peak_bytes"]


def test_recomputation_keeps_less(results):
    assert results["selective"]["losses"] == pytest.approx(results["tp"]["losses"], rel=1e-5)
    assert results["full"]["peak_bytes"] < 0.6 * results["tp"]["peak_bytes"]
    assert results["selective"]["peak_bytes"] < results["tp"]["peak_bytes"]


def test_zero_1_splits_the_optimizer_state(results):
    assert results["zero1"]["state_bytes"] == pytest.approx(results["zero0"]["state_bytes"] / 2, rel=0.01)


@pytest.mark.parametrize("axis", ["tp", "dp", "tied"])
def test_one_flipped_bit_is_found_and_named(results, axis):
    found = results[f"flip {axis}"]
    assert found["step"] == 1
    assert CASES[f"flip {axis}"]["flip"]["name"] in found["failure"]
    assert "processes 0, 1" in found["failure"]


def test_equal_replicas_pass_the_check(results):
    assert len(results["no flip"]["losses"]) == 6
