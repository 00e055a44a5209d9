"""ZeRO stage 1 (Rajbhandari et al. 2020): optimizer state and updates split over the data-parallel group.

All trained weights of a process lie in one flat tensor, their gradients in another; the parameters are views of them.
Gradients are reduce-scattered, each replica updates its part, weights are all-gathered: as many bytes as a ring
all-reduce. Elements are split, not parameters, so that every replica holds as much; works with any tp and pp.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from llmctl.model.collectives import TRAFFIC, all_gather, reduce_scatter, ring_bytes
from llmctl.training.distributed import World


class Shards:
    """The flat weights of a process, and this replica's part of them.

    Args:
        trainable: (name, parameter), the same on every replica.

    Attributes:
        pieces: this replica's part, as one flat parameter for each parameter that it overlaps.
    """

    def __init__(self, trainable: list[tuple[str, nn.Parameter]], world: World) -> None:
        self.world, self.replicas = world, world.layout.dp
        self.names = [name for name, _ in trainable]
        self.parameters = [parameter for _, parameter in trainable]
        total = sum(parameter.numel() for parameter in self.parameters)
        self._chunk = max(1, -(-total // self.replicas))
        like = self.parameters[0]
        self._weights = torch.zeros(self._chunk * self.replicas, dtype=like.dtype, device=world.device)
        self._gradients = torch.zeros_like(self._weights)
        self._mine = slice(world.dp_rank * self._chunk, (world.dp_rank + 1) * self._chunk)
        self._part = torch.zeros(self._chunk, dtype=like.dtype, device=world.device)
        self.pieces: list[nn.Parameter] = []
        # For each piece: the number of its parameter, and its first element there.
        self.places: list[tuple[int, int]] = []
        start = 0
        for number, parameter in enumerate(self.parameters):
            stop = start + parameter.numel()
            shape = parameter.shape
            self._weights[start:stop] = parameter.detach().flatten()
            parameter.data = self._weights[start:stop].view(shape)
            parameter.grad = self._gradients[start:stop].view(shape)
            self._take(number, start, stop, parameter.ndim)
            start = stop
        if not self.pieces:  # a replica of a very small model: an optimizer wants something to update
            self._add(slice(self._mine.start, self._mine.stop), -1, 0, 2)

    def _take(self, number: int, start: int, stop: int, dimensions: int) -> None:
        low, high = max(start, self._mine.start), min(stop, self._mine.stop)
        if low < high:
            self._add(slice(low, high), number, low - start, dimensions)

    def _add(self, where: slice, number: int, offset: int, dimensions: int) -> None:
        piece = nn.Parameter(self._weights[where])
        piece.whole_dimensions = dimensions  # type: ignore[attr-defined]
        local = slice(where.start - self._mine.start, where.stop - self._mine.start)
        piece.grad = self._part[local]
        self.pieces.append(piece)
        self.places.append((number, offset))

    def reduce(self) -> None:
        """Sum gradients over the replicas; each piece has its own part in `grad`."""
        with TRAFFIC.measure("dp", ring_bytes(self._gradients, self.replicas)):
            reduce_scatter(self._part, self._gradients, self.world.groups["dp"])

    def gather(self) -> None:
        """Give every replica the updated weights."""
        mine = self._weights[self._mine].clone()
        with TRAFFIC.measure("dp", ring_bytes(self._weights, self.replicas)):
            all_gather(self._weights, mine, self.world.groups["dp"])

    def clear(self) -> None:
        """Set gradients to zero; they stay where they are."""
        self._gradients.zero_()

    def gradients(self) -> list[tuple[nn.Parameter | None, torch.Tensor]]:
        """Return (whole parameter, gradient) of each piece; None marks padding."""
        found: list[tuple[nn.Parameter | None, torch.Tensor]] = []
        for piece, (number, _) in zip(self.pieces, self.places, strict=True):
            assert piece.grad is not None
            found.append((self.parameters[number] if number >= 0 else None, piece.grad))
        return found

    def whole_state(self, optimizer: Any, kind: str, parameter: nn.Parameter) -> torch.Tensor:
        """Return a whole parameter's optimizer state; every replica calls it."""
        whole = torch.zeros(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
        for piece, (number, offset) in zip(self.pieces, self.places, strict=True):
            if number >= 0 and self.parameters[number] is parameter:
                whole[offset : offset + piece.numel()] = optimizer.state[piece][kind]
        dist.all_reduce(whole, group=self.world.groups["dp"])
        return whole.view(parameter.shape)

    def spread(self, pieces: list[Any], sums: torch.Tensor) -> torch.Tensor:
        """Return sums [pieces, n] of this replica's pieces as sums of all parameters [parameters, n]."""
        known = {id(piece): number for piece, (number, _) in zip(self.pieces, self.places, strict=True)}
        whole = sums.new_zeros((len(self.parameters), sums.shape[1]))
        for piece, row in zip(pieces, sums, strict=True):
            if known[id(piece)] >= 0:
                whole[known[id(piece)]] += row
        dist.all_reduce(whole, group=self.world.groups["dp"])
        return whole

    def rows_of(self, pieces: list[Any]) -> list[int]:
        """Return the number of the parameter of each piece (padding: any)."""
        known = {id(piece): number for piece, (number, _) in zip(self.pieces, self.places, strict=True)}
        return [max(0, known[id(piece)]) for piece in pieces]
