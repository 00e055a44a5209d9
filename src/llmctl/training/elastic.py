"""Go on with what is left: start a run again when a process was lost, on as many processes as still make a layout.

On one host the launcher does it. Several hosts are joined by torch's elastic agent, which notices hosts that leave and
come back; each process then takes its place from the agent, and the run's folder (on a file system that all hosts
see) holds the checkpoint to go on from.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from llmctl import console
from llmctl.errors import LlmctlError, RunFailed, UserError
from llmctl.training.config import TrainingConfig


class ProcessLost(RunFailed):
    """A process died or hung without a word about a mistake: starting again from the checkpoint may well do."""


def largest_layout(config: TrainingConfig, available: int) -> int:
    """Return the largest number of processes, at most `available`, that the layout and the batch can be cut into.

    Raises:
        UserError: there is none.
    """
    from llmctl.training.layout import layout_for, micro_batch_size

    for processes in range(available, 0, -1):
        try:
            micro_batch_size(config, layout_for(config, processes).dp)
            return processes
        except UserError:
            continue
    raise UserError(
        f"{available} processes are left, and tp {config.tp} × pp {config.pp} cannot be cut from them",
        "start again with another layout: checkpoints do not depend on it",
    )


def run_until_done(config: TrainingConfig, processes: int, start: Callable[[int], None]) -> None:
    """Call `start(processes)`; with `elastic`, again after a process was lost.

    Raises:
        ProcessLost: one was lost once more than `max_restarts` times.
        LlmctlError: what a process said was wrong; starting again would not help.
    """
    restarts = 0
    while True:
        try:
            return start(processes)
        except ProcessLost as failure:
            if not config.elastic or restarts >= config.max_restarts:
                raise
            restarts += 1
            processes = largest_layout(config, min(processes, _devices_left(config, processes)))
            console.warning(
                f"{failure.problem}; starting again from the last checkpoint with {processes} processes "
                f"(restart {restarts} of at most {config.max_restarts})"
            )


def _devices_left(config: TrainingConfig, processes: int) -> int:
    """Count the GPUs that still answer, in a new process: the driver tells each process once."""
    import subprocess

    from llmctl.training.distributed import resolve_device

    if resolve_device(config) != "cuda":
        return processes
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return int(done.stdout.strip())
    except ValueError:
        return processes


def join_hosts(config: TrainingConfig, processes: int) -> None:
    """Replace this process by torch's elastic agent, which starts this same command `processes` times on this host.

    Raises:
        LlmctlError: the agent cannot be started.
    """
    from llmctl.training.distributed import address_towards

    # The same run on every host, whatever its number and its temporary folders.
    run_id = "llmctl-" + str(config.rendezvous).replace(":", "-")
    address = address_towards(str(config.rendezvous).rpartition(":")[0])
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", f"1:{config.nodes}", "--nproc-per-node", str(processes)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", str(config.rendezvous), "--rdzv-id", run_id),
        *(("--local-addr", address) if address else ()),
        # Host 0 keeps the meeting point; the agent would go by the host's name, which may stand for another address.
        *("--rdzv-conf", f"is_host={str(config.node_rank == 0).lower()}"),
        *("--max-restarts", str(config.max_restarts), "-m", "llmctl", *sys.argv[1:]),
    ]
    console.info(
        f"elastic: up to {config.nodes} hosts × {processes} processes meet at {config.rendezvous} "
        "(torch's elastic agent); the run goes on with those that are there"
    )
    sys.stderr.flush()
    try:
        os.execv(command[0], command)
    except OSError as failure:
        raise LlmctlError(f"cannot start torch's elastic agent: {failure}") from None
