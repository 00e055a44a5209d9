"""The whole parity grid: twenty steps under every layout, schedule and engine equal twenty steps of one process.

Every case has dropout, several documents a row, rows with very different numbers of labels, tied embeddings, an odd
vocabulary, clipping at every step and gradient accumulation. Losses and gradient norms agree to 1e-5 in fp32 and to
1e-10 in fp64, under SGD and AdamW: Adam alone hides a gradient that is wrong by a factor.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

_spec = importlib.util.spec_from_file_location("parity_harness", Path(__file__).with_name("harness.py"))
harness = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(harness)

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
TOLERANCE = {"fp32": 1e-5, "fp64": 1e-10}
STEPS = 20
NATIVE: dict[str, Any] = {"engine": "native"}
DEEPSPEED: dict[str, Any] = {"engine": "deepspeed"}
SEQUENCE = {"tp": 2, "sequence_parallel": True}
INTERLEAVED = {"schedule": "interleaved", "virtual_stages": 2}
# SGD amplifies the rounding of fp32 twentyfold in twenty steps at a larger rate.
LEARNING_RATES = {"sgd": 0.03, "adamw": 1e-3}

# Points of the grid by number of processes; each runs with SGD and AdamW.
GRID: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "dp2": NATIVE,
        "dp2 rows 1": NATIVE | {"micro_batch_size": 1},
        "dp2 rows 4": NATIVE | {"micro_batch_size": 4},
        "dp2 zero1": NATIVE | {"zero_stage": 1},
        "dp2 deepspeed zero0": DEEPSPEED,
        "dp2 deepspeed zero1": DEEPSPEED | {"zero_stage": 1},
        "dp2 deepspeed zero2": DEEPSPEED | {"zero_stage": 2},
        "dp2 deepspeed zero3": DEEPSPEED | {"zero_stage": 3},
        "tp2": NATIVE | {"tp": 2},
        "tp2 recompute": NATIVE | {"tp": 2, "recompute": "full"},
        "tp2 selective": NATIVE | {"tp": 2, "recompute": "selective"},
        "tp2 sequence": NATIVE | SEQUENCE,
        "tp2 sequence recompute": NATIVE | SEQUENCE | {"recompute": "full"},
        "pp2": NATIVE | {"pp": 2},
        "pp2 interleaved": NATIVE | {"pp": 2} | INTERLEAVED,
        "pp2 zb-h1": NATIVE | {"pp": 2, "schedule": "zb-h1", "micro_batch_size": 1},
        "pp2 gpipe": NATIVE | {"pp": 2, "schedule": "gpipe"},
        "pp2 one micro-batch": NATIVE | {"pp": 2, "micro_batch_size": 8},
    },
    4: {
        "dp4": NATIVE,
        "dp4 deepspeed zero2": DEEPSPEED | {"zero_stage": 2, "micro_batch_size": 1},
        "dp4 deepspeed zero3": DEEPSPEED | {"zero_stage": 3},
        "dp4 zero1": NATIVE | {"zero_stage": 1},
        "tp2 dp2": NATIVE | {"tp": 2},
        "tp2 dp2 zero1": NATIVE | {"tp": 2, "zero_stage": 1},
        "pp2 dp2 zero1": NATIVE | {"pp": 2, "zero_stage": 1},
        "pp4 zb-h1": NATIVE | {"pp": 4, "schedule": "zb-h1", "micro_batch_size": 1},
        "pp4 zb-h2 recompute": NATIVE | {"pp": 4, "schedule": "zb-h2", "micro_batch_size": 1, "recompute": "full"},
        "pp4 interleaved": NATIVE | {"pp": 4, "micro_batch_size": 1, "model": {"num_layers": 9}} | INTERLEAVED,
        "tp2 pp2 sequence zb-h1": NATIVE | SEQUENCE | {"pp": 2, "schedule": "zb-h1"},
        "pp2 dp2": NATIVE | {"pp": 2},
        "tp2 pp2": NATIVE | {"tp": 2, "pp": 2},
        "pp4 uneven": NATIVE | {"pp": 4, "model": {"num_layers": 7}, "micro_batch_size": 1},
        "pp4 fewer micro-batches": NATIVE | {"pp": 4, "micro_batch_size": 4},
    },
    8: {
        "dp8": NATIVE | {"micro_batch_size": 1},
        "tp2 dp4": NATIVE | {"tp": 2},
        "pp2 dp4": NATIVE | {"pp": 2, "micro_batch_size": 1},
        "tp2 pp2 dp2 zero1": NATIVE | {"tp": 2, "pp": 2, "zero_stage": 1},
        "tp2 pp2 dp2 sequence interleaved zero1": NATIVE | SEQUENCE | INTERLEAVED | {"pp": 2, "zero_stage": 1},
        "tp2 pp2 dp2": NATIVE | {"tp": 2, "pp": 2},
        "tp2 pp4": NATIVE | {"tp": 2, "pp": 4, "micro_batch_size": 1},
        "tp4 pp2": NATIVE | {"tp": 4, "pp": 2, "model": {"num_kv_heads": 4}},
    },
}


def cases_of(point: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the cases of a point: SGD and AdamW, natively in both precisions."""
    precisions = ("fp32", "fp64") if point["engine"] == "native" else ("fp32",)
    return {
        f"{optimizer} {precision}": harness.case(
            **{**point, "optimizer": optimizer, "precision": precision, "run_steps": STEPS, "steps": STEPS},
            lr=LEARNING_RATES[optimizer],
        )
        for optimizer in ("sgd", "adamw")
        for precision in precisions
    }


@pytest.fixture(scope="module")
def references():
    """Results of one process by case, each computed once."""
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


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of the cases of all points of a number of processes."""
    known: dict[int, dict[tuple[str, str], dict]] = {}

    def find(world_size: int) -> dict[tuple[str, str], dict]:
        if world_size not in known:
            cases = {
                (name, variant): case
                for name, point in GRID[world_size].items()
                for variant, case in cases_of(point).items()
            }
            folder = tmp_path_factory.mktemp(f"grid-{world_size}")
            known[world_size] = dict(
                zip(cases, harness.run_cases(world_size, list(cases.values()), folder, timeout=1800), strict=True)
            )
        return known[world_size]

    return find


def test_the_grid_has_enough_points():
    assert sum(map(len, GRID.values())) >= 24


@pytest.mark.parametrize(("world_size", "name"), [(size, name) for size, points in GRID.items() for name in points])
def test_full_grid_of_layouts(results, references, world_size, name):
    for variant, case in cases_of(GRID[world_size][name]).items():
        got, expected = results(world_size)[name, variant], references(case)
        tolerance = TOLERANCE[case["precision"]]
        assert len(got["losses"]) == STEPS
        assert got["losses"] == pytest.approx(expected["losses"], rel=tolerance), variant
        assert got["norms"] == pytest.approx(expected["norms"], rel=tolerance), variant
        assert got["evaluated"] == pytest.approx(expected["evaluated"], rel=tolerance), variant
        assert got["differing_replicas"] == 0
        assert min(expected["norms"]) > 0.7, "clipping is not active in every step"
