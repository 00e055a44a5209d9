"""Units by Ray: the bytes that local processes give, killed workers, clusters that are joined or not there."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from llmctl.artifacts.inputs import open_input
from llmctl.artifacts.output import open_output
from llmctl.config.common import RunOptions
from llmctl.errors import RunFailed, UserError
from llmctl.runtime.pool import Unit, run_units
from llmctl.runtime.ray_pool import connect

sys.path.insert(0, str(Path(__file__).parent))
import units_for_tests as functions
from test_pool import Config


def payload(root: Path) -> dict[str, bytes]:
    """Return all files of an artifact that have to be equal for equal runs."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "run.json"
    }


def test_without_ray_a_sentence_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="not installed") as caught:
        RunOptions(executor="ray").validate()
    assert "llmctl[ray]" in str(caught.value.hint)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match="cannot be imported"):
        connect(RunOptions(executor="ray"))


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "nonsense"])
def test_a_cluster_that_is_not_there_is_told(monkeypatch, address: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(UserError, match="cannot join the Ray cluster at") as caught:
        connect(RunOptions(executor="ray", ray_address=address))
    assert "ray status" in str(caught.value.hint)


def _run(folder: Path, name: str, function, *, executor: str, workers: int = 2, count: int = 6):
    source = folder / "source"
    source.mkdir(exist_ok=True)
    (source / "a.txt").write_text("a")
    root = folder / name
    context = {"root": str(root), "factor": 2, "calls": str(folder / f"{name}-calls")}
    options = RunOptions(workers=workers, executor=executor)
    units = (Unit(f"{number:03d}", number, 1, "same") for number in range(count))
    inputs = [open_input(source)]
    with open_output(root, kind="documents", stage="test", config=Config(), inputs=inputs, options=options) as out:
        results = run_units(function, units, context, out, phase="p", label="test")
        out.finish([record for _, result in results for record in result.files], {})
        return results


@pytest.fixture(scope="module")
def ray_here():
    ray = pytest.importorskip("ray")
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(Path(__file__).parent))  # workers import the functions by name
    yield connect(RunOptions(workers=2, executor="ray"))
    ray.shutdown()
    patch.undo()


@pytest.mark.slow
def test_a_worker_killed_while_it_writes_changes_nothing(tmp_path: Path, ray_here) -> None:
    local = _run(tmp_path, "local", functions.write_number, executor="local")
    by_ray = _run(tmp_path, "ray", functions.die_once_while_writing, executor="ray")
    assert (tmp_path / "ray-calls-killed").exists()
    assert [(unit.name, result) for unit, result in by_ray] == [(unit.name, result) for unit, result in local]
    assert payload(tmp_path / "ray") == payload(tmp_path / "local")


@pytest.mark.slow
def test_failures_on_ray_are_those_of_local_runs(tmp_path: Path, ray_here) -> None:
    with pytest.raises(UserError) as caught:
        _run(tmp_path, "refused", functions.refuse_third, executor="ray", workers=1)
    assert (caught.value.problem, caught.value.hint) == ("number three is wrong", "leave it out")
    calls = (tmp_path / "refused-calls").read_text().split()
    assert calls == ["000", "001", "002"]
    _run(tmp_path, "refused", functions.write_number, executor="ray", workers=1)
    assert (tmp_path / "refused-calls").read_text().split() == [f"{number:03d}" for number in range(6)]
    with pytest.raises(RunFailed, match="a Ray worker died 5 times at unit 003") as died:
        _run(tmp_path, "died", functions.die_at_third, executor="ray", workers=1)
    assert "finished blocks are kept" in str(died.value.hint)


