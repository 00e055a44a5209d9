"""Worker processes that are ready when the first block is: modules imported and kernels loaded once, then forked.

A worker that starts from nothing imports and loads for more than a second, each by itself. So one process that has
no threads (the fork server of `multiprocessing`) does it, beside the command's own start, and all workers of all
phases are forked from it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path

from llmctl.config.common import RunOptions

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def prepare_workers(options: RunOptions, module: str, source: Path, block_bytes: int) -> None:
    """Let the fork server import `module`, if the input is large enough for a second worker.

    Args:
        options: of the run.
        module: what workers need; importing it loads the kernels.
        source: file or folder that will be read.
        block_bytes: size of the blocks that it is cut into.
    """
    if options.executor != "local" or options.num_workers < 2 or options.dry_run:
        return
    if _is_larger(source, block_bytes):
        start_fork_server(module)


def start_fork_server(module: str) -> multiprocessing.context.ForkServerContext:
    """Start the fork server, unless it runs already, and return the context that forks workers from it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    with _one_thread_each():
        forkserver.ensure_running()
    return context


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Set what keeps a worker's libraries from starting a thread per core, where the user has not set it."""
    own = [name for name in _THREAD_VARIABLES if name not in os.environ]
    os.environ.update(dict.fromkeys(own, "1"))
    try:
        yield
    finally:
        for name in own:
            del os.environ[name]


def _is_larger(source: Path, limit: int) -> bool:
    try:
        if source.is_file():
            return source.stat().st_size > limit
        size = 0
        for folder, _, names in os.walk(source):
            for name in names:
                size += os.stat(os.path.join(folder, name)).st_size
                if size > limit:
                    return True
    except OSError:
        pass  # told by the stage
    return False
