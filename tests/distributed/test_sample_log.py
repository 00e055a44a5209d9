"""Three epochs on one process, and on eight with a stop and two processes after it: the same global batches."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmctl.cli.app import run

pytestmark = [pytest.mark.slow, pytest.mark.distributed]

SETTINGS = """
seq_len: 32
global_batch_size: 8
micro_batch_size: 1
checkpoint_every: 0
validate_every: 0
validation_fraction: 0
precision: fp32
device: cpu
threads: 1
tensorboard: false
packing: best_fit
log_samples: true
model: {num_layers: 1, hidden_size: 16, num_heads: 2, num_kv_heads: 1, ffn_hidden_size: 16}
mixture:
  phases:
    - {start: 0, weights: {a: 2, b: 1}}
    - {start: 0.4, weights: {a: 1, b: 2}}
"""


def batches(root: Path) -> list[list[list[int]]]:
    """Return the rows of each step, over all replicas' logs, in order of the samples' numbers."""
    steps: dict[int, list] = {}
    for path in (root / "samples").glob("replica-*.jsonl"):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            steps.setdefault(entry["step"], []).extend(entry["rows"])
    return [sorted(steps[step]) for step in sorted(steps)]


def start(command: list[str]) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "llmctl", *command], stderr=subprocess.PIPE, env=environment)


def test_the_sample_log_is_the_same_for_1_8_and_2_processes_across_a_stop(tmp_path):
    lines = [json.dumps({"text": f"number {n}: " + "some words " * (n % 9), "source": "ab"[n % 2]}) for n in range(120)]
    (tmp_path / "raw.jsonl").write_text("\n".join(lines) + "\n")
    tokens, shards = str(tmp_path / "tok"), str(tmp_path / "shards")
    assert run(["tokenize", str(tmp_path / "raw.jsonl"), tokens, "--vocab-size", "270", "--workers", "1"]) == 0
    assert run(["shard", tokens, shards, "--workers", "1"]) == 0
    (tmp_path / "run.yaml").write_text(SETTINGS)
    settings = ["--config", str(tmp_path / "run.yaml"), "--steps", "60"]

    def command(output: str, processes: int) -> list[str]:
        return ["pretrain", shards, str(tmp_path / output), *settings, "--processes", str(processes)]

    assert run(command("one", 1)) == 0
    whole = batches(tmp_path / "one")
    assert [row[0] for rows in whole for row in rows] == list(range(480))
    plan = json.loads((tmp_path / "one" / "mixture.json").read_text())
    assert min(column["epochs"] for column in plan["columns"]) >= 3

    process = start(command("many", 8))
    log = tmp_path / "many" / "metrics.jsonl"
    deadline = time.monotonic() + 240
    while not (log.is_file() and log.read_bytes().count(b"\n") >= 20):
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=240)
    assert process.returncode == 75, error.decode()
    stopped = len(batches(tmp_path / "many"))
    assert 20 <= stopped < 60
    assert batches(tmp_path / "many") == whole[:stopped]
    assert run(command("many", 2)) == 0
    assert batches(tmp_path / "many") == whole
    assert len(list((tmp_path / "many" / "samples").glob("replica-*.jsonl"))) == 8
    one, many = (json.loads((tmp_path / name / "mixture.json").read_text()) for name in ("one", "many"))
    assert one == many
