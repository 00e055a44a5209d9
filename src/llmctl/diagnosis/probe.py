"""Measure every link of a job: bandwidth in both directions and latency between each pair of hosts.

One process of each host takes part (on one host, every process); pairs are measured one after another, so that none
slows another down. Works on gloo and NCCL.
"""

from __future__ import annotations

import json
import socket
import tempfile
import time
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmctl.errors import UserError

if TYPE_CHECKING:
    from llmctl.training.config import TrainingConfig
    from llmctl.training.run import Job

ENTRY = "llmctl.diagnosis.probe:measure"
FIRST_BYTES, MOST_BYTES = 1 << 18, 1 << 26
# A transfer should take about this long; then the clock and the latency do not matter.
WANTED_S = 0.15
# The fastest of several counts: another job on the processor only ever slows one down.
REPEATS = 5
PINGS = 20
# Of the median of all links; below that a link is called slow. One pair alone has its other direction to compare with.
SLOW_SHARE = 0.5
SLOW_SHARE_OF_ONE_PAIR = 0.25
NAME_BYTES = 256


@dataclass(frozen=True)
class Link:
    """One direction between two ranks.

    Attributes:
        source, target: ranks.
        bytes_per_s: of the fastest repeat.
        latency_s: half of a round trip of one byte.
    """

    source: int
    target: int
    bytes_per_s: float
    latency_s: float


