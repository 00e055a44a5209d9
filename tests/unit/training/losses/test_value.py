"""The value loss: plain and clipped error, and what it counts."""

from __future__ import annotations

import pytest
import torch

from llmctl.training.losses.value import ValueLoss, clipped_value_error


def test_clipping_takes_the_larger_error() -> None:
    values = torch.tensor([1.0, 0.1, -1.0])
    old, returns = torch.zeros(3), torch.tensor([2.0, 1.0, 1.0])
    losses, clipped = clipped_value_error(values, old, returns, 0.2)
    # near = 0.2, 0.1, -0.2
    assert losses.tolist() == pytest.approx([0.5 * 1.8**2, 0.5 * 0.9**2, 0.5 * 2.0**2])
    assert clipped.tolist() == [True, False, False]
    plain, none = clipped_value_error(values, old, returns, 0.0)
    assert plain.tolist() == pytest.approx([0.5, 0.5 * 0.81, 2.0]) and not none.any()


def test_counts_response_tokens_only() -> None:
    class Constant(torch.nn.Module):
        def forward(self, ids):
            return torch.arange(ids.numel(), dtype=torch.float64).view(ids.shape)

    batch = {
        "input_ids": torch.zeros(1, 5, dtype=torch.int64),
        "mask": torch.tensor([[False, True, True, False]]),
        "old_values": torch.zeros(1, 4, dtype=torch.float64),
        "returns": torch.tensor([[99.0, 0.0, 0.0, 99.0]], dtype=torch.float64),
    }
    loss = ValueLoss(clip_range=0.0)
    assert loss.weight(batch) == 2
    # The value of a token stands at the position before it: positions 1 and 2.
    assert float(loss(Constant(), batch).total) == pytest.approx(0.5 * (1 + 4))
