"""Several processes started by llmctl, or by a launcher that sets RANK: results, signals, and one that dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from llmctl.cli.app import run

pytestmark = pytest.mark.distributed

TINY = """
steps: 12
seq_len: 32
global_batch_size: 4
lr: 1e-2
checkpoint_every: 4
precision: fp32
validation_fraction: 0.1
tensorboard: false
device: cpu
threads: 1
timeout_s: 120
model: {num_layers: 2, hidden_size: 32, num_heads: 4, num_kv_heads: 2, ffn_hidden_size: 48, dropout: 0.1}
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    sentences = ("the cat sat on the mat", "a dog ran over the hill", "rain fell on the roof")
    texts = [". ".join(sentences[(n * 5 + k * k) % 3] for k in range(3 + n % 5)) for n in range(50)]
    (root / "raw.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert run(["tokenize", str(root / "raw.jsonl"), str(root / "tok"), "--vocab-size", "280", "--workers", "1"]) == 0
    assert run(["shard", str(root / "tok"), str(root / "shards"), "--workers", "1"]) == 0
    (root / "tiny.yaml").write_text(TINY)
    return root / "shards"


def arguments(shards: Path, output: Path, *more: str) -> list[str]:
    return ["pretrain", str(shards), str(output), "--config", str(shards.parent / "tiny.yaml"), *more]


def start(arguments: list[str], **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "llmctl", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def losses(root: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (root / "metrics.jsonl").read_text().splitlines()]


def wait_for_step(root: Path, step: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline and process.poll() is None:
        path = root / "metrics.jsonl"
        if path.is_file() and path.read_bytes().count(b"\n") >= step:
            return
        time.sleep(0.005)
    raise AssertionError(f"no step {step}: {process.communicate()[1].decode()}")


@pytest.fixture(scope="module")
def alone(shards, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("alone") / "run"
    assert run(arguments(shards, root)) == 0
    return root


@pytest.fixture(scope="module")
def pair(shards, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("pair") / "run"
    process = start(arguments(shards, root, "--processes", "2", "--zero-stage", "1", "--json"))
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err.decode()
    assert json.loads(out)["kind"] == "model"
    assert b"deepspeed engine" in err
    return root


def test_two_processes_train_as_one(alone, pair):
    assert losses(pair) == pytest.approx(losses(alone), rel=1e-5)
    assert (pair / "events" / "rank-1.jsonl").read_text().count("\n") == 12
    ours, theirs = (json.loads((root / "manifest.json").read_text()) for root in (alone, pair))
    assert ours["config"] == theirs["config"]  # the layout is no part of what a run is


def workers_of(process: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(process.pid).children()


def test_one_dead_process_ends_the_run_and_is_named(pair, shards, tmp_path):
    root = tmp_path / "run"
    flags = ("--processes", "2", "--zero-stage", "1")
    process = start(arguments(shards, root, *flags))
    wait_for_step(root, 5, process)
    workers = workers_of(process)
    second = next(worker for worker in workers if worker.environ()["RANK"] == "1")
    second.kill()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert b"process 1 was ended by SIGKILL" in err
    assert b"Traceback" not in err
    assert not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers)
    process = start(arguments(shards, root, *flags))
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err.decode()
    assert losses(root) == losses(pair)
    ours, theirs = (path / "model" / "model.safetensors" for path in (root, pair))
    assert ours.read_bytes() == theirs.read_bytes()


def test_sigterm_is_passed_on(pair, shards, tmp_path):
    root = tmp_path / "run"
    process = start(arguments(shards, root, "--processes", "2", "--zero-stage", "1", "--checkpoint-every", "0"))
    wait_for_step(root, 2, process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 75, err.decode()
    assert b"Traceback" not in err
    step = len(losses(root))
    assert (root / "checkpoints" / f"step-{step:08d}" / "manifest.json").is_file()
    # Another number of processes goes on from it: the same samples in the same order.
    assert run(arguments(shards, root)) == 0
    assert losses(root) == pytest.approx(losses(pair), rel=1e-5)


def test_workers_die_with_the_launcher(shards, tmp_path):
    root = tmp_path / "run"
    process = start(arguments(shards, root, "--processes", "2", "--zero-stage", "1"))
    wait_for_step(root, 1, process)
    workers = workers_of(process)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert len(workers) == 2
    assert not alive


def test_inside_torchrun_nothing_is_spawned(alone, shards, tmp_path):
    root = tmp_path / "run"
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LLMCTL_RENDEZVOUS": f"file://{tmp_path}/meet"}
    processes = [
        start(
            arguments(shards, root, "--engine", "native"),
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            GLOO_SOCKET_IFNAME="lo",
            **common,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=600) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0].decode().startswith(str(root))
    assert outputs[1][0] == b""
    assert losses(root) == pytest.approx(losses(alone), rel=1e-5)
