"""Compiled layers compute what plain ones compute."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("parity_harness", Path(__file__).with_name("harness.py"))
harness = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(harness)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler"),
]


def test_full_grid_compiled_layers_give_equal_numbers():
    import torch

    torch.set_num_threads(1)
    plain = harness.run_case(harness.case(engine="native", run_steps=2))
    torch._dynamo.utils.counters.clear()
    compiled = harness.run_case(harness.case(engine="native", run_steps=2, compile=True))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert compiled["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert compiled["norms"] == pytest.approx(plain["norms"], rel=1e-4)
