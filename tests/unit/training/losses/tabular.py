"""A policy small enough to enumerate: three tokens, at most three long; its optimum under a KL penalty is known."""

from __future__ import annotations

import itertools

import torch
from torch import nn

VOCABULARY, LENGTH, END = 4, 3, 0
PROMPT = 1


def sequences() -> list[tuple[int, ...]]:
    """Return every response: it ends with `END`, or is `LENGTH` long."""
    found = []
    for length in range(1, LENGTH + 1):
        for body in itertools.product(range(1, VOCABULARY), repeat=length - 1):
            found.append((*body, END))
            if length == LENGTH:
                found += [(*body, last) for last in range(1, VOCABULARY)]
    return sorted(set(found))


class TabularPolicy(nn.Module):
    """One row of logits per prefix; speaks the interface of `Transformer` that the losses use."""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        super().__init__()
        self.states = {
            prefix: index
            for index, prefix in enumerate(
                prefix for length in range(LENGTH) for prefix in itertools.product(range(1, VOCABULARY), repeat=length)
            )
        }
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(len(self.states), VOCABULARY, generator=generator, dtype=torch.float64)
        self.table = nn.Parameter(logits * scale)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return one-hot states [batch, positions, states]; the first token is the prompt."""
        hidden = torch.zeros(*input_ids.shape, len(self.states), dtype=torch.float64)
        for row, ids in enumerate(input_ids.tolist()):
            for position in range(len(ids)):
                state = self.states.get(tuple(ids[1 : position + 1]))
                if state is not None:
                    hidden[row, position, state] = 1.0
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Look the logits up."""
        return hidden @ self.table


def batch_of_all() -> tuple[torch.Tensor, torch.Tensor]:
    """Return (input_ids, mask) of every response after the prompt, padded on the right."""
    rows = sequences()
    ids = torch.zeros(len(rows), LENGTH + 1, dtype=torch.int64)
    mask = torch.zeros(len(rows), LENGTH, dtype=torch.bool)
    ids[:, 0] = PROMPT
    for row, response in enumerate(rows):
        ids[row, 1 : 1 + len(response)] = torch.tensor(response)
        mask[row, : len(response)] = True
    return ids, mask


def total_variation(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return half the summed absolute difference of two distributions."""
    return float(0.5 * (first - second).abs().sum())
