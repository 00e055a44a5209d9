"""Run a function over units of work, on this machine or by Ray, skipping the units that an earlier run has finished.

The unit is a block of records. A unit's function writes its files itself (atomically) and returns a `UnitResult`;
the parent records it, so that a kill costs at most the units in flight. Results do not depend on the number of
workers: units are planned from the input alone and merged in order.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

from llmctl import console
from llmctl.artifacts.files import FileRecord
from llmctl.artifacts.output import Output
from llmctl.errors import LlmctlError, RunFailed
from llmctl.runtime.ray_pool import run_on_ray
from llmctl.runtime.workers import start_fork_server


@dataclass(frozen=True)
class Unit:
    """One unit of work.

    Attributes:
        name: unique in the stage, safe as a file name, sorted in the order of the work.
        payload: what the function needs; must be picklable.
        input_bytes: size of its input, for progress.
        key: what the result depends on beside the configuration, e.g. a content hash; a finished unit with
            another key is done again. None: name and configuration say it all.
    """

    name: str
    payload: Any
    input_bytes: int = 0
    key: str | None = None


@dataclass
class UnitResult:
    """What a unit of work has made.

    Attributes:
        files: the files it wrote, relative to the output folder.
        data: plain JSON values: counts and whatever the stage merges.
    """

    files: list[FileRecord] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)


UnitFunction = Callable[[Unit, Any], UnitResult]

_worker_context: Any = None


def _start_worker(context: Any) -> None:
    global _worker_context
    _worker_context = context
    # Ctrl-C reaches the whole process group; the parent alone decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run_unit(function: UnitFunction, unit: Unit) -> UnitResult:
    return function(unit, _worker_context)


def run_units(
    function: UnitFunction,
    units: Iterable[Unit],
    context: Any,
    out: Output,
    *,
    phase: str,
    label: str,
    total_bytes: int | None = None,
    most_workers: int | None = None,
) -> list[tuple[Unit, UnitResult]]:
    """Run `function(unit, context)` for every unit and return the results in the units' order.

    Args:
        function: a module-level function.
        units: planned from the input alone; may be a generator that reads ahead (a compressed stream).
        context: given to every call; must be picklable.
        out: the claimed output, where finished units are recorded.
        phase: prefix of the unit records, unique in the stage.
        label: what to show as progress.
        total_bytes: sum of the units' input bytes, if known.
        most_workers: 1 for work that takes less time than processes take to start.

    Raises:
        LlmctlError: what a unit raised, or a worker that died.
    """
    done: dict[str, UnitResult] = {}
    order: list[Unit] = []
    workers = min(out.options.num_workers, most_workers or out.options.num_workers)

    def finished(unit: Unit, result: UnitResult) -> None:
        out.save_unit(f"{phase}-{unit.name}", {"key": unit.key, "data": result.data}, result.files)
        done[unit.name] = result
        shown.advance(unit.input_bytes)

    def pending() -> Iterator[Unit]:
        for unit in units:
            order.append(Unit(unit.name, None, unit.input_bytes, unit.key))
            saved = out.load_unit(f"{phase}-{unit.name}")
            if saved is not None and saved.get("key") == unit.key:
                files = [FileRecord(item["path"], item["bytes"], item["sha256"]) for item in saved["files"]]
                done[unit.name] = UnitResult(files, saved["data"])
                shown.advance(unit.input_bytes)
            else:
                yield unit

    with console.progress(label, total_bytes) as shown:
        if most_workers == 1 or (workers == 1 and out.options.executor == "local"):
            for unit in pending():
                finished(unit, function(unit, context))
        elif out.options.executor == "ray":
            run_on_ray(function, pending(), context, out.options, finished)
        else:
            _run_pool(function, pending(), context, workers, finished)
    return [(unit, done[unit.name]) for unit in order]


def _run_pool(
    function: UnitFunction,
    units: Iterator[Unit],
    context: Any,
    workers: int,
    finished: Callable[[Unit, UnitResult], None],
) -> None:
    first = [unit for _, unit in zip(range(2), units, strict=False)]
    if len(first) < 2:
        # A pool costs more than it brings when there is one unit.
        for unit in first:
            finished(unit, function(unit, context))
        return
    executor = ProcessPoolExecutor(
        max_workers=workers,
        mp_context=start_fork_server(function.__module__),
        initializer=_start_worker,
        initargs=(context,),
    )
    running: dict[Future[UnitResult], Unit] = {}
    try:
        for unit in [*first]:
            running[executor.submit(_run_unit, function, unit)] = unit
        for unit in units:
            # Two units wait behind each worker at most, so that a stream is not read into memory.
            while len(running) >= 2 * workers:
                _collect(running, finished)
            running[executor.submit(_run_unit, function, unit)] = unit
        while running:
            _collect(running, finished)
    except BrokenProcessPool:
        names = ", ".join(sorted(unit.name for unit in running.values())[:4])
        raise RunFailed(
            f"a worker process died (units in flight: {names}); the system may have killed it for memory",
            "run the same command again, with fewer --workers if memory is short: finished blocks are kept",
        ) from None
    except BaseException:
        for process in list((executor._processes or {}).values()):
            process.terminate()
        raise
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _collect(running: dict[Future[UnitResult], Unit], finished: Callable[[Unit, UnitResult], None]) -> None:
    ready, _ = wait(list(running), return_when=FIRST_COMPLETED)
    failure: BaseException | None = None
    for future in ready:
        unit = running.pop(future)
        error = future.exception()
        if error is None:
            finished(unit, future.result())
        elif failure is None:
            failure = error if isinstance(error, (LlmctlError, BrokenProcessPool)) else _unexpected(unit, error)
            if isinstance(error, BrokenProcessPool):
                running[future] = unit
    if failure is not None:
        raise failure


def _unexpected(unit: Unit, error: BaseException) -> BaseException:
    error.add_note(f"in unit {unit.name}") if hasattr(error, "add_note") else None
    return error
