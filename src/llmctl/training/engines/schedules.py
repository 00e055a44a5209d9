"""Pipeline schedules: the order of work on every device, for the engine that runs it and the plan that simulates it.

Sources: 1F1B (Narayanan et al. 2019), interleaved (Narayanan et al. 2021, §2.2), ZB-H1 and ZB-H2 (Qi et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from llmctl.errors import unknown_name


class Operation(NamedTuple):
    """One piece of work of one device.

    Attributes:
        kind: ``F`` forward; ``B`` backward for the input; ``W`` backward for the weights; ``BW`` both at once.
        micro_batch: from 0.
        chunk: which of the device's virtual stages, from 0.
    """

    kind: str
    micro_batch: int
    chunk: int = 0


def one_forward_one_backward(stages: int, micro_batches: int, chunks: int = 1) -> list[list[Operation]]:
    """Return 1F1B: stage i starts with p−i−1 forwards, then alternates."""
    orders = []
    for stage in range(stages):
        warm_up = min(stages - stage - 1, micro_batches)
        order = [Operation("F", index) for index in range(warm_up)]
        for index in range(micro_batches - warm_up):
            order += [Operation("F", warm_up + index), Operation("BW", index)]
        order += [Operation("BW", index) for index in range(micro_batches - warm_up, micro_batches)]
        orders.append(order)
    return orders


def gpipe(stages: int, micro_batches: int, chunks: int = 1) -> list[list[Operation]]:
    """Return GPipe: all forwards, then all backwards."""
    forward = [Operation("F", index) for index in range(micro_batches)]
    return [forward + [Operation("BW", index) for index in range(micro_batches)] for _ in range(stages)]


def interleaved(stages: int, micro_batches: int, chunks: int) -> list[list[Operation]]:
    """Return interleaved 1F1B: each device holds `chunks` virtual stages (micro-batches in groups of `stages`)."""
    total = micro_batches * chunks

    def at(position: int, backward: bool) -> tuple[int, int]:
        group, inside = divmod(position, stages * chunks)
        chunk = inside // stages
        return group * stages + inside % stages, chunks - 1 - chunk if backward else chunk

    orders = []
    for stage in range(stages):
        warm_up = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
        if micro_batches == stages:
            warm_up = total
        order = [Operation("F", *at(index, False)) for index in range(warm_up)]
        for index in range(total - warm_up):
            order += [Operation("F", *at(warm_up + index, False)), Operation("BW", *at(index, True))]
        order += [Operation("BW", *at(index, True)) for index in range(total - warm_up, total)]
        orders.append(order)
    return orders


def zero_bubble_h1(stages: int, micro_batches: int, chunks: int = 1) -> list[list[Operation]]:
    """Return ZB-H1: 1F1B with the weight gradients of stage i put off by i micro-batches, to fill the end."""
    return _zero_bubble(
        stages, micro_batches, lambda stage: min(stages - stage - 1, micro_batches), lambda stage: stage
    )


def zero_bubble_h2(stages: int, micro_batches: int, chunks: int = 1) -> list[list[Operation]]:
    """Return ZB-H2: twice as many forwards before the first backward, at up to twice the memory."""
    return _zero_bubble(
        stages, micro_batches, lambda stage: min(2 * (stages - stage - 1), micro_batches), lambda stage: 2 * stage
    )


def _zero_bubble(
    stages: int, micro_batches: int, warm_up_of: Callable[[int], int], delay_of: Callable[[int], int]
) -> list[list[Operation]]:
    orders = []
    for stage in range(stages):
        warm_up, delay = warm_up_of(stage), delay_of(stage)
        order = [Operation("F", index) for index in range(warm_up)]
        weights = 0
        for index in range(micro_batches):
            if warm_up + index < micro_batches:
                order.append(Operation("F", warm_up + index))
            order.append(Operation("B", index))
            if index >= delay:
                order.append(Operation("W", weights))
                weights += 1
        order += [Operation("W", index) for index in range(weights, micro_batches)]
        orders.append(order)
    return orders


SCHEDULES: dict[str, Callable[[int, int, int], list[list[Operation]]]] = {
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zb-h1": zero_bubble_h1,
    "zb-h2": zero_bubble_h2,
    "gpipe": gpipe,
}


@lru_cache(maxsize=512)
def orders_of(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> list[list[Operation]]:
    """Return the operations of every device under the named schedule; kept, so not to be changed."""
    if schedule not in SCHEDULES:
        raise unknown_name("schedule", schedule, SCHEDULES)
    return SCHEDULES[schedule](stages, micro_batches, chunks)
