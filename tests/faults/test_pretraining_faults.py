"""Faults put into real pretraining runs are found and told from each other; healthy runs are left in peace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from llmctl.diagnosis.config import DiagnoseConfig
from llmctl.diagnosis.stage import Diagnosis, diagnose
from llmctl.pretraining.data import PretrainingData

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def rules_of(diagnosis: Diagnosis) -> set[str]:
    return {finding.rule for finding in diagnosis.findings}


# Rules that the load of the test machine can set off on a healthy run: they judge the clock.
CLOCK_RULES = {"throughput_falling", "throughput_dropped", "step_time_jitter", "data_wait", "slow_rank"}


@pytest.mark.parametrize("seed", [1, 2])
def test_healthy_runs_are_left_in_peace(shards, pretrain, seed: int) -> None:
    flags = ["--steps", "200", "--lr", ["3e-3", "1e-3"][seed - 1], "--seed", str(seed)]
    status, diagnosis = pretrain(shards, *flags)
    assert status == 0 and diagnosis.enough
    assert rules_of(diagnosis) - CLOCK_RULES == set()


def test_a_learning_rate_that_destroys_the_model(shards, pretrain) -> None:
    _, diagnosis = pretrain(shards, "--steps", "80", "--lr", "1000")
    assert "learning_rate_too_high" in rules_of(diagnosis)
    worst = next(finding for finding in diagnosis.findings if finding.rule == "learning_rate_too_high")
    assert worst.step is not None and worst.step <= 10
    assert "--lr 0.003" in worst.fix


def test_the_proposed_learning_rate_cures_the_run(shards, pretrain) -> None:
    status, diagnosis = pretrain(shards, "--steps", "80", "--lr", "0.003")
    assert status == 0 and rules_of(diagnosis) - CLOCK_RULES == set()


def test_a_learning_rate_of_nothing(shards, pretrain) -> None:
    _, diagnosis = pretrain(shards, "--steps", "80", "--lr", "1e-9")
    assert rules_of(diagnosis) - CLOCK_RULES == {"not_learning"}


def test_a_corpus_learnt_by_heart(few_shards, pretrain) -> None:
    larger = ["--set", "model.hidden_size=96", "--set", "model.ffn_hidden_size=256"]
    flags = ["--steps", "240", "--lr", "1e-2", "--set", "validation_fraction=0.3", *larger]
    _, diagnosis = pretrain(few_shards, *flags)
    found = rules_of(diagnosis) - CLOCK_RULES
    assert found & {"validation_turning_up", "validation_stalled"}
    assert not found & {"learning_rate_too_high", "loss_spike", "not_learning"}


def test_a_reader_that_is_slow_from_the_start(shards, pretrain, monkeypatch) -> None:
    read = PretrainingData.micro_batches

    def slow(self, step):
        time.sleep(0.25)
        return read(self, step)

    monkeypatch.setattr(PretrainingData, "micro_batches", slow)
    _, diagnosis = pretrain(shards, "--steps", "40")
    finding = next(finding for finding in diagnosis.findings if finding.rule == "data_wait")
    assert finding.values["share"] > 0.3 and "throughput_falling" not in rules_of(diagnosis)


def test_a_reader_that_becomes_slower_and_slower(shards, pretrain, monkeypatch) -> None:
    read = PretrainingData.micro_batches

    def slower(self, step):
        time.sleep(0.1 + 0.008 * step)
        return read(self, step)

    monkeypatch.setattr(PretrainingData, "micro_batches", slower)
    _, diagnosis = pretrain(shards, "--steps", "70")
    finding = next(finding for finding in diagnosis.findings if finding.rule == "throughput_falling")
    assert "storage" in finding.cause


@pytest.mark.distributed
def test_a_throttled_rank(shards, shape, tmp_path: Path) -> None:
    """Stop and continue one of two processes all the time, as a processor that throttles would."""
    output = tmp_path / "run"
    # Steps long enough that the stops spread over forward and backward evenly.
    long_steps = ["--global-batch-size", "64", "--micro-batch-size", "32", "--steps", "40"]
    flags = [*shape, *long_steps, "--processes", "2", "--engine", "native", "--quiet"]
    command = [sys.executable, "-m", "llmctl", "pretrain", str(shards), str(output), *flags]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as launcher:
        events = output / "events" / "rank-1.jsonl"
        victim = None
        while launcher.poll() is None:
            if victim is None:
                time.sleep(0.1)
                if events.is_file() and events.read_bytes().count(b"\n") >= 4:
                    victim = _process_of_rank(launcher.pid, 1)
                continue
            try:
                victim.send_signal(signal.SIGSTOP)
                time.sleep(0.03)
                victim.send_signal(signal.SIGCONT)
                time.sleep(0.01)
            except psutil.NoSuchProcess:
                break
    assert launcher.returncode == 0 and victim is not None
    findings = [finding for finding in diagnose(output, DiagnoseConfig()).findings if finding.rule == "slow_rank"]
    assert [finding.rank for finding in findings] == [1]


def _process_of_rank(launcher: int, rank: int) -> psutil.Process:
    for process in psutil.Process(launcher).children(recursive=True):
        if process.environ().get("RANK") == str(rank):
            return process
    raise AssertionError(f"no process of rank {rank}")
