"""The loss and the gradient norm do not depend on the layout, the engine or the cut into micro-batches."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("parity_harness", Path(__file__).with_name("harness.py"))
harness = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(harness)

pytestmark = pytest.mark.distributed
TOLERANCE = {"fp32": 1e-5, "fp64": 1e-10}

OPTIMIZERS = ("adamw", "sgd")
UNTIED = {"tied_embeddings": False, "qk_norm": True}
TWO = {
    **{
        f"{engine} dp2 zero{zero} {optimizer}": harness.case(engine=engine, zero_stage=zero, optimizer=optimizer)
        for engine, zeros in (("native", (0,)), ("deepspeed", (0, 1, 2, 3)))
        for zero in zeros
        for optimizer in OPTIMIZERS
    },
    "native dp2 lamb": harness.case(engine="native", optimizer="lamb"),
    "native dp2 fp64": harness.case(engine="native", precision="fp64", optimizer="sgd"),
    "native dp2 whole batch": harness.case(engine="native", micro_batch_size=4, optimizer="sgd"),
    "native dp2 single rows": harness.case(engine="native", micro_batch_size=1, optimizer="sgd"),
    "deepspeed dp2 zero2 single rows": harness.case(
        engine="deepspeed", zero_stage=2, micro_batch_size=1, optimizer="sgd"
    ),
    "deepspeed dp2 zero3 untied": harness.case(
        engine="deepspeed", zero_stage=3, micro_batch_size=1, optimizer="sgd", model=UNTIED
    ),
    "native dp2 recompute": harness.case(engine="native", recompute="full", optimizer="sgd"),
    "native tp2": harness.case(engine="native", tp=2),
    "native tp2 sgd fp64": harness.case(engine="native", tp=2, precision="fp64", optimizer="sgd"),
    "native tp2 lamb": harness.case(engine="native", tp=2, optimizer="lamb"),
    "native tp2 untied qk-norm": harness.case(engine="native", tp=2, optimizer="sgd", model=UNTIED),
    "native tp2 biases": harness.case(engine="native", tp=2, optimizer="sgd", model={"qkv_bias": True}),
    "native tp2 vocabulary of GPT-2": harness.case(
        engine="native", tp=2, precision="fp64", optimizer="sgd", run_steps=2, model={"vocab_size": 50257}
    ),
    "native pp2": harness.case(engine="native", pp=2, optimizer="sgd"),
    "native pp2 adamw fp64": harness.case(engine="native", pp=2, precision="fp64"),
    "native pp2 untied": harness.case(engine="native", pp=2, model=UNTIED),
    "native pp2 one micro-batch": harness.case(engine="native", pp=2, micro_batch_size=8, optimizer="sgd"),
    "native pp2 single rows recompute": harness.case(
        engine="native", pp=2, micro_batch_size=1, recompute="full", optimizer="sgd"
    ),
    "native dp2 zero1": harness.case(engine="native", zero_stage=1),
    "native dp2 zero1 sgd fp64": harness.case(engine="native", zero_stage=1, precision="fp64", optimizer="sgd"),
    "native dp2 zero1 lamb": harness.case(engine="native", zero_stage=1, optimizer="lamb"),
    "native tp2 sequence": harness.case(engine="native", tp=2, sequence_parallel=True),
    "native tp2 sequence sgd fp64 qk-norm": harness.case(
        engine="native", tp=2, sequence_parallel=True, precision="fp64", optimizer="sgd", model=UNTIED
    ),
    "native tp2 sequence recompute": harness.case(
        engine="native", tp=2, sequence_parallel=True, recompute="full", optimizer="sgd"
    ),
    "native dp2 selective": harness.case(engine="native", recompute="selective", optimizer="sgd"),
    "native pp2 interleaved sgd fp64": harness.case(
        engine="native", pp=2, schedule="interleaved", virtual_stages=2, precision="fp64", optimizer="sgd"
    ),
    "native pp2 zb-h1": harness.case(engine="native", pp=2, schedule="zb-h1", micro_batch_size=1),
    "native pp2 zb-h1 biases fp64": harness.case(
        engine="native", pp=2, schedule="zb-h1", precision="fp64", optimizer="sgd", model={"qkv_bias": True}
    ),
    "native pp2 lamb": harness.case(engine="native", pp=2, optimizer="lamb"),
}
FOUR = {
    "tp2 dp2 fp64": harness.case(tp=2, precision="fp64", optimizer="sgd"),
    "pp2 dp2 fp64": harness.case(pp=2, precision="fp64", optimizer="sgd"),
    "pp2 tp2 fp64": harness.case(pp=2, tp=2, precision="fp64", optimizer="sgd"),
    "pp4 uneven": harness.case(pp=4, micro_batch_size=1, optimizer="sgd", model={"num_layers": 5}),
    "pp4 fewer micro-batches than stages": harness.case(pp=4, micro_batch_size=4, optimizer="sgd"),
    "pp2 tp2 adamw": harness.case(pp=2, tp=2),
    "tp2 dp2 zero1 lamb fp64": harness.case(tp=2, zero_stage=1, precision="fp64", optimizer="lamb"),
    "pp2 dp2 zero1 fp64": harness.case(pp=2, zero_stage=1, precision="fp64", optimizer="sgd"),
    "pp2 tp2 sequence zb-h1 fp64": harness.case(
        pp=2, tp=2, sequence_parallel=True, schedule="zb-h1", precision="fp64", optimizer="sgd"
    ),
}
EIGHT = {
    "tp2 pp2 dp2": harness.case(tp=2, pp=2, micro_batch_size=1),
    "tp2 pp2 dp2 fp64": harness.case(tp=2, pp=2, precision="fp64", optimizer="sgd"),
    "tp2 pp4 lamb": harness.case(tp=2, pp=4, optimizer="lamb"),
    "tp2 pp2 dp2 zero1 interleaved sequence fp64": harness.case(
        tp=2,
        pp=2,
        zero_stage=1,
        sequence_parallel=True,
        schedule="interleaved",
        virtual_stages=2,
        precision="fp64",
        optimizer="sgd",
    ),
}


@pytest.fixture(scope="module")
def references():
    """One-process results by case, each computed once."""
    import json

    import torch

    torch.set_num_threads(1)
    known: dict[str, dict] = {}

    def find(case: dict) -> dict:
        plain = harness.reference_of(case)
        key = json.dumps(plain, sort_keys=True)
        if key not in known:
            known[key] = harness.run_case(plain)
        return known[key]

    return find


def assert_equal(got: dict, expected: dict, tolerance: float) -> None:
    assert got["losses"] == pytest.approx(expected["losses"], rel=tolerance)
    assert got["norms"] == pytest.approx(expected["norms"], rel=tolerance)
    assert got["evaluated"] == pytest.approx(expected["evaluated"], rel=tolerance)
    assert got["differing_replicas"] == 0
    assert got["weights"] == pytest.approx(expected["weights"], rel=max(tolerance, 1e-6) * 100)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    return dict(zip(TWO, harness.run_cases(2, list(TWO.values()), tmp_path_factory.mktemp("two")), strict=True))


@pytest.mark.parametrize("name", TWO)
def test_two_processes_equal_one(two_processes, references, name):
    assert_equal(two_processes[name], references(TWO[name]), TOLERANCE[TWO[name]["precision"]])


@pytest.fixture(scope="module")
def four_processes(tmp_path_factory):
    return dict(zip(FOUR, harness.run_cases(4, list(FOUR.values()), tmp_path_factory.mktemp("four")), strict=True))


@pytest.mark.parametrize("name", FOUR)
def test_four_processes_equal_one(four_processes, references, name):
    assert_equal(four_processes[name], references(FOUR[name]), TOLERANCE[FOUR[name]["precision"]])


@pytest.fixture(scope="module")
def eight_processes(tmp_path_factory):
    return dict(zip(EIGHT, harness.run_cases(8, list(EIGHT.values()), tmp_path_factory.mktemp("eight")), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", EIGHT)
def test_eight_processes_equal_one(eight_processes, references, name):
    assert_equal(eight_processes[name], references(EIGHT[name]), TOLERANCE[EIGHT[name]["precision"]])


def test_clipping_is_active_and_the_loss_falls(references):
    expected = references(TWO["native dp2 zero0 adamw"])
    assert min(expected["norms"]) > harness.BASE["max_grad_norm"]
    assert len({round(loss, 6) for loss in expected["losses"]}) == len(expected["losses"])
