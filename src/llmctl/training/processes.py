"""Start the worker processes of a run on this host, pass signals on, and end them all when one dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from llmctl import console
from llmctl.errors import ExitStatus, Interrupted, LlmctlError, RunFailed, UserError
from llmctl.training.config import TrainingConfig
from llmctl.training.elastic import ProcessLost
from llmctl.training.hang import HANG_FOLDER, HangWatch, Stuck, describe
from llmctl.training.signals import stop_requests

POLL_S = 0.05
# After one process has died, the others get this long to notice and to say why they stopped.
GRACE_S = 5.0
LOG_TAIL_LINES = 12
_CLASSES: dict[int, type[LlmctlError]] = {
    int(ExitStatus.USER_ERROR): UserError,
    int(ExitStatus.FAILED): RunFailed,
    int(ExitStatus.INTERRUPTED): Interrupted,
}


@dataclass
class _Worker:
    rank: int
    process: subprocess.Popen[bytes]
    log: IO[bytes] | None
    ended_at: float = 0.0
    ended_by_us: bool = False


def start_and_wait(folder: Path, config: TrainingConfig, processes: int, root: Path) -> None:
    """Start `processes` workers on this host and wait for them.

    Args:
        folder: holds ``job.json``; logs and failures of the workers go there.
        root: the run's folder; the evidence of a hang is kept there.

    Raises:
        UserError, RunFailed, Interrupted: what a worker raised.
        ProcessLost: which one died or hangs, and how.
    """
    workers: list[_Worker] = []
    hung: list[Stuck] = []
    with stop_requests() as stop:
        try:
            for local_rank in range(processes):
                workers.append(_start(folder, config, processes, local_rank))
            ranks = [worker.rank for worker in workers]
            watch = HangWatch(folder, ranks, config.hang_after_s, config.timeout_s)
            if _wait(workers, stop, watch):
                hung = watch.collect(root)
        finally:
            _end(workers)
    if hung:
        raise ProcessLost(
            describe(hung),
            f"stacks and flight records are in {root / HANG_FOLDER}; the same command goes on from the last checkpoint",
        )
    _raise_failure(folder, workers)


def _start(folder: Path, config: TrainingConfig, processes: int, local_rank: int) -> _Worker:
    rank = config.node_rank * processes + local_rank
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(processes * config.nodes),
        "LOCAL_WORLD_SIZE": str(processes),
        "LLMCTL_PARENT": str(os.getpid()),
    }
    if config.nodes == 1:
        environment["LLMCTL_RENDEZVOUS"] = f"file://{folder}/rendezvous"
        # One host: no need to find out the address of a network card.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    else:
        environment["LLMCTL_RENDEZVOUS"] = f"tcp://{config.rendezvous}"
    log = None if rank == 0 else open(folder / f"rank-{rank}.log", "wb")  # noqa: SIM115 - closed in _end
    process = subprocess.Popen(
        [sys.executable, "-m", "llmctl.training.worker", str(folder)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log if log is not None else sys.stderr.fileno() if _has_descriptor() else subprocess.DEVNULL,
        stderr=log if log is not None else None,
    )
    return _Worker(rank, process, log)


def _has_descriptor() -> bool:
    # Results are printed by this process alone, so a worker's stdout goes where talk goes.
    try:
        sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return False
    return True


def _wait(workers: list[_Worker], stop: Any, watch: HangWatch) -> bool:
    """Return when every worker has ended, or when the others should not go on because one has died or hangs.

    Returns:
        Whether the run hangs.
    """
    forwarded, died = False, None
    while True:
        statuses = [worker.process.poll() for worker in workers]
        for worker, status in zip(workers, statuses, strict=True):
            if status is not None and not worker.ended_at:
                worker.ended_at = time.monotonic()
        if all(status is not None for status in statuses):
            return False
        if stop and not forwarded:
            forwarded = True
            _signal(workers, signal.SIGTERM)
        if died is None and any(status not in (None, 0, int(ExitStatus.INTERRUPTED)) for status in statuses):
            died = time.monotonic()
        if died is not None and time.monotonic() - died > GRACE_S:
            return False
        if died is None and watch.hangs():
            return True
        time.sleep(POLL_S)


def _signal(workers: list[_Worker], number: int) -> None:
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.send_signal(number)


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        if worker.process.poll() is None:
            worker.ended_by_us = True
            worker.process.kill()
    for worker in workers:
        worker.process.wait()
        if worker.log is not None:
            worker.log.close()


def _raise_failure(folder: Path, workers: list[_Worker]) -> None:
    """Raise what went wrong, if anything did, blaming the process that went first."""
    failed = [worker for worker in workers if worker.process.returncode != 0]
    if not failed:
        return
    told = {worker.rank: _read_failure(folder, worker.rank) for worker in failed}
    # The cause is a process that died without a word, or one that names a mistake; lost connections are the effect.
    # We end those that hang after another has died, so SIGKILL comes first only when nobody else has an explanation.
    by_cause = sorted(failed, key=lambda worker: (_cause_rank(worker, told[worker.rank]), worker.ended_at))
    first = by_cause[0]
    failure = told[first.rank]
    where = f" (process {first.rank} of {len(workers)})" if len(workers) > 1 else ""
    if failure is not None:
        kind = ProcessLost if failure["effect"] else _CLASSES.get(int(failure["status"]), RunFailed)
        raise kind(failure["problem"] + (where if issubclass(kind, RunFailed) else ""), failure["hint"])
    code = first.process.returncode
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
    tail = _log_tail(folder / f"rank-{first.rank}.log")
    if tail:
        console.info(tail)
    killed = -code in (signal.SIGKILL, signal.SIGABRT)
    raise ProcessLost(
        f"process {first.rank} {how}",
        ("often for want of memory (`dmesg` tells; --micro-batch-size 1 needs less); " if killed else "")
        + "the same command goes on from the last checkpoint",
    )


def _cause_rank(worker: _Worker, told: dict[str, Any] | None) -> int:
    if worker.ended_by_us:
        return 3
    if told is None:
        return 0
    return 2 if told["effect"] or int(told["status"]) == int(ExitStatus.INTERRUPTED) else 1


def _read_failure(folder: Path, rank: int) -> dict[str, Any] | None:
    try:
        loaded: dict[str, Any] = json.loads((folder / f"failure-{rank}.json").read_bytes())
    except (OSError, ValueError):
        return None
    return loaded


def _log_tail(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-LOG_TAIL_LINES:])
