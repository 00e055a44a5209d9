"""Two processes train as one, where the last step of an epoch has fewer items than processes too."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from llmctl.training.sharing import replica_parts

_path = Path(__file__).parents[1] / "unit" / "training" / "conversations" / "tokenizers_for_tests.py"
_spec = importlib.util.spec_from_file_location("tokenizers_for_tests", _path)
made = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(made)


def test_every_replica_gets_as_many_micro_batches_and_every_item_counts_once() -> None:
    for count in range(12):
        shares = [replica_parts(list(range(count)), 2, rank, 3) for rank in range(3)]
        assert len({len(share) for share in shares}) == 1
        counted = [item for share in shares for part, counts in share for item in part if counts]
        assert sorted(counted) == list(range(count))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "engine"),
    [("sft", ["native"]), ("reward", ["native"]), ("dpo", ["deepspeed", "--zero-stage", "2"])],
)
def test_two_processes_train_as_one(tmp_path, kind: str, engine: list[str]) -> None:
    base = made.tiny_model(tmp_path / "base")
    talks = made.conversations(9)
    pairs = [
        {"prompt": talk["messages"][0]["content"], "chosen": talk["messages"][1]["content"], "rejected": "brown fox"}
        for talk in talks
    ]
    data = made.write_lines(tmp_path / "data.jsonl", talks if kind == "sft" else pairs)
    words = ["sft"] if kind == "sft" else ["rlhf", kind]
    more = ["--packing", "off", "--min-seed", "0"] if kind == "sft" else []
    found = []
    for processes in (1, 2):
        out = tmp_path / f"out{processes}"
        # Nine items in steps of four: the third step has one item, and the second process none.
        arguments = [
            *words, data, out, "--model", base, "--precision", "fp32", "--no-tensorboard", "--device", "cpu",
            "--threads", 1, "--seq-len", 64, "--global-batch-size", 4, "--micro-batch-size", 1, "--epochs", 1,
            "--optimizer", "sgd", "--lr", "1e-2", "--validation-fraction", 0, "--processes", processes, "--engine",
            *engine, *more,
        ]  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "llmctl", *map(str, arguments)], capture_output=True, text=True, timeout=150
        )
        assert done.returncode == 0, done.stderr
        found.append([json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()])
    assert len(found[0]) == len(found[1]) == 3
    for one, two in zip(*found, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)
