"""Accelerators and clusters: `hardware.toml` beside this file, and a user's own file over it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from llmctl.errors import UserError, unknown_name

TABLE = Path(__file__).with_name("hardware.toml")


@dataclass(frozen=True)
class Hardware:
    """One accelerator in its usual cluster.

    Attributes:
        name: what ``--hw`` takes.
        title: its full name.
        peak_tflops: dense bf16 (or fp16) peak; MFU is a share of it.
        matmul_tflops: best measured rate of a large matrix product.
        memory_gb: memory, in 10⁹ bytes.
        memory_gbps: memory bandwidth, 10⁹ bytes a second.
        link_gbps: bandwidth within a node, one direction, each device.
        network_gbps: bandwidth between nodes, one direction, each device.
        devices_per_node: devices that share the fast links.
        power_w: power of one device under load, with its share of the host.
        price, spot_price: dollars of a device-hour.
        interruptions_per_hour: spot interruptions of one node, a share an hour.
        context_gb: memory taken by the device context and communication buffers.
        fragmentation: share of the allocated memory that the allocator cannot use.
        pass_overhead_ms: time of each pass through a layer that neither arithmetic nor memory explains.
        attention: ``core`` or ``flash``, what is usual on it.
        fp32_tflops: peak in fp32 training (TF32 where there is one).
        sources: where each figure comes from.
        constants: constants of the time model that differ here.
    """

    name: str
    title: str
    peak_tflops: float
    matmul_tflops: float
    memory_gb: float
    memory_gbps: float
    link_gbps: float
    network_gbps: float
    devices_per_node: int
    power_w: float
    price: float
    spot_price: float
    interruptions_per_hour: float = 0.002
    context_gb: float = 4.0
    fragmentation: float = 0.12
    pass_overhead_ms: float = 0.0
    attention: str = "core"
    fp32_tflops: float = 0.0
    sources: dict[str, str] = field(default_factory=dict)
    constants: dict[str, float] = field(default_factory=dict)

    def peak(self, precision: str) -> float:
        """Return the peak FLOP/s in a training precision."""
        if precision == "fp32" and self.fp32_tflops:
            return self.fp32_tflops * 1e12
        return self.peak_tflops * 1e12

    def matmul(self, precision: str) -> float:
        """Return the best measured FLOP/s of a large matrix product in a training precision."""
        return self.matmul_tflops * 1e12 * self.peak(precision) / (self.peak_tflops * 1e12)


def _read(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        with open(path, "rb") as handle:
            return tomllib.load(handle)
    except OSError as failure:
        raise UserError(f"cannot read {path}: {failure.strerror}", "give the path of a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as failure:
        raise UserError(f"{path}: {failure}", "put the TOML right and try again") from None


def load_table(own: Path | None = None) -> dict[str, Hardware]:
    """Return all hardware by name; entries and values of a user's own file come first.

    An entry may say ``base = "a100-80g"`` and give only what differs.

    Raises:
        UserError: an unreadable file, an unknown key, or a value of the wrong type.
    """
    entries = _read(TABLE)
    if own is not None:
        for name, values in _read(own).items():
            if not isinstance(values, dict):
                raise UserError(f"{own}: `{name}` is a value, not an entry", f"write [{name}] and keys under it")
            entries[name] = {**entries.get(name, {}), **values}
            entries[name]["sources"] = {**entries[name].get("sources", {}), **_own_sources(values, own)}
    found: dict[str, Hardware] = {}
    for name in entries:
        found[name] = _entry(name, entries, own or TABLE)
    return found


def _own_sources(values: dict[str, Any], own: Path) -> dict[str, str]:
    given = values.get("sources") or {}
    return {
        key: given.get(key, f"{own.name}") for key in values if key not in ("sources", "base", "title", "constants")
    }


def _entry(name: str, entries: dict[str, Any], path: Path, depth: int = 0) -> Hardware:
    values = dict(entries[name])
    base_name = values.pop("base", None)
    if base_name is not None:
        if base_name not in entries or depth > 8:
            raise UserError(f"{path}: `{name}` is based on `{base_name}`, which is not there", "name another entry")
        base = _entry(base_name, entries, path, depth + 1)
        values["sources"] = {**base.sources, **values.get("sources", {})}
        _check(name, values, path)
        return replace(base, name=name, **values)
    _check(name, values, path)
    missing = [item.name for item in fields(Hardware) if item.name not in values and item.name in _REQUIRED]
    if missing:
        raise UserError(
            f"{path}: `{name}` has no `{missing[0]}`", 'add it, or write base = "a100-80g" and what differs'
        )
    return Hardware(name=name, **values)


_TEXT = {"title", "attention"}
_REQUIRED = {
    "title",
    "peak_tflops",
    "matmul_tflops",
    "memory_gb",
    "memory_gbps",
    "link_gbps",
    "network_gbps",
    "devices_per_node",
    "power_w",
    "price",
    "spot_price",
}


def _check(name: str, values: dict[str, Any], path: Path) -> None:
    known = {item.name for item in fields(Hardware)} - {"name"}
    may_be_zero = {"price", "spot_price", "interruptions_per_hour", "context_gb", "fragmentation"}
    may_be_zero |= {"pass_overhead_ms", "fp32_tflops"}
    for key, value in values.items():
        if key not in known:
            raise unknown_name(f"key of hardware `{name}`", key, known)
        if key in ("sources", "constants"):
            continue
        if key in _TEXT:
            if not isinstance(value, str):
                raise UserError(f"{path}: `{name}.{key}` must be text, got {value!r}", "put it in quotes")
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise UserError(f"{path}: `{name}.{key}` must be a number of 0 or more, got {value!r}", "give a number")
        elif value == 0 and key not in may_be_zero:
            raise UserError(f"{path}: `{name}.{key}` must be more than 0", "give the figure of one device")


def find(name: str, own: Path | None = None) -> Hardware:
    """Return the hardware called `name`.

    Raises:
        UserError: no such entry; the hint names the nearest.
    """
    table = load_table(own)
    if name not in table:
        raise unknown_name("hardware", name, table)
    return table[name]
