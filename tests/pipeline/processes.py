"""Run llmctl as a user's process: to its end, or killed in the middle; and compare what it left."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def llmctl(
    *arguments: str | Path, check: bool = True, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess:
    """Run a command line to its end; with `check`, an exit status other than 0 fails the test with what it said."""
    words = [str(argument) for argument in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "llmctl", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
    )
    assert "Traceback" not in done.stderr, done.stderr
    if check:
        assert done.returncode == 0, f"llmctl {' '.join(words)}: status {done.returncode}\n{done.stderr}"
    return done


def kill_when(
    arguments: Sequence[str | Path], ready: Callable[[], bool], *, timeout_s: float = 240, number: int = signal.SIGKILL
) -> int:
    """Start a command in a process group of its own and kill the group when `ready()`; return its exit status.

    A command that ends by itself before is a result too: its status is 0 then.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "llmctl", *(str(argument) for argument in arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and not ready():
        assert time.monotonic() < deadline, "the command neither ended nor came to the point where it is killed"
        time.sleep(0.02)
    if process.poll() is None:
        os.killpg(process.pid, number)
    process.communicate()
    return process.returncode


def contents(folder: Path, *, leave_out: Sequence[str] = ("run.json",)) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder, without what may differ between equal runs."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] not in leave_out
    }


def units_done(output: Path) -> int:
    """Return how many units of work an unfinished output has recorded."""
    return len(list((output / "_state" / "units").glob("*.json")))


def manifest(folder: Path) -> dict[str, Any]:
    """Return a folder's manifest."""
    return json.loads((folder / "manifest.json").read_text())


def records_add_up(folder: Path) -> dict[str, int]:
    """Check in = kept + removed + invalid per file and in sum; return the sum."""
    statistics = manifest(folder)["statistics"]
    records = statistics["records"]
    assert records["in"] == records["kept"] + records["removed"] + records["invalid"]
    for row in statistics["by_file"]:
        assert row["in"] == row["kept"] + row["removed"] + row["invalid"], row
    for key in records:
        assert sum(row[key] for row in statistics["by_file"]) == records[key], key
    assert sum(statistics["by_reason"].values()) == records["removed"]
    return records


def steps_logged(output: Path) -> int:
    """Return how many steps a training run has logged."""
    path = output / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def losses(output: Path) -> dict[int, float]:
    """Return the loss of every step of a training run; of a step that was repeated, the last."""
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows}
