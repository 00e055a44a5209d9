"""Check that parameters which several processes hold are equal to the bit, and name the process that differs.

Replicas start equal and get equal updates; a broken link, a flipped bit or an optimizer that is not deterministic makes
them drift apart without an error, and the loss looks well for long.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from llmctl.errors import RunFailed
from llmctl.model.layers import shard_of
from llmctl.training.distributed import World

_BLOCK = 1 << 22
# Odd, so that multiplication loses no bit (Knuth's multiplicative hash, 64 bits).
_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)
_MESSAGE_BYTES = 2048


def bit_hash(tensor: torch.Tensor) -> torch.Tensor:
    """Return a 64-bit hash of a tensor's bits, int64 scalar on its device; any single changed element changes it."""
    words = tensor.detach().contiguous().flatten().view(torch.int32 if tensor.element_size() >= 4 else torch.int16)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, words.numel(), _BLOCK):
        block = words[start : start + _BLOCK].to(torch.int64)
        places = torch.arange(start, start + block.numel(), device=tensor.device, dtype=torch.int64)
        total += (block * ((2 * places + 1) * _MULTIPLIER)).sum()
    return total


def check_replicas(
    parameters: Sequence[tuple[str, nn.Parameter]], world: World, step: int, tied_copy: nn.Parameter | None = None
) -> None:
    """Compare parameters over the processes that should hold equal ones; every process calls it.

    Args:
        parameters: (name, parameter) of this process.
        tied_copy: the embedding on the first and the last pipeline stage, where both hold it.

    Raises:
        RunFailed: names the parameter and the processes that differ; on every process.
    """
    if world.world_size == 1:
        return
    hashes = {name: bit_hash(parameter) for name, parameter in parameters}
    replicated = [name for name, parameter in parameters if shard_of(parameter).dim is None]
    problem = _compare(hashes, list(hashes), world, "dp") or _compare(hashes, replicated, world, "tp")
    if tied_copy is not None:
        name = next(name for name, parameter in parameters if parameter is tied_copy)
        problem = problem or _compare(hashes, [name], world, "ends")
    (teller,) = world.maximum([float(world.rank) if problem else -1.0])
    if teller < 0:
        return
    buffer = torch.zeros(_MESSAGE_BYTES, dtype=torch.uint8, device=world.device)
    if world.rank == int(teller):
        text = json.dumps(problem).encode()[:_MESSAGE_BYTES]
        buffer[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(world.device)
    dist.broadcast(buffer, int(teller))
    told = json.loads(bytes(buffer.cpu().tolist()).rstrip(b"\0"))
    raise RunFailed(
        f"after update {step} {told}",
        "a link, a memory or a device of that process is faulty, or its software differs; go on from the last "
        "checkpoint without it",
    )


def _compare(hashes: dict[str, torch.Tensor], names: Sequence[str], world: World, axis: str) -> str | None:
    """Return what differs within this process's group along an axis, the same on each of its processes."""
    group = world.groups.get(axis)
    if group is None or not names:
        return None
    ranks = dist.get_process_group_ranks(group)
    if len(ranks) < 2:
        return None
    mine = torch.stack([hashes[name] for name in names])
    found = [torch.empty_like(mine) for _ in ranks]
    dist.all_gather(found, mine, group=group)
    table = torch.stack(found).tolist()
    for column, name in enumerate(names):
        values = [row[column] for row in table]
        if len(set(values)) > 1:
            common, count = Counter(values).most_common(1)[0]
            if 2 * count <= len(values):
                return f"processes {', '.join(map(str, ranks))} hold different values of `{name}`"
            different = [str(rank) for rank, value in zip(ranks, values, strict=True) if value != common]
            return f"process {', '.join(different)} holds other values of `{name}` than the rest of its group"
    return None