def _llmctl(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llmctl", *map(str, arguments), "-q"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done


def _corpus(path: Path, documents: int) -> None:
    """Write documents of random words, every tenth twice."""
    rng, lines, text = random.Random(0), [], ""
    names = [f"word{chr(97 + number % 26)}{chr(97 + number // 26)}" for number in range(600)]
    for number in range(documents):
        if number % 10 != 9:
            text = (
                ". ".join(
                    " ".join([*rng.choices(names, k=8), *rng.choices(["the", "of", "and", "to"])]) for _ in range(9)
                )
                + "."
            )
        lines.append(json.dumps({"id": str(number), "text": text, "source": "made"}))
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.slow
def test_every_stage_gives_the_local_bytes(tmp_path: Path, ray_here) -> None:
    """Chain filter, dedup, tokenize and shard on the running Ray, and compare each folder with the local one."""
    corpus = tmp_path / "raw.jsonl"
    _corpus(corpus, 600)
    blocks = ["--set", "read.block_bytes=100KB"]
    steps: list[tuple[str, list[str]]] = [
        ("filter", ["--preset", "gopher", *blocks]),
        ("dedup", blocks),
        ("tokenize", ["--vocab-size", "400"]),
        ("shard", ["--shard-size", "20KB"]),
    ]
    before = {"local": corpus, "ray": corpus}
    address = ray_here.get_runtime_context().gcs_address
    for stage, arguments in steps:
        for executor, more in (("local", []), ("ray", ["--executor", "ray", "--ray-address", address])):
            output = tmp_path / executor / stage
            output.parent.mkdir(exist_ok=True)
            _llmctl(stage, before[executor], output, *arguments, "--workers", "2", *more)
            before[executor] = output
        assert payload(tmp_path / "ray" / stage) == payload(tmp_path / "local" / stage), stage
    assert len(list((tmp_path / "ray" / "filter" / "data").iterdir())) > 1  # more than one unit


@pytest.mark.slow
@pytest.mark.faults
def test_the_command_survives_kill_9_of_its_ray_workers(tmp_path: Path) -> None:
    """Kill the processes that do the work, by their id, while `llmctl dedup --executor ray` runs."""
    pytest.importorskip("ray")
    corpus = tmp_path / "raw.jsonl"
    _corpus(corpus, 900)
    arguments = ["--workers", "2", "--set", "read.block_bytes=64KB"]
    _llmctl("dedup", corpus, tmp_path / "local", *arguments)
    killed: list[int] = []
    command = [sys.executable, "-m", "llmctl", "dedup", corpus, tmp_path / "ray", *arguments, "--executor", "ray", "-q"]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def kill_workers() -> None:
        while process.poll() is None and len(killed) < 3:
            try:
                for child in psutil.Process(process.pid).children(recursive=True):
                    if child.name().startswith("ray::run_unit") or "ray::run_unit" in " ".join(child.cmdline()):
                        child.send_signal(signal.SIGKILL)
                        killed.append(child.pid)
                        time.sleep(0.3)
                        break
            except psutil.Error:
                continue
            time.sleep(0.02)

    killer = threading.Thread(target=kill_workers)
    killer.start()
    _, errors = process.communicate(timeout=240)
    killer.join()
    assert process.returncode == 0, errors
    assert killed
    assert payload(tmp_path / "ray") == payload(tmp_path / "local")


@pytest.mark.slow
def test_ctrl_c_stops_ray_and_the_next_run_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    corpus = tmp_path / "raw.jsonl"
    _corpus(corpus, 900)
    arguments = ["--workers", "1", "--set", "read.block_bytes=64KB"]
    command = [sys.executable, "-m", "llmctl", "dedup", corpus, tmp_path / "ray", *arguments, "--executor", "ray", "-q"]
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    units = tmp_path / "ray" / "_state" / "units"
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline and not (units.is_dir() and any(units.iterdir())):
        time.sleep(0.02)
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 75, errors
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    _llmctl("dedup", corpus, tmp_path / "ray", *arguments)
    _llmctl("dedup", corpus, tmp_path / "local", *arguments)
    assert payload(tmp_path / "ray") == payload(tmp_path / "local")
