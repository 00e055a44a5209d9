"""A run that hangs is ended within a minute, and the process that the others wait for is named."""

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

from llmctl.diagnosis.config import DiagnoseConfig
from llmctl.diagnosis.stage import diagnose

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.distributed]

# A training function whose process 1 stops in its data at step 6, as a reader of a dead mount would.
DEAD_READER = """
import time
from llmctl.pretraining.data import PretrainingData
from llmctl.pretraining.train import train as real

def train(job):
    read = PretrainingData.micro_batches

    def dead_mount(self, step):
        if step == 6 and job.world.rank == 1:
            time.sleep(600)
        return read(self, step)

    PretrainingData.micro_batches = dead_mount
    return real(job)
"""
START = """
import sys
from llmctl.training import launch
start = launch.run_stage
launch.run_stage = lambda entry, *args, **named: start("dead_reader:train", *args, **named)
from llmctl.__main__ import main
sys.exit(main())
"""


def _launch(command: list[str], source: Path, output: Path, shape: list[str], **environment: str) -> subprocess.Popen:
    flags = [*shape, "--processes", "2", "--engine", "native", "--hang-after-s", "3", "--steps", "4000"]
    return subprocess.Popen(
        [sys.executable, *command, "pretrain", str(source), str(output), *flags],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_process_that_is_stopped_is_named(shards, shape, tmp_path: Path) -> None:
    output = tmp_path / "run"
    with _launch(["-m", "llmctl"], shards, output, shape) as launcher:
        events = output / "events" / "rank-1.jsonl"
        while launcher.poll() is None and not (events.is_file() and events.read_bytes().count(b"\n") >= 5):
            time.sleep(0.1)
        stopped_at = time.monotonic()
        for process in psutil.Process(launcher.pid).children(recursive=True):
            if process.environ().get("RANK") == "1":
                process.send_signal(signal.SIGSTOP)
        _, told = launcher.communicate(timeout=120)
    assert launcher.returncode == 1
    assert "process 1 does not answer" in told and "the others wait for it in all" in told
    assert time.monotonic() - stopped_at < 60  # what is promised; it takes about a quarter of that
    rows = json.loads((output / "hang" / "hang.json").read_text())
    assert [row["blamed"] for row in rows] == [False, True]
    assert "Traceback" not in told
    (finding,) = [finding for finding in diagnose(output, DiagnoseConfig()).findings if finding.rule == "hang"]
    assert finding.rank == 1 and "does not answer" in finding.evidence


def test_a_process_that_stands_in_its_data_is_named_with_the_place(shards, shape, tmp_path: Path) -> None:
    (tmp_path / "dead_reader.py").write_text(DEAD_READER)
    (tmp_path / "start.py").write_text(START)
    output = tmp_path / "run"
    with _launch([str(tmp_path / "start.py")], shards, output, shape, PYTHONPATH=str(tmp_path)) as launcher:
        _, told = launcher.communicate(timeout=120)
    assert launcher.returncode == 1
    assert "hangs after step 5" in told and "process 1 stands in" in told
    assert "the others wait for it in" in told
    assert "dead_mount" in (output / "hang" / "stack-1.txt").read_text()
    flight = json.loads((output / "hang" / "flight-0.json").read_text())
    assert not flight["entries"][-1]["retired"]
