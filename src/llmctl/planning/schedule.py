"""An event simulation of pipeline schedules.

The simulation starts an operation when its device is free and what it needs has arrived; transfers between devices
take a time of their own and do not occupy the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llmctl.training.engines.schedules import SCHEDULES, Operation, orders_of

__all__ = ["SCHEDULES", "Operation", "Slot", "StageTimes", "Timeline", "orders_of", "peak_live", "simulate"]


class Slot(NamedTuple):
    """An operation with its start and end in seconds."""

    operation: Operation
    start: float
    end: float


@dataclass(frozen=True)
class StageTimes:
    """Seconds of one micro-batch on one virtual stage.

    Attributes:
        forward: forward pass.
        backward_input: backward pass for the input, recomputation included.
        backward_weight: backward pass for the weights.
    """

    forward: float
    backward_input: float
    backward_weight: float

    @property
    def total(self) -> float:
        """Return the seconds of a whole micro-batch."""
        return self.forward + self.backward_input + self.backward_weight


@dataclass(frozen=True)
class Timeline:
    """A simulated pipeline step.

    Attributes:
        slots: for each device its operations in order of time.
        span: seconds of the device that is occupied longest, from its first start to its last end. Where devices do
            not start together the next step may begin on one before it has ended on another (ZB-H2 with its
            optimizer step checked afterwards); for the other schedules this is the first start to the last end.
        busy: seconds of work of each device.
    """

    slots: tuple[tuple[Slot, ...], ...]
    span: float
    busy: tuple[float, ...]

    @property
    def bubble_fraction(self) -> float:
        """Return the idle share of all devices' time."""
        return 1.0 - sum(self.busy) / (len(self.busy) * self.span) if self.span else 0.0


def simulate(
    orders: Sequence[Sequence[Operation]], times: Sequence[StageTimes], transfer: float, chunks: int = 1
) -> Timeline:
    """Run a schedule.

    Args:
        orders: operations of each device, in order.
        times: seconds for each virtual stage; virtual stage ``chunk·stages + device`` is on `device`.
        transfer: seconds to send an activation or its gradient to the next device.
        chunks: virtual stages of a device.
    """
    stages, last = len(orders), len(orders) * chunks - 1
    done: dict[tuple[str, int, int], float] = {}
    position, clock = [0] * stages, [0.0] * stages
    slots: list[list[Slot]] = [[] for _ in range(stages)]
    remaining = sum(map(len, orders))
    while remaining:
        progressed = False
        for device in range(stages):
            order = orders[device]
            while position[device] < len(order):
                operation = order[position[device]]
                virtual = operation.chunk * stages + device
                ready = _ready_at(operation, virtual, last, done, transfer if stages > 1 else 0.0)
                if ready is None:
                    break
                start = max(clock[device], ready)
                end = start + _duration(operation.kind, times[virtual])
                slots[device].append(Slot(operation, start, end))
                clock[device] = end
                if operation.kind != "W":
                    done["F" if operation.kind == "F" else "B", operation.micro_batch, virtual] = end
                position[device] += 1
                remaining -= 1
                progressed = True
        if not progressed:
            raise RuntimeError("the schedule waits for itself")
    busy = tuple(sum(slot.end - slot.start for slot in device) for device in slots)
    span = max((device[-1].end - device[0].start for device in slots if device), default=0.0)
    return Timeline(tuple(map(tuple, slots)), span, busy)


def _duration(kind: str, times: StageTimes) -> float:
    if kind == "F":
        return times.forward
    if kind == "B":
        return times.backward_input
    return times.backward_weight if kind == "W" else times.backward_input + times.backward_weight


def _ready_at(
    operation: Operation, virtual: int, last: int, done: dict[tuple[str, int, int], float], transfer: float
) -> float | None:
    """Return when the inputs of an operation are there, or None if that is not known yet."""
    kind, micro_batch, _ = operation
    if kind == "W":
        return 0.0  # its own device did the backward for the input before
    if kind == "F":
        if virtual == 0:
            return 0.0
        before = done.get(("F", micro_batch, virtual - 1))
        return None if before is None else before + transfer
    if virtual == last:
        return done.get(("F", micro_batch, virtual))
    before = done.get(("B", micro_batch, virtual + 1))
    return None if before is None else before + transfer


def peak_live(
    order: Sequence[Operation], kept: Sequence[float], kept_for_weights: Sequence[float] | None = None
) -> float:
    """Return the most activation bytes that one device holds at once.

    Args:
        order: the device's operations.
        kept: bytes of one micro-batch for each of the device's chunks, from forward to backward.
        kept_for_weights: the part that stays until the weight gradients are computed.
    """
    later = kept_for_weights or [0.0] * len(kept)
    live = peak = 0.0
    for kind, _, chunk in order:
        if kind == "F":
            live += kept[chunk]
            peak = max(peak, live)
        elif kind == "BW":
            live -= kept[chunk]
        elif kind == "B":
            live += later[chunk] - kept[chunk]
        else:
            live -= later[chunk]
    return peak
