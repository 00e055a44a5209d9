"""Options that several commands share, and the options of a run that never change its output."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Literal

from llmctl.config.schema import Opt
from llmctl.errors import UserError


@dataclass
class RunOptions:
    """How to run a stage; nothing here changes the bytes of the output."""

    workers: Annotated[int, Opt("Worker processes; 0 takes one per available core.", min=0)] = 0
    executor: Annotated[
        Literal["local", "ray"], Opt("Where blocks of records are worked on; `ray` is refused so far.")
    ] = "local"
    overwrite: Annotated[bool, Opt("Delete what an earlier run left in OUTPUT and start anew.")] = False
    if_changed: Annotated[
        Literal["refuse", "overwrite"],
        Opt("What to do when OUTPUT was made with another configuration or input: refuse, or start anew."),
    ] = "refuse"
    verify: Annotated[bool, Opt("Read inputs again and check their checksums instead of trusting manifests.")] = False
    dry_run: Annotated[bool, Opt("Say what would be read, written and used, and stop.")] = False

    def validate(self) -> None:
        """Refuse what this version cannot do.

        Raises:
            UserError: the work is asked to run on Ray.
        """
        if self.executor == "ray":
            raise UserError(
                "`--executor ray` is not there yet: blocks of records are worked on by processes of this machine",
                "leave --executor away; --workers sets the number of processes",
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
