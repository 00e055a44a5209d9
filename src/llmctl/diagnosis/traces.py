"""Read profiler traces (PyTorch's Kineto, or any Chrome trace): who called whom, and what the time went into."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmctl.errors import UserError
from llmctl.report.flame import Frame

MAX_TRACE_BYTES = 4_000_000_000
# A cut inside nested arguments needs a few tries to find the end of a whole event.
REPAIR_ATTEMPTS = 8
MICROSECOND = 1e-6
# Clocks of nested events are rounded; a child may seem to end this much after its parent.
SLACK_US = 1.0

COMMUNICATION = re.compile(
    r"nccl|gloo|c10d|rccl|oneccl|mpi:|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast(?!_tensors)", re.I
)
DATA = re.compile(r"dataloader|next_batch|micro_batches|_BaseDataLoaderIter", re.I)
UPDATE = re.compile(r"Optimizer\.(step|zero_grad)|optimizer\.step|_fused_adam", re.I)
BACKWARD = re.compile(r"Backward\d*$|autograd::engine", re.I)
DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"})
ADDRESS = re.compile(r" (object )?at 0x[0-9a-f]+")
STEP = re.compile(r"ProfilerStep#(\d+)")
# Bytes of an element, by the names that traces use.
ELEMENT_BYTES = {"float": 4, "double": 8, "bfloat16": 2, "half": 2, "long": 8, "int": 4, "byte": 1, "bool": 1}


@dataclass(frozen=True)
class Event:
    """One timed event: start and length in microseconds, on one thread or device stream."""

    name: str
    category: str
    thread: tuple[str, str]
    start: float
    length: float
    arguments: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def end(self) -> float:
        """Return the end in microseconds."""
        return self.start + self.length

    @property
    def on_device(self) -> bool:
        """Tell whether it ran on an accelerator."""
        return self.category in DEVICE_CATEGORIES


@dataclass
class Trace:
    """What a trace tells.

    Attributes:
        span_s: from the first to the last event.
        steps: numbers of the profiled steps, if the profiler marked them.
        seconds: wall-clock time in which each kind of work was going on anywhere (kinds overlap).
        exposed_communication_s: communication during which nothing else was going on.
        device_busy_s: time in which an accelerator was at work; None without one.
        operators: (name, own seconds, calls), the costliest first.
        collectives: (name, calls, seconds, bytes) of communication; bytes are 0 where the trace lacks them.
        root: all threads' calls, merged.
    """

    path: Path
    span_s: float
    steps: list[int]
    seconds: dict[str, float]
    exposed_communication_s: float
    device_busy_s: float | None
    operators: list[tuple[str, float, int]]
    collectives: list[tuple[str, int, float, int]]
    root: Frame

    def to_mapping(self) -> dict[str, Any]:
        """Return the trace's numbers as they stand in ``--json``."""
        return {
            "path": self.path.name,
            "span_s": self.span_s,
            "steps": self.steps,
            "seconds": self.seconds,
            "communication_share": self.seconds.get("communication", 0.0) / self.span_s,
            "exposed_communication_s": self.exposed_communication_s,
            "device_busy_share": None if self.device_busy_s is None else self.device_busy_s / self.span_s,
            "operators": [{"name": name, "own_s": own, "calls": calls} for name, own, calls in self.operators],
            "collectives": [
                {"name": name, "calls": calls, "seconds": seconds, "bytes": size}
                for name, calls, seconds, size in self.collectives
            ],
        }


def read_trace(path: Path) -> Trace:
    """Read a Chrome trace (JSON, also gzipped), such as ``torch.profiler`` exports.

    Raises:
        UserError: it cannot be read, or has no timed event.
    """
    events = _events(_load(path), path)
    if not events:
        raise UserError(f"{path} holds no timed event", "give a trace that torch.profiler has exported")
    span = max(event.end for event in events) - min(event.start for event in events)
    return _summarise(path, events, max(span, 1e-3) * MICROSECOND)


def _load(path: Path) -> Any:
    import orjson

    try:
        with open(path, "rb") as handle:
            zipped = handle.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else open(path, "rb") as stream:
            data = stream.read(MAX_TRACE_BYTES + 1)
    except (OSError, EOFError) as failure:
        raise UserError(f"cannot read {path}: {failure}", "give a trace that torch.profiler has exported") from None
    if len(data) > MAX_TRACE_BYTES:
        raise UserError(f"{path} is larger than {MAX_TRACE_BYTES / 1e9:g} GB", "profile fewer steps")
    try:
        return orjson.loads(data)
    except ValueError:
        pass
    # A trace that was cut off while it was written: keep the events up to the last whole one.
    cut = data.rfind(b"},")
    for _ in range(REPAIR_ATTEMPTS):
        if cut <= 0:
            break
        for ending in (b"}]}", b"}]"):
            try:
                return orjson.loads(data[:cut] + ending)
            except ValueError:
                continue
        cut = data.rfind(b"},", 0, cut)
    raise UserError(f"{path} is no JSON", "give a trace that torch.profiler has exported")


def _events(loaded: Any, path: Path) -> list[Event]:
    rows = loaded.get("traceEvents") if isinstance(loaded, dict) else loaded
    if not isinstance(rows, list):
        raise UserError(f"{path} has no `traceEvents`", "give a trace that torch.profiler has exported")
    events = []
    for row in rows:
        if not isinstance(row, dict) or row.get("ph") != "X":
            continue
        start, length = row.get("ts"), row.get("dur")
        if not isinstance(start, (int, float)) or not isinstance(length, (int, float)) or length < 0:
            continue
        arguments = row.get("args")
        events.append(
            Event(
                str(row.get("name", "?")),
                str(row.get("cat", "")).lower(),
                (str(row.get("pid")), str(row.get("tid"))),
                float(start),
                float(length),
                arguments if isinstance(arguments, dict) else {},
            )
        )
    # Kineto frames everything in events of its own that only repeat the span.
    return [event for event in events if event.category not in ("trace", "overhead")]


