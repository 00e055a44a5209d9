"""Runs whose processes are killed end where an uninterrupted run ends, with every sample used once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.distributed]

STEPS = 60
FLAGS = [
    *("--global-batch-size", "8", "--micro-batch-size", "1", "--steps", str(STEPS), "--precision", "fp32"),
    *("--checkpoint-every", "5", "--engine", "native", "--quiet", "--set", "model.dropout=0.1"),
]


def _command(shards: Path, output: Path, shape: list[str], *more: str) -> list[str]:
    return [sys.executable, "-m", "llmctl", "pretrain", str(shards), str(output), *shape, *FLAGS, *more]


def _start(command: list[str]) -> subprocess.Popen:
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True)


def _lines(output: Path) -> list[dict]:
    path = output / "metrics.jsonl"
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def _wait_for_step(output: Path, step: int, launcher: subprocess.Popen) -> bool:
    """Wait until a run has finished a step; False if it has ended."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if launcher.poll() is not None:
            return False
        lines = _lines(output)
        if lines and lines[-1]["step"] >= step:
            return True
        time.sleep(0.02)
    raise AssertionError(f"no step {step} within 300 s")


def _workers(launcher: subprocess.Popen) -> list[psutil.Process]:
    children = psutil.Process(launcher.pid).children(recursive=True)
    return [child for child in children if "RANK" in child.environ()]


def _strike(launcher: subprocess.Popen, how: str, choose: random.Random) -> None:
    if how == "one":
        choose.choice(_workers(launcher)).send_signal(signal.SIGKILL)
    elif how == "all":
        victims = _workers(launcher)
        launcher.kill()
        for victim in victims:
            victim.send_signal(signal.SIGKILL)
    else:
        launcher.send_signal(signal.SIGTERM)


def _same_run(whole: Path, cut: Path) -> None:
    expected, found = _lines(whole), _lines(cut)
    assert [line["step"] for line in found] == [line["step"] for line in expected] == list(range(1, STEPS + 1))
    for one, other in zip(expected, found, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-5), one["step"]
        assert other["tokens"] == one["tokens"]


def _kill_and_go_on(shards, shape, tmp_path: Path, counts: list[int], strikes: list[str], seed: int) -> None:
    """Run with `counts` processes in turn, each ended by a strike, and to the end after the last one."""
    whole = tmp_path / "whole"
    assert subprocess.run(_command(shards, whole, shape), env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode == 0
    choose, cut = random.Random(seed), tmp_path / "cut"
    statuses = []
    for number, how in enumerate([*strikes, None]):
        processes = counts[number % len(counts)]
        with _start(_command(shards, cut, shape, "--processes", str(processes))) as launcher:
            reached = _lines(cut)[-1]["step"] if _lines(cut) else 0
            target = min(STEPS - 2, reached + choose.randint(1, 2 * STEPS // (len(strikes) + 1)))
            if how is not None and _wait_for_step(cut, target, launcher):
                time.sleep(choose.random() * 0.1)
                _strike(launcher, how, choose)
            launcher.communicate(timeout=300)
        statuses.append((how, launcher.returncode))
    assert statuses[-1][1] == 0, statuses
    for how, status in statuses[:-1]:
        assert status in {"one": (0, 1), "all": (0, -9), "term": (0, 75)}[how], statuses
    _same_run(whole, cut)


def test_killed_three_times_on_changing_numbers_of_processes(shards, shape, tmp_path) -> None:
    _kill_and_go_on(shards, shape, tmp_path, [2, 1, 2], ["one", "term", "all"], seed=1)


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_ten_times_full_grid(shards, shape, tmp_path, seed: int) -> None:
    strikes = ["one", "all", "term", "one", "term", "all", "one", "one", "term", "all"]
    _kill_and_go_on(shards, shape, tmp_path, [8, 4], strikes, seed)


def test_elastic_starts_again_by_itself(shards, shape, tmp_path) -> None:
    whole, output = tmp_path / "whole", tmp_path / "run"
    assert subprocess.run(_command(shards, whole, shape), env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode == 0
    flags = [flag for flag in FLAGS if flag != "--quiet"]
    command = [sys.executable, "-m", "llmctl", "pretrain", str(shards), str(output), *shape, *flags]
    with _start([*command, "--processes", "2", "--elastic", "--max-restarts", "2"]) as launcher:
        for step in (8, 23):
            assert _wait_for_step(output, step, launcher)
            victims = _workers(launcher)
            random.Random(step).choice(victims).send_signal(signal.SIGKILL)
            deadline = time.monotonic() + 60
            while any(victim.is_running() for victim in victims) and time.monotonic() < deadline:
                time.sleep(0.05)
        _, told = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, told
    assert "restart 1 of at most 2" in told and "restart 2 of at most 2" in told
    _same_run(whole, output)


def test_elastic_does_not_repeat_a_mistake(shards, shape, tmp_path) -> None:
    """A gradient that is not finite is no lost process: starting again would only waste the machine."""
    flags = ["--processes", "2", "--elastic", "--lr", "1e30", "--max-grad-norm", "0", "--gradient-monitor", "off"]
    with _start(_command(shards, tmp_path / "run", shape, *flags)) as launcher:
        _, told = launcher.communicate(timeout=120)
    assert launcher.returncode == 1 and "not finite" in told and "restart" not in told
