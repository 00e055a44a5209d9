"""Run units of work as Ray tasks: on this machine, or on the cluster that an address names.

The unit's function, its files and the record of finished units are those of the local pool, so the output has the
same bytes. Ray decides where a unit runs, and runs it again if its worker or its machine is lost. Inputs and output
have to lie on a file system that every machine sees under the same path.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import llmctl
from llmctl.config.common import RunOptions
from llmctl.errors import LlmctlError, RunFailed, UserError

if TYPE_CHECKING:
    from llmctl.runtime.pool import Unit, UnitFunction, UnitResult

# How often Ray runs a unit again whose worker died, before the run gives up.
RETRIES = 4
# Only blocks of compressed streams travel through the store; what does not fit is spilled to disk.
STORE_BYTES_PER_WORKER = 256_000_000
SMALLEST_STORE_BYTES = 128_000_000


def run_on_ray(
    function: UnitFunction,
    units: Iterator[Unit],
    context: Any,
    options: RunOptions,
    finished: Callable[[Unit, UnitResult], None],
) -> None:
    """Call `function(unit, context)` for every unit in Ray tasks and hand each result to `finished`.

    Raises:
        UserError: the cluster cannot be reached.
        RunFailed: a unit's worker died again and again.
        LlmctlError: what a unit raised.
    """
    ray = connect(options)
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(run_unit)
    shared = ray.put((context, os.getcwd()))
    running: dict[Any, Unit] = {}
    try:
        for unit in units:
            while len(running) >= most_in_flight(ray, options):
                _collect(ray, running, finished)
            running[task.remote(function, unit, shared)] = unit
        while running:
            _collect(ray, running, finished)
    except BaseException:
        for reference in running:
            with suppress(Exception):
                ray.cancel(reference, force=True)
        raise


def run_unit(function: UnitFunction, unit: Unit, shared: tuple[Any, str]) -> UnitResult:
    """Run one unit in a Ray worker, in the folder that the command was started in."""
    context, folder = shared
    with suppress(OSError):  # another machine may lack it; then paths have to be absolute
        os.chdir(folder)
    return function(unit, context)


def connect(options: RunOptions) -> Any:
    """Start Ray on this machine, or join the cluster of `options.ray_address` or RAY_ADDRESS; return the module.

    Raises:
        UserError: Ray is not installed, or the cluster cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # What Ray says about its own defaults is no concern of the user's.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    before = signal.getsignal(signal.SIGTERM)
    try:
        import ray
    except ImportError:
        raise UserError("`--executor ray` needs Ray, which cannot be imported", "pip install 'llmctl[ray]'") from None
    if ray.is_initialized():
        return ray
    address = options.ray_address or os.environ.get("RAY_ADDRESS") or None
    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address:
            del quiet["include_dashboard"]
            _knock(address)
            ray.init(address=address, **quiet)
        else:
            store = max(SMALLEST_STORE_BYTES, min(STORE_BYTES_PER_WORKER * options.num_workers, _memory() // 10))
            ray.init(address="local", num_cpus=options.num_workers, object_store_memory=store, **quiet)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as failure:
        lines = str(failure).strip().splitlines()
        raise UserError(
            f"cannot {f'join the Ray cluster at {address}' if address else 'start Ray'}: "
            f"{lines[0] if lines else type(failure).__name__}",
            "check the address (`ray status` on a machine of the cluster), and that Python and Ray have equal versions"
            if address
            else "leave --executor away to work with processes of this machine",
        ) from None
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)  # Ray would end the process without a word
    return ray


def _knock(address: str) -> None:
    """Raise `OSError` where nobody listens at ``host:port``; Ray itself takes minutes to find that out."""
    host, _, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def most_in_flight(ray: Any, options: RunOptions) -> int:
    """Return how many units to hand to Ray at a time.

    On a cluster, twice its cores as they are now (it may grow): units that wait tell its autoscaler to add machines.
    `--workers` is an upper bound.
    """
    if options.workers:
        return options.workers
    return 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _collect(ray: Any, running: dict[Any, Unit], finished: Callable[[Unit, UnitResult], None]) -> None:
    # With a timeout, so that the number of units in flight follows the cluster.
    ready, _ = ray.wait(list(running), num_returns=1, timeout=10.0)
    for reference in ready:
        unit = running.pop(reference)
        try:
            result = ray.get(reference)
        except ray.exceptions.RayTaskError as failure:
            cause = failure.cause if isinstance(failure.cause, BaseException) else failure
            if isinstance(cause, ray.exceptions.RayError):  # the worker could not even read what it was sent
                raise RunFailed(
                    f"a Ray worker cannot work on unit {unit.name}: {str(cause).strip().splitlines()[0]}",
                    f"install llmctl {llmctl.__version__} for every worker of the cluster",
                ) from None
            if not isinstance(cause, LlmctlError):
                cause.add_note(f"in unit {unit.name}") if hasattr(cause, "add_note") else None
            raise cause from None
        except ray.exceptions.RayError as failure:
            raise RunFailed(
                f"a Ray worker died {RETRIES + 1} times at unit {unit.name} ({type(failure).__name__}); "
                "the system may have killed it for memory",
                "run the same command again, with fewer --workers if memory is short: finished blocks are kept",
            ) from None
        finished(unit, result)
