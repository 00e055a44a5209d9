"""Recognise a run that hangs, keep the evidence, and say which process the others wait for.

The launcher asks: is a process longer without a finished step than ten of its slowest steps (and than the limit)? A
process that waits for another one stands in a collective; the one to blame does not, or has entered fewer of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmctl.errors import ExitStatus
from llmctl.training.heartbeat import BEAT_S, DUMP_REQUEST, PROGRESS, write_evidence

# A run that takes a few times longer than usual for one step does not hang.
SLOWEST_STEPS = 10.0
# A process whose thread has not written for so long is stopped as a whole.
SILENT_S = 10.0
# How long the processes get to write down where they are.
DUMP_S = 4.0
HANG_FOLDER = "hang"


@dataclass
class Stuck:
    """A process that makes no progress.

    Attributes:
        rank: its number.
        step: the last step that it finished.
        waited_s: since when.
        silent: not even its heartbeat comes: it is stopped, or starved.
        where: function, file and line that its main thread stands in, if it could be asked.
        collective: what it waits in, e.g. ``all_reduce of dp``; None if it is in no collective.
        entered: collectives that it has entered by process group.
    """

    rank: int
    step: int
    waited_s: float
    silent: bool
    where: str | None = None
    collective: str | None = None
    entered: dict[str, int] | None = None


class HangWatch:
    """Looks at the heartbeats of the workers of one host.

    Args:
        folder: the job's folder.
        ranks: of the workers of this host.
        limit_s: shortest time without a step that counts; 0 switches the watch off.
        longest_s: limit for the first step and for long work.
    """

    def __init__(self, folder: Path, ranks: list[int], limit_s: float, longest_s: float) -> None:
        self.folder, self.ranks, self.limit_s, self.longest_s = folder, ranks, limit_s, longest_s
        self._looked, self._suspected = 0.0, 0.0

    def hangs(self) -> bool:
        """Tell whether the run hangs; looks once a second, and twice before it says so."""
        now = time.monotonic()
        if not self.limit_s or now - self._looked < 1.0:
            return False
        # After a sleep of the whole machine everything looks old: wait for new heartbeats.
        slept = self._looked and now - self._looked > SILENT_S
        self._looked = now
        if slept or not any(self._stuck(rank, now) for rank in self.ranks):
            self._suspected = 0.0
            return False
        self._suspected = self._suspected or now
        return now - self._suspected > 4 * BEAT_S

    def _beat(self, rank: int) -> dict[str, Any] | None:
        try:
            loaded: dict[str, Any] = json.loads((self.folder / f"beat-{rank}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return loaded

    def _stuck(self, rank: int, now: float) -> Stuck | None:
        beat = self._beat(rank)
        if beat is None:
            return None
        silent = now - beat["time"] > max(SILENT_S, self.limit_s)
        busy = beat["busy"] if beat["at"] else "start"
        limit = limit_of(beat["slowest_s"], busy, self.limit_s, self.longest_s)
        waited = now - (beat["at"] or beat["time"])
        if not silent and waited <= limit:
            return None
        return Stuck(rank, int(beat["step"]), waited, now - beat["time"] > SILENT_S)

    def collect(self, root: Path) -> list[Stuck]:
        """Let the processes write down where they are, keep that in the run's folder, and return who stands where."""
        (self.folder / DUMP_REQUEST).touch()
        deadline = time.monotonic() + DUMP_S
        while time.monotonic() < deadline:
            if all((self.folder / f"flight-{rank}.json").is_file() for rank in self.ranks):
                break
            time.sleep(BEAT_S / 2)
        now = time.monotonic()
        found = []
        for rank in self.ranks:
            beat = self._beat(rank)
            if beat is None:
                continue
            stuck = Stuck(rank, int(beat["step"]), now - (beat["at"] or now), now - beat["time"] > SILENT_S / 2)
            read_stack(self.folder / f"stack-{rank}.txt", stuck)
            read_flight_record(self.folder / f"flight-{rank}.json", stuck)
            found.append(stuck)
        keep_evidence(self.folder, root, found)
        return found


def limit_of(slowest_s: float, busy: str | None, limit_s: float, longest_s: float) -> float:
    """Return how long a process may be without a finished step before it counts as hung."""
    limit = max(limit_s, SLOWEST_STEPS * slowest_s)
    return max(limit, longest_s) if busy is not None else limit


class SelfWatch(threading.Thread):
    """Ends a process that torchrun or srun started when it hangs: no launcher of ours looks at it.

    What it was doing is written into the run's folder, where `llmctl diagnose` finds it; the launcher then ends, or
    starts again, the other processes.
    """

    def __init__(self, root: Path, rank: int, limit_s: float, longest_s: float) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.root, self.rank, self.limit_s, self.longest_s = root, rank, limit_s, longest_s

    def run(self) -> None:
        """Look once a second."""
        before = time.monotonic()
        while self.limit_s:
            time.sleep(1.0)
            now = time.monotonic()
            slept, before = now - before > SILENT_S, now
            if slept and PROGRESS.at:  # the whole machine was asleep: start counting again
                PROGRESS.at = now
            waited = now - PROGRESS.at if PROGRESS.at else 0.0
            if waited > limit_of(PROGRESS.slowest_s, PROGRESS.busy, self.limit_s, self.longest_s):
                end_hung_process(self.root, self.rank, waited)


