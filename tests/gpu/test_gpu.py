"""What only a machine with GPUs can show: fp16, FlashAttention, NCCL, memory. Skipped, visibly, everywhere else."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

_spec = importlib.util.spec_from_file_location(
    "parity_harness", Path(__file__).parents[1] / "distributed" / "harness.py"
)
harness = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(harness)

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = [pytest.mark.slow, pytest.mark.skipif(GPUS == 0, reason="torch sees no GPU")]
several = pytest.mark.skipif(GPUS < 2, reason=f"NCCL needs a GPU for each process, and there are {GPUS}")
CUDA: dict[str, Any] = {"device": "cuda", "engine": "native"}


def case(**changes: Any) -> dict[str, Any]:
    return harness.case(**{**CUDA, **changes})


def test_a_gpu_computes_what_a_cpu_computes():
    on_gpu = harness.run_case(case(optimizer="sgd"))
    on_cpu = harness.run_case(case(optimizer="sgd", device="cpu"))
    assert on_gpu["losses"] == pytest.approx(on_cpu["losses"], rel=1e-4)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_learns(precision):
    result = harness.run_case(case(precision=precision, run_steps=20, lr=1e-3))
    assert all(loss == loss for loss in result["losses"])
    full = harness.run_case(case(run_steps=20, lr=1e-3))
    assert result["losses"][-1] == pytest.approx(full["losses"][-1], rel=0.05)


def test_causal_attention_runs_in_flash_attention():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from llmctl.config.load import build
    from llmctl.model.transformer import Transformer
    from llmctl.pretraining.config import PretrainConfig

    shape = build(PretrainConfig, {"model": {**harness.BASE["model"], "hidden_size": 256, "num_kv_heads": 4}}).model
    model = Transformer(shape, seed=0).cuda()
    ids = torch.randint(0, 61, (2, 128), device="cuda")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.isfinite(model(ids)).all()


@several
@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"zero_stage": 1},
        {"engine": "deepspeed", "zero_stage": 2},
        {"tp": 2},
        {"tp": 2, "sequence_parallel": True},
        {"pp": 2},
        {"pp": 2, "schedule": "interleaved", "virtual_stages": 2},
        {"pp": 2, "schedule": "zb-h1"},
    ],
    ids=str,
)
def test_two_gpus_equal_one(layout, tmp_path):
    wanted = case(optimizer="sgd", **layout)
    (got,) = harness.run_cases(2, [wanted], tmp_path)
    expected = harness.run_case(harness.reference_of(wanted))
    assert got["losses"] == pytest.approx(expected["losses"], rel=1e-4)
    assert got["norms"] == pytest.approx(expected["norms"], rel=1e-4)


@several
def test_bf16_zero_and_recomputation_need_a_fraction_of_the_memory(tmp_path):
    big = {
        "model": {"num_layers": 8, "hidden_size": 1024, "num_heads": 16, "num_kv_heads": 16, "ffn_hidden_size": 2816},
        "seq_len": 1024,
        "global_batch_size": 2 * GPUS,
        "micro_batch_size": 2,
        "run_steps": 2,
        "measure": True,
    }
    plain, saving = harness.run_cases(
        GPUS,
        [
            case(precision="fp32", **big),
            case(precision="bf16", recompute="full", **{**big, "engine": "deepspeed", "zero_stage": 2}),
        ],
        tmp_path,
    )
    ratio = saving["peak_bytes"] / plain["peak_bytes"]
    print(f"{GPUS} GPUs: {plain['peak_bytes'] / 2**30:.2f} GiB -> {saving['peak_bytes'] / 2**30:.2f} GiB ({ratio:.3f})")
    # 16 bytes a parameter become 2 + 14/N; activations shrink more.
    assert ratio < (2 + 14 / GPUS) / 16 + 0.1
