"""Linear and embedding layers, whole or split over a tensor-parallel group, and their collectives.

Column-parallel layers split their output, row-parallel ones their input (Shoeybi et al. 2019, §3). Every parameter
knows its full shape and which dimension is split, so that initial values, the gradient norm and checkpoints do not
depend on the layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from llmctl.model.initialization import normal_slice


@dataclass(frozen=True)
class TensorGroup:
    """The tensor-parallel group of this process: `size` processes, of which this is number `rank`."""

    size: int = 1
    rank: int = 0
    group: Any = None

    def share(self, total: int) -> range:
        """Return which of `total` rows (heads, features) this process holds; `total` is a multiple of `size`."""
        each = total // self.size
        return range(self.rank * each, (self.rank + 1) * each)


ALONE = TensorGroup()


class _CopyToGroup(torch.autograd.Function):
    """Identity forward, sum over the group backward: the input of a column-parallel layer."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _SumOverGroup(torch.autograd.Function):
    """Sum over the group forward, identity backward: the output of a row-parallel layer."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
        total = tensor.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def copy_to_group(tensor: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Hand a replicated tensor to split layers; its gradient is summed over the group."""
    return tensor if group.size == 1 else _CopyToGroup.apply(tensor, group.group)


def sum_over_group(tensor: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Add the partial results of split layers; the gradient passes unchanged."""
    return tensor if group.size == 1 else _SumOverGroup.apply(tensor, group.group)


@dataclass(frozen=True)
class Shard:
    """Where a parameter's values lie in the full tensor.

    Attributes:
        shape: full shape.
        dim: the split dimension; None if every process holds the whole.
        start: first index along `dim`.
        std: standard deviation of the initial values; None marks ones (norms), zero marks zeros (biases).
    """

    shape: tuple[int, ...]
    dim: int | None = None
    start: int = 0
    std: float | None = 0.0

    def initial(self, seed: int, name: str, local_shape: torch.Size) -> torch.Tensor:
        """Return the initial values of this shard, float32."""
        if self.std is None:
            return torch.ones(local_shape)
        if self.std == 0:
            return torch.zeros(local_shape)
        rows, columns = range(self.shape[0]), None
        if self.dim == 0:
            rows = range(self.start, self.start + local_shape[0])
        elif self.dim == 1:
            columns = range(self.start, self.start + local_shape[1])
        return normal_slice(seed, name, self.shape, rows, columns) * self.std


def shard_of(parameter: torch.Tensor) -> Shard:
    """Return where a parameter's values lie in the full tensor (a parameter not made here is whole)."""
    found: Shard | None = getattr(parameter, "shard", None)
    return found if found is not None else Shard(tuple(parameter.shape))


def new_parameter(local_shape: tuple[int, ...], shard: Shard) -> nn.Parameter:
    """Return an uninitialised parameter that knows its place in the full tensor."""
    parameter = nn.Parameter(torch.empty(local_shape))
    parameter.shard = shard  # type: ignore[attr-defined]
    return parameter


class RMSNorm(nn.Module):
    """Scale by the root mean square (Zhang & Sennrich 2019), computed in at least float32.

    Args:
        group: set where each process normalises only its own heads, so that the weight's gradient is partial.
    """

    def __init__(self, width: int, eps: float, group: TensorGroup = ALONE) -> None:
        super().__init__()
        self.eps, self.group = eps, group
        self.weight = new_parameter((width,), Shard((width,), std=None))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""
        wide = hidden if hidden.dtype == torch.float64 else hidden.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return copy_to_group(self.weight, self.group) * wide.to(hidden.dtype)


class ColumnLinear(nn.Module):
    """A linear layer whose output features are split over the group; the caller has called `copy_to_group`."""

    def __init__(self, inputs: int, outputs: int, std: float, group: TensorGroup = ALONE, bias: bool = False) -> None:
        super().__init__()
        mine = group.share(outputs)
        self.weight = new_parameter((len(mine), inputs), Shard((outputs, inputs), 0, mine.start, std))
        self.bias = new_parameter((len(mine),), Shard((outputs,), 0, mine.start)) if bias else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [..., inputs] to this process's [..., outputs / group size]."""
        return F.linear(hidden, self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer whose input features are split over the group; the output is whole again."""

    def __init__(self, inputs: int, outputs: int, std: float, group: TensorGroup = ALONE) -> None:
        super().__init__()
        mine = group.share(inputs)
        self.group = group
        self.weight = new_parameter((outputs, len(mine)), Shard((outputs, inputs), 1, mine.start, std))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map this process's [..., inputs / group size] to [..., outputs]."""
        return sum_over_group(F.linear(hidden, self.weight), self.group)


def padded_vocabulary(vocab_size: int, group: TensorGroup) -> int:
    """Return the rows of the embedding with padding, so that every process of the group holds as many."""
    return -(-vocab_size // group.size) * group.size


class Embedding(nn.Module):
    """Token embedding, rows split over the group; rows beyond the vocabulary are padding and stay zero."""

    def __init__(self, vocab_size: int, width: int, std: float, group: TensorGroup = ALONE) -> None:
        super().__init__()
        mine = group.share(padded_vocabulary(vocab_size, group))
        self.group, self.start, self.rows = group, mine.start, len(mine)
        self.weight = new_parameter((len(mine), width), Shard((vocab_size, width), 0, mine.start, std))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Map ids [...] to [..., width]."""
        if self.group.size == 1:
            return F.embedding(ids, self.weight)
        local = ids - self.start
        outside = (local < 0) | (local >= self.rows)
        embedded = F.embedding(local.masked_fill(outside, 0), self.weight)
        return sum_over_group(embedded.masked_fill(outside.unsqueeze(-1), 0.0), self.group)
