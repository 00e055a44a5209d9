"""Linear and embedding layers, whole or split over a tensor-parallel group.

Column-parallel layers split their output, row-parallel ones their input (Shoeybi et al. 2019, §3). Every parameter
knows its full shape and which dimension is split, so that initial values, the gradient norm and checkpoints do not
depend on the layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from llmctl.model.collectives import ALONE, TensorGroup, copy_to_group, out_of_split
from llmctl.model.deferred import WeightGradients, deferred_linear
from llmctl.model.initialization import normal_slice

__all__ = ["ALONE", "ColumnLinear", "Embedding", "RMSNorm", "RowLinear", "Shard", "TensorGroup", "shard_of"]


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
        group: set where each process normalises only its own heads or positions, so that the weight's gradient is
            partial.
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
    """A linear layer whose output features are split over the group; the caller has called `into_split`.

    Attributes:
        deferred: set by a pipeline that computes weight gradients later.
    """

    deferred: WeightGradients | None = None

    def __init__(self, inputs: int, outputs: int, std: float, group: TensorGroup = ALONE, bias: bool = False) -> None:
        super().__init__()
        mine = group.share(outputs)
        self.weight = new_parameter((len(mine), inputs), Shard((outputs, inputs), 0, mine.start, std))
        self.bias = new_parameter((len(mine),), Shard((outputs,), 0, mine.start)) if bias else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [..., inputs] to this process's [..., outputs / group size]."""
        if self.deferred is not None and torch.is_grad_enabled():
            return deferred_linear(hidden, self.weight, self.bias, self.deferred)
        return F.linear(hidden, self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer whose input features are split over the group; the output is whole again.

    Attributes:
        deferred: set by a pipeline that computes weight gradients later.
    """

    deferred: WeightGradients | None = None

    def __init__(self, inputs: int, outputs: int, std: float, group: TensorGroup = ALONE) -> None:
        super().__init__()
        mine = group.share(inputs)
        self.group = group
        self.weight = new_parameter((outputs, len(mine)), Shard((outputs, inputs), 1, mine.start, std))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map this process's [..., inputs / group size] to [..., outputs]."""
        if self.deferred is not None and torch.is_grad_enabled():
            return out_of_split(deferred_linear(hidden, self.weight, None, self.deferred), self.group)
        return out_of_split(F.linear(hidden, self.weight), self.group)


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
        return out_of_split(embedded.masked_fill(outside.unsqueeze(-1), 0.0), self.group)
