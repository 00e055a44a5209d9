"""The processes of a run as one object: who we are, which device is ours, and the few things all must agree on."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from llmctl.config.common import available_cores
from llmctl.errors import UserError
from llmctl.training.config import TrainingConfig
from llmctl.training.layout import Layout, layout_for

# Set by the launcher on workers that it started: where they meet.
RENDEZVOUS_VARIABLE = "LLMCTL_RENDEZVOUS"


@dataclass
class World:
    """The processes of a run, seen from one of them.

    Attributes:
        groups: process groups of this process along ``tp``, ``dp`` and ``pp``; empty for one process.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    layout: Layout = field(default_factory=Layout)
    groups: dict[str, Any] = field(default_factory=dict)

    @property
    def is_main(self) -> bool:
        """Tell whether this process writes files and talks."""
        return self.rank == 0

    @property
    def tp_rank(self) -> int:
        """Return the place in the tensor-parallel group."""
        return self.layout.coordinates(self.rank)[0]

    @property
    def dp_rank(self) -> int:
        """Return the number of the data-parallel replica."""
        return self.layout.coordinates(self.rank)[1]

    @property
    def pp_rank(self) -> int:
        """Return the number of the pipeline stage."""
        return self.layout.coordinates(self.rank)[2]

    def barrier(self) -> None:
        """Wait for every process."""
        if self.world_size > 1:
            self.sum([0.0])  # gloo and NCCL both do sums; a barrier of NCCL would need to know the device

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the element-wise sum over every process, in float64."""
        return self._reduce(values, "SUM")

    def maximum(self, values: Sequence[float]) -> list[float]:
        """Return the element-wise maximum over every process."""
        return self._reduce(values, "MAX")

    def _reduce(self, values: Sequence[float], operation: str) -> list[float]:
        if self.world_size == 1:
            return [float(value) for value in values]
        tensor = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, operation))
        return tensor.tolist()

    def broadcast(self, value: Any) -> Any:
        """Return process 0's value, plain JSON, on every process (no pickle crosses)."""
        if self.world_size == 1:
            return value
        data = json.dumps(value).encode() if self.is_main else b""
        size = torch.tensor([len(data)], dtype=torch.int64, device=self.device)
        dist.broadcast(size, 0)
        buffer = torch.zeros(int(size), dtype=torch.uint8, device=self.device)
        if self.is_main:
            buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(buffer, 0)
        return json.loads(bytes(buffer.cpu().numpy()))


def resolve_device(config: TrainingConfig) -> str:
    """Return ``cuda`` or ``cpu``.

    Raises:
        UserError: CUDA was asked for and there is none.
    """
    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("`--device cuda`, and torch sees no GPU", "use --device cpu, or install torch with CUDA")
    return config.device


def inside_launcher() -> bool:
    """Tell whether torchrun, srun or our own launcher has started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def address_towards(host: str) -> str | None:
    """Return this machine's address on the way to another host, None if there is no way."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # sends nothing: it only chooses a route
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _choose_interface() -> None:
    """Let gloo use the network card that leads to the meeting point, instead of what the host's name resolves to."""
    meeting = os.environ.get(RENDEZVOUS_VARIABLE, "")
    host = meeting.removeprefix("tcp://").rpartition(":")[0] if meeting.startswith("tcp://") else None
    address = address_towards(host or os.environ.get("MASTER_ADDR", "localhost"))
    if "GLOO_SOCKET_IFNAME" in os.environ or meeting.startswith("file://") or address is None:
        return
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(item.address == address for item in addresses):
            os.environ["GLOO_SOCKET_IFNAME"] = name
            return


def connect(config: TrainingConfig) -> World:
    """Join the other processes of the run (none unless a launcher has set RANK) and take this process's device."""
    kind = resolve_device(config)
    rank, world_size = 0, 1
    if inside_launcher():
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size)))
    layout = layout_for(config, world_size)
    if kind == "cuda":
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    if config.threads or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(config.threads or max(1, available_cores() // max(1, local_size)))
    world = World(rank, world_size, local_rank, device, layout)
    if world_size > 1:
        if not dist.is_initialized():
            if kind == "cpu":
                _choose_interface()
            dist.init_process_group(
                "nccl" if kind == "cuda" else "gloo",
                init_method=os.environ.get(RENDEZVOUS_VARIABLE, "env://"),
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=config.timeout_s),
            )
        for axis in ("tp", "dp", "pp"):
            for ranks in layout.groups(axis):
                group = dist.new_group(ranks, group_desc=axis)  # every process makes every group, in the same order
                if rank in ranks:
                    world.groups[axis] = group
        if layout.pp > 1:  # first and last stage: they share a tied embedding
            for ranks in layout.groups("pp"):
                group = dist.new_group([ranks[0], ranks[-1]], group_desc="ends")
                if rank in (ranks[0], ranks[-1]):
                    world.groups["ends"] = group
            if kind == "cuda":
                _connect_links(world)
    return world


def _connect_links(world: World) -> None:
    """Make a group for each way of the pipeline's messages: NCCL sends in order, and both ways share no order."""
    for name in ("forward", "backward", "wrap forward", "wrap backward"):
        for ranks in world.layout.groups("pp"):
            group = dist.new_group(ranks, group_desc=name)
            if world.rank in ranks:
                world.groups[name] = group


def disconnect() -> None:
    """Leave the other processes, if there are any.

    A group of one (DeepSpeed wants one) stays: DeepSpeed remembers it for the life of the process.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.destroy_process_group()