def end_hung_process(root: Path, rank: int, waited_s: float) -> None:
    """Write down where this process stands, say so, and end it."""
    folder = root / HANG_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_evidence(folder, rank)
    stuck = Stuck(rank, PROGRESS.step, waited_s, silent=False)
    read_stack(folder / f"stack-{rank}.txt", stuck)
    read_flight_record(folder / f"flight-{rank}.json", stuck)
    (folder / f"rank-{rank}.json").write_text(json.dumps(stuck.__dict__, indent=1))
    place = stuck.collective or stuck.where or "an unknown place"
    message = f"error: process {rank} hangs after step {stuck.step}, for {waited_s:.0f} s, in {place}\n"
    os.write(2, message.encode())
    os._exit(int(ExitStatus.FAILED))


def keep_evidence(folder: Path, root: Path, found: list[Stuck]) -> None:
    """Copy stacks and flight records into the run's folder, and write who stood where."""
    target = root / HANG_FOLDER
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.iterdir()):
        if path.name.startswith(("stack-", "flight-")):
            shutil.copyfile(path, target / path.name)
    blamed = [stuck.rank for stuck in to_blame(found)]
    rows = [{**stuck.__dict__, "blamed": stuck.rank in blamed} for stuck in found]
    (target / "hang.json").write_text(json.dumps(rows, indent=1))


def read_evidence(root: Path) -> list[Stuck]:
    """Return where the processes of a run stood when it hung, by what is kept in its folder; empty if it did not."""
    folder = root / HANG_FOLDER
    rows: list[Any] = []
    try:
        if (folder / "hang.json").is_file():
            rows = list(json.loads((folder / "hang.json").read_bytes()))
        else:
            rows = [json.loads(path.read_bytes()) for path in sorted(folder.glob("rank-*.json"))]
        names = Stuck.__dataclass_fields__
        return [Stuck(**{name: value for name, value in row.items() if name in names}) for row in rows]
    except (OSError, ValueError, TypeError, AttributeError):
        return []


def read_stack(path: Path, stuck: Stuck) -> None:
    """Find where the main thread stands in a dump of `faulthandler`: its innermost frame outside of torch."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return
    # The thread that dumps comes first, as "Current thread"; the main thread comes last.
    last = re.split(r"(?:Current thread|Thread) 0x[0-9a-f]+[^\n]*\n", text)[-1]
    frames = re.findall(r'File "([^"]+)", line (\d+)(?: in (\S+))?', last)
    if not frames:
        return
    outside = next((frame for frame in frames if "/torch/" not in frame[0]), frames[0])
    file, line, name = outside
    stuck.where = f"{name or '?'} ({Path(file).name}:{line})"


def read_flight_record(path: Path, stuck: Stuck) -> None:
    """Read which collective a process stands in, and how many it has entered in each process group."""
    entered: dict[str, int] = {}
    waiting = None
    try:
        for entry in json.loads(path.read_bytes())["entries"]:
            group = _group_name(entry)
            entered[group] = max(entered.get(group, 0), int(entry["collective_seq_id"]) + int(entry["p2p_seq_id"]))
            if not entry["retired"]:
                waiting = f"{str(entry['profiling_name']).split(':')[-1]} of {group}"
    except (OSError, ValueError, KeyError, TypeError):
        return
    stuck.entered, stuck.collective = entered, waiting


def _group_name(entry: dict[str, Any]) -> str:
    name, *description = entry["process_group"]
    return str(description[0]) if description and description[0] != "undefined" else str(name)


def to_blame(found: list[Stuck]) -> list[Stuck]:
    """Return the processes that the others wait for: silent ones, else those in no collective, else the latest."""
    silent = [stuck for stuck in found if stuck.silent]
    if silent:
        return silent
    outside = [stuck for stuck in found if stuck.collective is None and stuck.entered is not None]
    if outside:
        return outside
    if len({json.dumps(stuck.entered, sort_keys=True) for stuck in found}) < 2:
        return []  # all stand alike: whoever is missing is on another host
    fewest = min(sum((stuck.entered or {}).values()) for stuck in found)
    return [stuck for stuck in found if sum((stuck.entered or {}).values()) == fewest]


def describe(found: list[Stuck]) -> str:
    """Say in one sentence who hangs where, and what the others wait in."""
    blamed = to_blame(found)
    if not blamed:
        first = found[0]
        what = first.collective or first.where or "an unknown place"
        return (
            f"the run hangs after step {first.step}: every process of this host waits in {what}, "
            "so the one to blame is on another host"
        )
    parts = []
    for stuck in blamed:
        if stuck.silent:
            how = "does not answer (stopped, or without a processor)"
        else:
            how = f"stands in {stuck.collective or stuck.where or 'an unknown place'}"
        parts.append(f"process {stuck.rank} {how}")
    waiting = sorted({str(stuck.collective) for stuck in found if stuck not in blamed and stuck.collective})
    others = f"; the others wait for it in {', '.join(waiting)}" if waiting else ""
    waited = max(stuck.waited_s for stuck in found)
    return f"the run hangs after step {blamed[0].step}, for {waited:.0f} s: {' and '.join(parts)}{others}"
