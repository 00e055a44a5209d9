"""Collectives of a tensor-parallel group, with their gradients (Shoeybi et al. 2019, §3; Korthikanti et al. 2022, §4).

Between split layers a tensor is either whole on every process, or (sequence parallelism) split along the positions:
then norms, dropout and the residual stream hold 1/size of the activations, an all-gather stands before split layers
and a reduce-scatter after them. Both move as many bytes as the all-reduce that they replace.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class TensorGroup:
    """The tensor-parallel group of this process: `size` processes, of which this is number `rank`.

    Attributes:
        sequence_parallel: between split layers hidden states are split along the positions.
    """

    size: int = 1
    rank: int = 0
    group: Any = None
    sequence_parallel: bool = False

    def share(self, total: int) -> range:
        """Return which of `total` rows (heads, features) this process holds; `total` is a multiple of `size`."""
        each = total // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    @property
    def splits_sequence(self) -> bool:
        """Tell whether hidden states between split layers are split along the positions."""
        return self.sequence_parallel and self.size > 1


ALONE = TensorGroup()


@dataclass
class Traffic:
    """What this process has sent and waited for since the last `take`, by group (``tp``, ``dp``, ``pp``).

    Attributes:
        sent: bytes; a collective counts as its ring algorithm would send them.
        seconds: time in blocking calls, and in sums of gradients under the backward pass; on a GPU collectives return
            at once and the time is in the computing phases. The part under the backward pass stands as ``dp_hidden``
            too.
    """

    sent: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    _until: dict[str, float] = field(default_factory=dict)

    def add(self, group: str, num_bytes: float) -> None:
        """Count bytes."""
        self.sent[group] = self.sent.get(group, 0.0) + num_bytes

    @contextmanager
    def measure(self, group: str, num_bytes: float) -> Iterator[None]:
        """Count bytes and the time of the block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(group, num_bytes)
            self.seconds[group] = self.seconds.get(group, 0.0) + time.perf_counter() - started

    def note(self, group: str, started: float, num_bytes: float) -> None:
        """Count an exchange in the background that has just ended; time in which several ran counts once.

        Args:
            started: when it began, by `time.perf_counter`.
        """
        now = time.perf_counter()
        begun = max(started, self._until.get(group, 0.0))
        self._until[group] = now
        self.add(group, num_bytes)
        for name in (group, f"{group}_hidden"):
            self.seconds[name] = self.seconds.get(name, 0.0) + max(0.0, now - begun)

    def take(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return (bytes, seconds) by group and begin anew."""
        taken = self.sent, self.seconds
        self.sent, self.seconds = {}, {}
        return taken


TRAFFIC = Traffic()


def ring_bytes(tensor: torch.Tensor, size: int, passes: int = 1) -> float:
    """Return the bytes that each of `size` processes sends: one pass for all-gather and reduce-scatter, two for sums.

    Args:
        tensor: the whole tensor.
    """
    return passes * (size - 1) / size * tensor.numel() * tensor.element_size()


def all_reduce(tensor: torch.Tensor, group: TensorGroup, op: Any = dist.ReduceOp.SUM) -> None:
    """Sum (or reduce otherwise) over the tensor-parallel group, in place."""
    with TRAFFIC.measure("tp", ring_bytes(tensor, group.size, 2)):
        dist.all_reduce(tensor, op=op, group=group.group)


def all_gather(output: torch.Tensor, shard: torch.Tensor, group: Any) -> None:
    """Put the shards of all processes one after another; newer torch renames the function."""
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(output, shard, group=group)


def reduce_scatter(output: torch.Tensor, whole: torch.Tensor, group: Any) -> None:
    """Give each process the sum of its part of everybody's tensor; newer torch renames the function."""
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(output, whole, group=group)


def _gather_positions(shard: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Return [batch, positions, …] of shards [batch, positions / size, …]."""
    batch, length, *rest = shard.shape
    gathered = shard.new_empty((group.size, batch, length, *rest))
    with TRAFFIC.measure("tp", ring_bytes(gathered, group.size)):
        all_gather(gathered.view(-1), shard.contiguous().view(-1), group.group)
    return gathered.transpose(0, 1).reshape(batch, group.size * length, *rest)


def _scatter_positions(partial: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Return this process's positions of the sum over the group."""
    batch, length, *rest = partial.shape
    mine = length // group.size
    parts = partial.reshape(batch, group.size, mine, *rest).transpose(0, 1).contiguous()
    shard = partial.new_empty((batch, mine, *rest))
    with TRAFFIC.measure("tp", ring_bytes(parts, group.size)):
        reduce_scatter(shard.view(-1), parts.view(-1), group.group)
    return shard


class _CopyToGroup(torch.autograd.Function):
    """Identity forward, sum over the group backward: the input of a column-parallel layer."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: TensorGroup) -> torch.Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient = gradients[0].contiguous()
        all_reduce(gradient, ctx.group)
        return gradient, None


class _SumOverGroup(torch.autograd.Function):
    """Sum over the group forward, identity backward: the output of a row-parallel layer."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: TensorGroup) -> torch.Tensor:
        total = tensor.contiguous().clone()
        all_reduce(total, group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


class _GatherPositions(torch.autograd.Function):
    """All-gather forward, reduce-scatter backward."""

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor, group: TensorGroup) -> torch.Tensor:
        ctx.group = group
        return _gather_positions(shard, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _scatter_positions(gradients[0], ctx.group), None


class _ScatterPositions(torch.autograd.Function):
    """Reduce-scatter forward, all-gather backward."""

    @staticmethod
    def forward(ctx: Any, partial: torch.Tensor, group: TensorGroup) -> torch.Tensor:
        ctx.group = group
        return _scatter_positions(partial, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _gather_positions(gradients[0], ctx.group), None


class _JoinPositions(torch.autograd.Function):
    """All-gather forward; backward takes this process's part of a gradient that is whole on every process."""

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor, group: TensorGroup) -> torch.Tensor:
        ctx.mine = slice(group.rank * shard.shape[1], (group.rank + 1) * shard.shape[1])
        return _gather_positions(shard, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0][:, ctx.mine].contiguous(), None


def copy_to_group(tensor: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Hand a replicated tensor to split layers; its gradient is summed over the group."""
    return tensor if group.size == 1 else _CopyToGroup.apply(tensor, group)


def into_split(hidden: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Hand hidden states to column-parallel layers; their gradient is summed over the group."""
    if not group.splits_sequence:
        return copy_to_group(hidden, group)
    device = hidden.device.type
    if torch.is_autocast_enabled(device):  # half the bytes, and what the layers would compute with anyway
        hidden = hidden.to(torch.get_autocast_dtype(device))
    return _GatherPositions.apply(hidden, group)


def out_of_split(partial: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Add the partial results of split layers; the gradient passes unchanged."""
    if group.splits_sequence:
        return _ScatterPositions.apply(partial, group)
    return partial if group.size == 1 else _SumOverGroup.apply(partial, group)


def join_positions(hidden: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Return final hidden states of all positions; what follows gives every process the whole gradient."""
    return _JoinPositions.apply(hidden, group) if group.splits_sequence else hidden


class _Regather:
    """Keep this process's positions of a gathered tensor for the backward pass, and gather again when it is needed."""

    def __init__(self, gathered: torch.Tensor, group: TensorGroup) -> None:
        length = gathered.shape[1] // group.size
        self.group, self.where = group, (gathered.untyped_storage().data_ptr(), gathered.numel())
        self.shard = gathered[:, group.rank * length : (group.rank + 1) * length].detach().clone()
        self.users = 0
        self.again: torch.Tensor | None = None

    def pack(self, tensor: torch.Tensor) -> Any:
        if (tensor.untyped_storage().data_ptr(), tensor.numel()) != self.where or not tensor.is_contiguous():
            return tensor
        self.users += 1
        return tensor.shape

    def unpack(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        again = _gather_positions(self.shard, self.group) if self.again is None else self.again
        self.users -= 1
        # Several layers read the same input: one gather serves them all.
        self.again = again if self.users else None
        return again.view(packed)


def saving_shards(gathered: torch.Tensor, group: TensorGroup, enabled: bool) -> AbstractContextManager[Any]:
    """Return a context in which layers that read `gathered` keep 1/size of it for their backward pass.

    Args:
        gathered: what `into_split` returned.
        enabled: off where whole layers are computed again, which keeps nothing of them anyway.
    """
    if not (enabled and group.splits_sequence and torch.is_grad_enabled()):
        return nullcontext()
    keeper = _Regather(gathered, group)
    return torch.autograd.graph.saved_tensors_hooks(keeper.pack, keeper.unpack)
