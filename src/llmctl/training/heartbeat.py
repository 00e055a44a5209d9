"""Tell from outside whether a process of a run makes progress, and what it is doing when it does not.

A thread of each worker writes a small file twice a second: the last finished step, when it was finished, and what
long work the process is in. The launcher reads them (`hang.py`). Asked by a file, the thread writes the stacks of all
threads and the flight recorder of torch, also while the main thread waits in a collective.
"""

from __future__ import annotations

import faulthandler
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BEAT_S = 0.5
# Created by the launcher in the job's folder: every process writes down where it is.
DUMP_REQUEST = "dump-request"
# Collectives that the flight recorder remembers.
RECORDED_COLLECTIVES = 256


@dataclass
class Progress:
    """How far this process is.

    Attributes:
        step: the last finished step; 0 before the first one of this process.
        at: when it was finished, by the clock that all processes of a host share (`time.monotonic`).
        slowest_s: the longest time between two steps, long work left out.
        busy: long work between two steps, e.g. `validation`; None in a step.
    """

    step: int = 0
    at: float = 0.0
    slowest_s: float = 0.0
    busy: str | None = "start"

    def finished_step(self, step: int) -> None:
        """Note the end of a step."""
        now = time.monotonic()
        if self.step and self.busy is None:
            self.slowest_s = max(self.slowest_s, now - self.at)
        self.step, self.at, self.busy = step, now, None

    @contextmanager
    def long_work(self, name: str) -> Iterator[None]:
        """Mark work that may take much longer than a step."""
        before, self.busy = self.busy, name
        try:
            yield
        finally:
            self.busy, self.at = before, time.monotonic()


PROGRESS = Progress()


def prepare_flight_recorder() -> None:
    """Let torch record the collectives of this process; before the process group is made."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(RECORDED_COLLECTIVES))


class Heartbeat(threading.Thread):
    """Writes ``beat-RANK.json`` into the job's folder until the process ends."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.folder, self.rank = folder, rank
        self._dumped = False

    def run(self) -> None:
        """Beat; write everything down once when asked."""
        while self.folder.is_dir():
            try:
                self._beat()
                if not self._dumped and (self.folder / DUMP_REQUEST).exists():
                    self._dumped = True
                    write_evidence(self.folder, self.rank)
            except OSError:  # a full disk must not end the run
                pass
            time.sleep(BEAT_S)

    def _beat(self) -> None:
        state = {
            "time": time.monotonic(),
            "step": PROGRESS.step,
            "at": PROGRESS.at,
            "slowest_s": PROGRESS.slowest_s,
            "busy": PROGRESS.busy,
        }
        temporary = self.folder / f"beat-{self.rank}.tmp"
        temporary.write_text(json.dumps(state))
        os.replace(temporary, self.folder / f"beat-{self.rank}.json")


def write_evidence(folder: Path, rank: int) -> None:
    """Write the stacks of all threads, and torch's record of the last collectives."""
    with open(folder / f"stack-{rank}.txt", "w") as file:
        faulthandler.dump_traceback(file, all_threads=True)
    record = flight_record()
    if record is not None:
        (folder / f"flight-{rank}.json").write_bytes(record)


def flight_record() -> bytes | None:
    """Return torch's record of the last collectives of this process as JSON, if this torch has one."""
    try:
        from torch._C import _distributed_c10d as recorder
    except ImportError:
        return None
    dump = getattr(recorder, "_dump_fr_trace_json", None)
    return bytes(dump(True, False)) if dump is not None else None