@dataclass
class Probe:
    """What was measured.

    Attributes:
        hosts: name of each rank's host.
        expected_bytes_per_s: what links are compared with.
        slow: links far below that, slowest first.
    """

    hosts: list[str]
    links: list[Link]
    expected_bytes_per_s: float
    slow: list[Link] = field(default_factory=list)

    def name(self, rank: int) -> str:
        """Return rank and host in words."""
        return f"{self.hosts[rank]} (rank {rank})"

    @property
    def verdict(self) -> str:
        """Return the result in a sentence."""
        expected = speed_in_words(self.expected_bytes_per_s)
        if not self.slow:
            return f"{len(self.links)} links measured; none is far below {expected}"
        worst = self.slow[0]
        return (
            f"the link from {self.name(worst.source)} to {self.name(worst.target)} runs at "
            f"{speed_in_words(worst.bytes_per_s)}, where {expected} are expected"
            + (f"; {len(self.slow) - 1} further links are slow" if len(self.slow) > 1 else "")
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return the probe as it stands in ``--json``."""
        slow = {(link.source, link.target) for link in self.slow}
        return {
            "verdict": self.verdict,
            "expected_bytes_per_s": self.expected_bytes_per_s,
            "links": [
                {
                    "from": link.source,
                    "to": link.target,
                    "from_host": self.hosts[link.source],
                    "to_host": self.hosts[link.target],
                    "bytes_per_s": link.bytes_per_s,
                    "latency_s": link.latency_s,
                    "slow": (link.source, link.target) in slow,
                }
                for link in self.links
            ],
        }


def speed_in_words(bytes_per_s: float) -> str:
    """Return a bandwidth as network people write it."""
    mbit = bytes_per_s * 8 / 1e6
    return f"{mbit / 1000:.3g} Gbit/s" if mbit >= 1000 else f"{mbit:.3g} Mbit/s"


def probe_network(config: TrainingConfig, expected_gbit: float | None = None) -> Probe | None:
    """Measure the links between the processes of a job.

    Args:
        config: processes, nodes, node_rank, rendezvous and device, as for a training run.
        expected_gbit: what a link should reach, in Gbit/s; None compares with the median link (the fastest of two).

    Returns:
        The probe; None in a process that is not the first of the job.

    Raises:
        UserError: fewer than two processes.
        RunFailed: a host is not there.
    """
    from llmctl.training.distributed import connect, disconnect, inside_launcher
    from llmctl.training.launch import check_processes, start_job
    from llmctl.training.run import Job

    processes = check_processes(config)
    if inside_launcher():
        world = connect(config)
        try:
            facts = measure(Job(Path("."), "probe", config, {}, world))
        finally:
            disconnect()
        return _judge(facts, expected_gbit) if world.is_main else None
    if processes * config.nodes < 2:
        raise UserError(
            "a network has at least two ends, and this is one process",
            "on each host R: --nodes N --node-rank R --rendezvous HOST0:29500; on this host alone: --processes 2",
        )
    with tempfile.TemporaryDirectory(prefix="llmctl-probe-") as folder:
        result = Path(folder) / "links.json"
        first = config.node_rank == 0
        start_job(ENTRY, Path(folder) / "run", config, "probe", {}, processes, result if first else None)
        return _judge(json.loads(result.read_bytes()), expected_gbit) if first else None


def _judge(facts: dict[str, Any], expected_gbit: float | None) -> Probe:
    links = [Link(*row) for row in facts["links"]]
    rates = sorted(link.bytes_per_s for link in links)
    usual = rates[-1] if len(rates) <= 2 else rates[len(rates) // 2]
    expected = usual if expected_gbit is None else expected_gbit * 1e9 / 8
    share = SLOW_SHARE_OF_ONE_PAIR if expected_gbit is None and len(links) <= 2 else SLOW_SHARE
    slow = sorted((link for link in links if link.bytes_per_s < share * expected), key=lambda link: link.bytes_per_s)
    return Probe(list(facts["hosts"]), links, expected, slow)


def measure(job: Job) -> dict[str, Any]:
    """Measure in every process of the job; the first one gets the result as plain JSON."""
    import torch

    world = job.world
    hosts = _hosts(world)
    leaders = sorted({host: rank for rank, host in reversed(list(enumerate(hosts)))}.values())
    ends = leaders if len(leaders) > 1 else list(range(world.world_size))
    rates = torch.zeros(world.world_size, world.world_size, 2, dtype=torch.float64)
    for pair in combinations(ends, 2):
        for source, target in (pair, pair[::-1]):
            if world.rank in pair:
                rate, latency = _measure_direction(world, source, target)
                if world.rank == source:
                    rates[source, target] = torch.tensor([rate, latency], dtype=torch.float64)
            world.barrier()
    flat = world.sum(rates.flatten().tolist())
    table = torch.tensor(flat, dtype=torch.float64).view_as(rates)
    links = [
        [source, target, *table[source, target].tolist()]
        for source in ends
        for target in ends
        if source != target and table[source, target, 0] > 0
    ]
    return {"hosts": hosts, "links": links}


def _hosts(world: Any) -> list[str]:
    """Return the name of every rank's host: its name and the address that it takes part with."""
    import os

    import torch
    import torch.distributed as dist

    from llmctl.training.distributed import address_towards

    meeting = os.environ.get("LLMCTL_RENDEZVOUS", "")
    host = meeting.removeprefix("tcp://").rpartition(":")[0] if meeting.startswith("tcp://") else ""
    address = address_towards(host or os.environ.get("MASTER_ADDR", "localhost")) if meeting[:4] != "file" else None
    name = f"{socket.gethostname()} {address}" if address else socket.gethostname()
    mine = torch.tensor(list(name.encode()[:NAME_BYTES].ljust(NAME_BYTES)), dtype=torch.uint8, device=world.device)
    all_names = [torch.empty_like(mine) for _ in range(world.world_size)]
    dist.all_gather(all_names, mine)
    return [bytes(item.tolist()).decode(errors="replace").strip() for item in all_names]


def _measure_direction(world: Any, source: int, target: int) -> tuple[float, float]:
    """Send from one rank to another, each transfer answered by a byte; both ranks call it.

    Returns:
        (bytes/s, seconds of latency), known by the source.
    """
    import torch

    byte = torch.zeros(1, dtype=torch.uint8, device=world.device)
    _round_trip(world, source, target, byte, byte)  # connections are made at first use
    started = time.perf_counter()
    for _ in range(PINGS):
        _round_trip(world, source, target, byte, byte)
    latency = (time.perf_counter() - started) / PINGS / 2
    size, seconds = FIRST_BYTES, 0.0
    while True:  # grow until a transfer takes long enough; both ends must agree on the size
        payload = torch.zeros(size, dtype=torch.uint8, device=world.device)
        seconds = _round_trip(world, source, target, payload, byte)
        grown = min(MOST_BYTES, int(size * max(2.0, WANTED_S / max(seconds, 1e-6))))
        size_now = torch.tensor([grown if seconds < WANTED_S / 2 and size < MOST_BYTES else 0], device=world.device)
        _send(world, source, target, size_now)
        if not int(size_now):
            break
        size = int(size_now)
    fastest = min(_round_trip(world, source, target, payload, byte) for _ in range(REPEATS))
    return size / max(fastest - latency, 1e-9), latency


def _send(world: Any, source: int, target: int, tensor: Any) -> None:
    import torch.distributed as dist

    if world.rank == source:
        dist.send(tensor, target)
    else:
        dist.recv(tensor, source)


def _round_trip(world: Any, source: int, target: int, payload: Any, answer: Any) -> float:
    started = time.perf_counter()
    _send(world, source, target, payload)
    _send(world, target, source, answer)
    if world.device.type == "cuda":
        import torch

        torch.cuda.synchronize(world.device)
    return time.perf_counter() - started
