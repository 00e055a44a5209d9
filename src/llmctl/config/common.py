"""Options that several commands share, and the options of a run that never change its output."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import Annotated, Literal

from llmctl.config.schema import Opt
from llmctl.errors import UserError

# The stages whose work is units that any process can do.
BLOCK_STAGES = ("filter", "dedup", "tokenize", "shard")


@dataclass
class RunOptions:
    """How to run a stage; nothing here changes the bytes of the output."""

    workers: Annotated[int, Opt("Worker processes; 0 takes one per available core.", min=0)] = 0
    executor: Annotated[
        Literal["local", "ray"],
        Opt(
            "Where blocks of records are worked on: processes of this machine, or Ray (filter, dedup, tokenize, shard)."
        ),
    ] = "local"
    ray_address: Annotated[
        str | None,
        Opt("Ray cluster to join, such as `auto` or `10.0.0.1:6379`; else RAY_ADDRESS; else Ray on this machine."),
    ] = None
    overwrite: Annotated[bool, Opt("Delete what an earlier run left in OUTPUT and start anew.")] = False
    if_changed: Annotated[
        Literal["refuse", "overwrite"],
        Opt("What to do when OUTPUT was made with another configuration or input: refuse, or start anew."),
    ] = "refuse"
    verify: Annotated[bool, Opt("Read inputs again and check their checksums instead of trusting manifests.")] = False
    dry_run: Annotated[bool, Opt("Say what would be read, written and used, and stop.")] = False

    def validate(self) -> None:
        """Refuse Ray where it is not installed, and a cluster where it is not asked for.

        Raises:
            UserError: one of these.
        """
        if self.executor == "ray" and importlib.util.find_spec("ray") is None:
            raise UserError("`--executor ray` needs Ray, which is not installed", "pip install 'llmctl[ray]'")
        if self.executor == "local" and self.ray_address is not None:
            raise UserError("--ray-address says where, but the executor is `local`", "add --executor ray")

    def check_executor(self, stage: str) -> None:
        """Refuse Ray for a stage that does not work block by block.

        Raises:
            UserError: the stage has processes of its own.
        """
        if self.executor == "ray" and stage not in BLOCK_STAGES:
            raise UserError(
                f"`llmctl {stage}` does not run on Ray: only {', '.join(BLOCK_STAGES)} work block by block",
                "leave --executor away",
            )

    @property
    def num_workers(self) -> int:
        """Return the number of worker processes to start."""
        return self.workers or available_cores()


def available_cores() -> int:
    """Return the cores this process may use (cgroup and affinity aware where the system tells)."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1
