"""Two hosts, one process each, over network cards of their own: they train together; one may leave and come back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.faults.hosts import can_make_hosts, two_hosts

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.distributed,
    pytest.mark.skipif(not can_make_hosts(), reason="network namespaces need root and iproute2"),
]
FLAGS = ["--micro-batch-size", "1", "--precision", "fp32", "--engine", "native", "--checkpoint-every", "5"]


def _command(shards: Path, output: Path, shape: list[str], *more: str) -> list[str]:
    return [sys.executable, "-m", "llmctl", "pretrain", str(shards), str(output), *shape, *FLAGS, *more]


def _lines(output: Path) -> list[dict]:
    path = output / "metrics.jsonl"
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def _last_step(output: Path) -> int:
    lines = _lines(output)
    return lines[-1]["step"] if lines else 0


def _wait(condition, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.1)


def test_two_hosts_train_as_one_process_does(shards, shape, tmp_path: Path) -> None:
    alone, output = tmp_path / "alone", tmp_path / "run"
    steps = ["--steps", "20"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    assert subprocess.run(_command(shards, alone, shape, *steps), env=environment).returncode == 0
    with two_hosts() as hosts:
        meeting = ["--nodes", "2", "--rendezvous", f"{hosts.addresses[0]}:29511", "--processes", "1", *steps]
        runs = [
            hosts.start(number, _command(shards, output, shape, *meeting, "--node-rank", str(number)))
            for number in (0, 1)
        ]
        told = [run.communicate(timeout=200)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], told
    for one, other in zip(_lines(alone), _lines(output), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert (output / "events" / "rank-1.jsonl").is_file()


def test_a_host_is_unplugged_and_comes_back_full_grid(shards, shape, tmp_path: Path) -> None:
    """Host 0 goes on alone while the cable is out; with it in again both train; no step is lost or made twice."""
    output, steps = tmp_path / "run", 100000
    with two_hosts() as hosts:
        flags = ["--nodes", "2", "--rendezvous", f"{hosts.addresses[0]}:29512", "--processes", "1", "--elastic"]
        flags += ["--steps", str(steps), "--hang-after-s", "4", "--max-restarts", "20", "--validate-every", "0"]
        runs = [
            hosts.start(number, _command(shards, output, shape, *flags, "--node-rank", str(number)))
            for number in (0, 1)
        ]
        try:
            events = output / "events" / "rank-1.jsonl"
            _wait(lambda: _last_step(output) >= 8 and events.is_file(), 120, "both hosts train")
            hosts.plug(1, connected=False)
            unplugged_at = _last_step(output)
            _wait(lambda: _last_step(output) > unplugged_at + 20, 180, "host 0 goes on alone")
            size = events.stat().st_size
            hosts.plug(1, connected=True)
            _wait(lambda: events.stat().st_size != size, 180, "host 1 is back")
            together = _last_step(output)
            _wait(lambda: _last_step(output) > together + 5, 120, "both go on")
        finally:
            for run in runs:
                run.send_signal(signal.SIGKILL)
            subprocess.run(["pkill", "-KILL", "-f", str(output)], check=False)
            for run in runs:
                run.communicate(timeout=60)
    found = [line["step"] for line in _lines(output)]
    assert found == list(range(1, len(found) + 1))
