"""Backward passes in two parts: gradients of the inputs at once, those of the weights later (Qi et al. 2024).

A zero-bubble pipeline sends the gradient of a stage's input on before it computes the gradients of its weights, which
then fill what would be waiting.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class WeightGradients:
    """Weight gradients that wait, micro-batch by micro-batch."""

    def __init__(self) -> None:
        self._waiting: deque[list[tuple[nn.Parameter, nn.Parameter | None, torch.Tensor, torch.Tensor]]] = deque()

    def begin(self) -> None:
        """Begin the backward pass of another micro-batch."""
        self._waiting.append([])

    def add(self, weight: Any, bias: Any, inputs: torch.Tensor, gradient: torch.Tensor) -> None:
        """Keep what the gradients of a linear layer are computed from."""
        self._waiting[-1].append((weight, bias, inputs, gradient))

    @torch.no_grad()
    def compute(self) -> None:
        """Compute and add the weight gradients of the micro-batch that has waited longest."""
        for weight, bias, inputs, gradient in self._waiting.popleft():
            rows = gradient.reshape(-1, gradient.shape[-1])
            if weight.requires_grad:
                _accumulate(weight, rows.t() @ inputs.reshape(-1, inputs.shape[-1]))
            if bias is not None and bias.requires_grad:
                _accumulate(bias, rows.sum(0))


def _accumulate(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = gradient.to(parameter.dtype)
    else:
        parameter.grad.add_(gradient)


class _DeferredLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, bias: Any, store: WeightGradients, dtype: Any) -> torch.Tensor:
        # The parameters go as attributes: their gradients are added to them, not returned.
        ctx.store, ctx.weight, ctx.bias, ctx.dtype = store, weight, bias, hidden.dtype
        hidden = hidden.to(dtype)
        ctx.save_for_backward(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            return F.linear(hidden, weight.to(dtype), None if bias is None else bias.to(dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (hidden,) = ctx.saved_tensors
        gradient = gradients[0].to(hidden.dtype)
        ctx.store.add(ctx.weight, ctx.bias, hidden, gradient)
        back = gradient @ ctx.weight.detach().to(hidden.dtype) if ctx.needs_input_grad[0] else None
        return None if back is None else back.to(ctx.dtype), None, None, None, None


def deferred_linear(
    hidden: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter | None, store: WeightGradients
) -> torch.Tensor:
    """Return a linear layer's output; its weight gradients wait in `store`."""
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    out: torch.Tensor = _DeferredLinear.apply(hidden, weight, bias, store, dtype)
    return out
