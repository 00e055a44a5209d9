"""Two hosts on one machine: network namespaces joined by a pair of virtual network cards (needs root)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@dataclass
class Hosts:
    """Two network namespaces.

    Attributes:
        names: of the namespaces.
        cards: the network card of each.
        addresses: the address of each.
    """

    names: tuple[str, str]
    cards: tuple[str, str]
    addresses: tuple[str, str]

    def start(self, host: int, command: Sequence[str], read: bool = False, **environment: str) -> subprocess.Popen:
        """Start a command on a host; `read` keeps its standard output for `communicate`."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], *command],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE if read else None,
            stderr=subprocess.PIPE,
            text=True,
        )

    def plug(self, host: int, connected: bool) -> None:
        """Pull the cable out of a host, or put it in again."""
        state = "up" if connected else "down"
        _ip("-n", self.names[host], "link", "set", self.cards[host], state)

    def limit(self, host: int, rate: str) -> None:
        """Let a host's card send no faster than `rate`, e.g. ``100mbit``."""
        tc = ["ip", "netns", "exec", self.names[host], "tc", "qdisc", "replace", "dev", self.cards[host], "root"]
        subprocess.run([*tc, "tbf", "rate", rate, "burst", "64kb", "latency", "100ms"], check=True, capture_output=True)


def can_make_hosts() -> bool:
    """Tell whether network namespaces can be made here."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        return False
    name = f"llmctl-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return made


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Make two hosts that reach each other, and take them away again."""
    mark = os.getpid() % 60000
    hosts = Hosts(
        (f"llmctl-a-{mark}", f"llmctl-b-{mark}"),
        (f"la{mark}", f"lb{mark}"),
        (f"10.{77 + mark // 250 % 100}.{mark % 250}.1", f"10.{77 + mark // 250 % 100}.{mark % 250}.2"),
    )
    try:
        for name in hosts.names:
            _ip("netns", "add", name)
        _ip("link", "add", hosts.cards[0], "type", "veth", "peer", "name", hosts.cards[1])
        for name, card, address in zip(hosts.names, hosts.cards, hosts.addresses, strict=True):
            _ip("link", "set", card, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", card)
            _ip("-n", name, "link", "set", card, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield hosts
    finally:
        for name in hosts.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