def _summarise(path: Path, events: Sequence[Event], span_s: float) -> Trace:
    root = call_tree(events)
    own: dict[str, tuple[float, int]] = {}
    _collect_own(root, own)
    operators = sorted(((name, time, calls) for name, (time, calls) in own.items()), key=lambda item: -item[1])
    kinds: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        kind = kind_of(event)
        if kind:
            kinds.setdefault(kind, []).append((event.start, event.end))
    merged = {kind: merge_intervals(intervals) for kind, intervals in kinds.items()}
    talk = merged.get("communication", [])
    work = merge_intervals(_hiding(events))
    device = merge_intervals([(event.start, event.end) for event in events if event.on_device])
    steps = sorted({int(match.group(1)) for event in events if (match := STEP.search(event.name))})
    return Trace(
        path=path,
        span_s=span_s,
        steps=steps,
        seconds={kind: length_of(intervals) * MICROSECOND for kind, intervals in sorted(merged.items())},
        exposed_communication_s=(length_of(talk) - overlap(talk, work)) * MICROSECOND,
        device_busy_s=length_of(device) * MICROSECOND if device else None,
        operators=operators[:40],
        collectives=_collectives(events),
        root=root,
    )


def _hiding(events: Sequence[Event]) -> list[tuple[float, float]]:
    """Return the work behind which communication can hide.

    With an accelerator that is its other kernels (the host only queues). Without one it is what other threads
    compute: on a thread that communicates, the operator around a collective is not at work but waiting for it.
    """
    if any(event.on_device for event in events):
        return [(e.start, e.end) for e in events if e.on_device and kind_of(e) != "communication"]
    talking = {event.thread for event in events if kind_of(event) == "communication"}
    return [(e.start, e.end) for e in events if e.category == "cpu_op" and e.thread not in talking]


def kind_of(event: Event) -> str | None:
    """Return what an event is part of; None for frames that hold everything (steps, the interpreter)."""
    if STEP.search(event.name):
        return None
    if event.category == "python_function":
        # Names of files and methods; only readers of data have no operator that would tell.
        return "data" if DATA.search(event.name) else None
    for kind, pattern in (("communication", COMMUNICATION), ("data", DATA), ("update", UPDATE), ("backward", BACKWARD)):
        if pattern.search(event.name):
            return kind
    return "compute" if event.on_device or event.category == "cpu_op" else None


def call_tree(events: Iterable[Event]) -> Frame:
    """Nest the events of each thread by time, and merge equal chains of callers over threads and time."""
    by_thread: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        by_thread.setdefault(event.thread, []).append(event)
    root = Frame("all")
    for thread in sorted(by_thread):
        stack: list[tuple[float, Frame]] = []
        for event in sorted(by_thread[thread], key=lambda item: (item.start, -item.length)):
            while stack and event.start >= stack[-1][0] - 1e-9:
                stack.pop()
            while stack and event.end > stack[-1][0] + SLACK_US:
                stack.pop()  # overlaps without being inside: another stream of the same name
            # Steps are numbered; their calls belong together.
            name = ADDRESS.sub("", STEP.sub("ProfilerStep", event.name))
            frame = (stack[-1][1] if stack else root).child(name)
            frame.total += event.length * MICROSECOND
            frame.count += 1
            stack.append((event.end, frame))
    root.total = sum(child.total for child in root.children.values())
    return root


def _collect_own(frame: Frame, own: dict[str, tuple[float, int]]) -> None:
    pending = list(frame.children.values())
    while pending:
        current = pending.pop()
        time, calls = own.get(current.name, (0.0, 0))
        own[current.name] = (time + current.own, calls + current.count)
        pending.extend(current.children.values())


def merge_intervals(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of intervals, sorted and disjoint."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def length_of(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the sum of the lengths of disjoint intervals."""
    return sum(end - start for start, end in intervals)


def overlap(left: Sequence[tuple[float, float]], right: Sequence[tuple[float, float]]) -> float:
    """Return the length that two sorted lists of disjoint intervals have in common."""
    total, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        total += max(0.0, end - start)
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return total


def _collectives(events: Iterable[Event]) -> list[tuple[str, int, float, int]]:
    found: dict[str, tuple[int, float, int]] = {}
    for event in events:
        if kind_of(event) == "communication":
            calls, seconds, size = found.get(event.name, (0, 0.0, 0))
            found[event.name] = (calls + 1, seconds + event.length * MICROSECOND, size + _bytes_of(event.arguments))
    rows = [(name, calls, seconds, size) for name, (calls, seconds, size) in found.items()]
    return sorted(rows, key=lambda row: -row[2])[:40]


def _bytes_of(arguments: dict[str, Any]) -> int:
    """Return the bytes of a collective from the arguments that NCCL's events carry; 0 if they are not there."""
    elements, kind = arguments.get("In msg nelems"), str(arguments.get("dtype", "")).lower()
    if not isinstance(elements, int) or isinstance(elements, bool):
        return 0
    return elements * next((size for name, size in ELEMENT_BYTES.items() if name in kind), 0)
