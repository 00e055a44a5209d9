"""Rows of token ids as one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def pad_rows(rows: Sequence[Sequence[int]], pad_id: int) -> torch.Tensor:
    """Return rows as one int64 tensor [rows, longest], padded on the right."""
    padded = torch.full((len(rows), max(len(row) for row in rows)), pad_id, dtype=torch.int64)
    for position, row in enumerate(rows):
        padded[position, : len(row)] = torch.tensor(list(row), dtype=torch.int64)
    return padded


def response_mask(starts: Sequence[int], lengths: Sequence[int], width: int) -> torch.Tensor:
    """Return where the *next* token belongs to the response, bool [rows, width − 1].

    Args:
        starts: position of each response's first token.
        lengths: tokens of each row, prompt and response.
        width: of the padded rows.
    """
    positions = torch.arange(1, width).unsqueeze(0)
    return (positions >= torch.tensor(list(starts)).unsqueeze(1)) & (
        positions < torch.tensor(list(lengths)).unsqueeze(1)
    )
