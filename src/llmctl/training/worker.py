"""One process of a run: ``python -m llmctl.training.worker FOLDER`` with the job of the launcher in FOLDER."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from llmctl import console
from llmctl.artifacts.files import write_json
from llmctl.errors import ExitStatus, LlmctlError, RunFailed

_PR_SET_PDEATHSIG = 1
MEMORY_HINT = (
    "it ran out of memory: --micro-batch-size 1 and --recompute full need less, and so do --zero-stage 1 or more --tp; "
    "`llmctl plan` says how much a layout takes"
)


def _die_with_parent() -> None:
    """End this process when the launcher dies, however that happens (Linux)."""
    parent = int(os.environ.get("LLMCTL_PARENT", "0"))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:  # it died before we asked
        os._exit(int(ExitStatus.FAILED))


def _train(folder: Path) -> None:
    from llmctl.training.distributed import connect, disconnect
    from llmctl.training.heartbeat import Heartbeat, prepare_flight_recorder
    from llmctl.training.launch import load_entry, read_job
    from llmctl.training.run import Job

    job, config = read_job(folder)
    prepare_flight_recorder()
    Heartbeat(folder, int(os.environ["RANK"])).start()
    world = connect(config)
    console.configure(quiet=bool(job["quiet"]) or not world.is_main)
    sources = {role: Path(path) for role, path in job["sources"].items()}
    statistics = load_entry(job["entry"])(Job(Path(job["root"]), job["stage"], config, sources, world))
    if world.is_main and job["statistics"]:
        target = Path(job["statistics"])
        write_json(target.parent, target.name, statistics)
    world.barrier()
    disconnect()


def _out_of_memory(failure: Exception) -> bool:
    text = str(failure)
    return (
        isinstance(failure, MemoryError)
        or type(failure).__name__ == "OutOfMemoryError"
        or "out of memory" in text
        or "can't allocate memory" in text
    )


def _tell(folder: Path, failure: LlmctlError, effect: bool) -> None:
    record: dict[str, Any] = {
        "problem": failure.problem,
        "hint": failure.hint,
        "status": int(failure.status),
        "effect": effect,
    }
    write_json(folder, f"failure-{os.environ.get('RANK', '0')}.json", record)


def main() -> int:
    """Run the job; what goes wrong is written down for the launcher, which tells it once."""
    _die_with_parent()
    folder = Path(sys.argv[1])
    try:
        _train(folder)
    except LlmctlError as failure:
        _tell(folder, failure, effect=False)
        return int(failure.status)
    except KeyboardInterrupt:
        return int(ExitStatus.INTERRUPTED)
    except Exception as failure:
        # What the others see when one process is gone.
        effect = type(failure).__name__ in ("DistBackendError", "DistNetworkError", "DistStoreError") or (
            "onnection" in str(failure) or "gloo" in str(failure) or "NCCL" in str(failure)
        )
        if not effect:
            traceback.print_exc()
        problem = f"{type(failure).__name__}: {failure}".split("\n")[0]
        _tell(folder, RunFailed(problem, MEMORY_HINT if _out_of_memory(failure) else None), effect)
        return int(ExitStatus.FAILED)
    return int(ExitStatus.DONE)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a broken process group must not keep the process from ending.
    os._exit(status)
