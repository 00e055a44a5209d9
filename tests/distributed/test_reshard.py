"""A checkpoint of any layout and engine goes on under any other, with the same losses."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("parity_harness", Path(__file__).with_name("harness.py"))
harness = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(harness)

pytestmark = pytest.mark.distributed

LAYOUTS = {
    "native dp2": {"engine": "native"},
    "native tp2": {"engine": "native", "tp": 2},
    "native pp2": {"engine": "native", "pp": 2},
    "native zero1": {"engine": "native", "zero_stage": 1},
    "native pp2 interleaved": {"engine": "native", "pp": 2, "schedule": "interleaved", "virtual_stages": 2},
    "native tp2 sequence": {"engine": "native", "tp": 2, "sequence_parallel": True},
    "zero0": {"engine": "deepspeed", "zero_stage": 0},
    "zero1": {"engine": "deepspeed", "zero_stage": 1},
    "zero2": {"engine": "deepspeed", "zero_stage": 2},
    "zero3": {"engine": "deepspeed", "zero_stage": 3},
    "zero1 bf16": {"engine": "deepspeed", "zero_stage": 1, "precision": "bf16"},
    "zero3 bf16": {"engine": "deepspeed", "zero_stage": 3, "precision": "bf16"},
    "zero0 bf16": {"engine": "deepspeed", "zero_stage": 0, "precision": "bf16"},
}
# An odd width and an odd vocabulary: partitions and shards do not end where parameters do.
EPS = 1e-3  # keeps Adam from blowing the rounding of gradients near zero up to whole updates
SHAPE = {"hidden_size": 40, "vocab_size": 53, "ffn_hidden_size": 44}


def make(layout: str, **changes) -> dict:
    return harness.case(model=SHAPE, adam_eps=EPS, **{**LAYOUTS[layout], **changes})


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Three steps under every layout, each saved; then three more under every layout from the native one's."""
    root = tmp_path_factory.mktemp("reshard")
    cases = [make(name, run_steps=3, save=str(root / name)) for name in LAYOUTS]
    cases += [make(name, run_steps=3, first_step=3, load=str(root / "native dp2")) for name in LAYOUTS]
    # bf16 goes on from its own checkpoint: master weights and moments must come back whole.
    own = [name for name in LAYOUTS if name.endswith("bf16")]
    cases += [make(name, run_steps=3, first_step=3, load=str(root / name)) for name in own]
    cases += [make(name, run_steps=6) for name in own]
    results = harness.run_cases(2, cases, root)
    count = len(LAYOUTS)
    return {
        "root": root,
        "first": dict(zip(LAYOUTS, results[:count], strict=True)),
        "then": dict(zip(LAYOUTS, results[count : 2 * count], strict=True)),
        "own": dict(zip(own, results[2 * count : 2 * count + len(own)], strict=True)),
        "straight": dict(zip(own, results[2 * count + len(own) :], strict=True)),
    }


@pytest.fixture(scope="module")
def straight():
    import torch

    torch.set_num_threads(1)
    return harness.run_case(harness.case(model=SHAPE, adam_eps=EPS, engine="native", run_steps=6))


FULL_PRECISION = [name for name in LAYOUTS if not name.endswith("bf16")]


@pytest.mark.parametrize("name", FULL_PRECISION)
def test_every_layout_goes_on_from_one_checkpoint(saved, straight, name):
    assert saved["then"][name]["losses"] == pytest.approx(straight["losses"][3:], rel=1e-5)
    assert saved["then"][name]["norms"] == pytest.approx(straight["norms"][3:], rel=1e-5)


@pytest.mark.parametrize("name", FULL_PRECISION)
def test_one_process_goes_on_from_every_checkpoint(saved, straight, name):
    case = harness.case(
        model=SHAPE, adam_eps=EPS, engine="native", run_steps=3, first_step=3, load=str(saved["root"] / name)
    )
    result = harness.run_case(case)
    assert result["losses"] == pytest.approx(straight["losses"][3:], rel=1e-5)
    assert result["norms"] == pytest.approx(straight["norms"][3:], rel=1e-5)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name.endswith("bf16")])
def test_half_precision_resumes_bit_for_bit(saved, name):
    assert saved["own"][name]["losses"] == saved["straight"][name]["losses"][3:]
    assert saved["own"][name]["digest"] == saved["straight"][name]["digest"]
