"""Cross-entropy over the vocabulary, a chunk of positions at a time: the logits of a whole batch never exist at once.

The gradients are computed together with the loss, chunk by chunk, while the logits of the chunk are there, as in
Liger Kernel (Hsu et al. 2024): nothing of size positions × vocabulary is kept for the backward pass. The vocabulary
may be split over a tensor-parallel group.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F

from llmctl.model.collectives import ALONE, TensorGroup, all_reduce

IGNORE_INDEX = -100
# Logits of one chunk, in elements: 32 MB in float32.
CHUNK_ELEMENTS = 1 << 23


def chunk_rows(vocab_size: int) -> int:
    """Return how many positions are worked on at once."""
    return max(16, CHUNK_ELEMENTS // max(vocab_size, 1))


def _wide(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _negative_log_likelihood(
    logits: torch.Tensor, labels: torch.Tensor, start: int, vocab_size: int, group: TensorGroup
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (nll [n], probabilities of this process's columns [n, v], local labels [n], whether they are ours [n])."""
    padding = start + logits.shape[1] - vocab_size
    if padding > 0:
        logits[:, logits.shape[1] - padding :] = -torch.inf
    maximum = logits.amax(1)
    if group.size > 1:
        all_reduce(maximum, group, dist.ReduceOp.MAX)
    logits -= maximum.unsqueeze(1)
    local = labels - start
    ours = (local >= 0) & (local < logits.shape[1])
    local = local.clamp(0, logits.shape[1] - 1)
    target = logits.gather(1, local.unsqueeze(1)).squeeze(1).masked_fill(~ours, 0.0)
    exponentials = logits.exp_()
    total = exponentials.sum(1)
    if group.size > 1:
        both = torch.stack((total, target))
        all_reduce(both, group)
        total, target = both[0], both[1]
    return total.log() - target, exponentials.div_(total.unsqueeze(1)), local, ours


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        start: int,
        vocab_size: int,
        group: TensorGroup,
        compute_dtype: torch.dtype,
    ) -> torch.Tensor:
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        matrix = weight.to(compute_dtype)
        grad_hidden = torch.zeros_like(hidden) if need_hidden else None
        # Summed over chunks in the precision of the weight, so that chunks do not add rounding.
        grad_weight = torch.zeros_like(weight) if need_weight else None
        total = torch.zeros((), dtype=torch.float64 if hidden.dtype == torch.float64 else torch.float32)
        total = total.to(hidden.device)
        rows = chunk_rows(weight.shape[0])
        for low in range(0, hidden.shape[0], rows):
            part, wanted = hidden[low : low + rows].to(compute_dtype), labels[low : low + rows]
            valid = wanted != IGNORE_INDEX
            logits = _wide(F.linear(part, matrix))
            losses, gradient, local, ours = _negative_log_likelihood(
                logits, wanted.masked_fill(~valid, 0), start, vocab_size, group
            )
            total += losses.masked_fill(~valid, 0.0).sum()
            if not (need_hidden or need_weight):
                continue
            gradient.scatter_add_(1, local.unsqueeze(1), -ours.to(gradient.dtype).unsqueeze(1))
            gradient.masked_fill_(~valid.unsqueeze(1), 0.0)
            gradient = gradient.to(compute_dtype)
            if grad_hidden is not None:
                grad_hidden[low : low + rows] = gradient @ matrix
            if grad_weight is not None:
                grad_weight += gradient.t() @ part
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.group = group
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        grad_hidden, grad_weight = ctx.saved_tensors
        scale = gradients[0]
        if grad_hidden is not None:
            grad_hidden = grad_hidden * scale.to(grad_hidden.dtype)
            if ctx.group.size > 1:
                all_reduce(grad_hidden, ctx.group)
        if grad_weight is not None:
            grad_weight = grad_weight * scale.to(grad_weight.dtype)
        return grad_hidden, grad_weight, None, None, None, None, None


def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    start: int = 0,
    vocab_size: int | None = None,
    group: TensorGroup = ALONE,
) -> torch.Tensor:
    """Return the summed negative log-likelihood in nats of `labels`, a scalar.

    Args:
        hidden: final hidden states [..., width].
        weight: this process's rows of the output layer [rows, width].
        labels: ids [...]; positions with `IGNORE_INDEX` do not count.
        start: first vocabulary entry of `weight`'s rows.
        vocab_size: full vocabulary; rows beyond it are padding.
        group: the processes that the vocabulary is split over.
    """
    device_type = hidden.device.type
    compute_dtype = hidden.dtype
    if torch.is_autocast_enabled(device_type):
        compute_dtype = torch.get_autocast_dtype(device_type)
    with torch.autocast(device_type, enabled=False):
        return _ChunkedCrossEntropy.apply(
            hidden.reshape(-1, hidden.shape[-1]),
            weight,
            labels.reshape(-1),
            start,
            vocab_size if vocab_size is not None else start + weight.shape[0],
            group,
            compute_dtype,
        )


def token_logprobs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities of `labels` [...] under `logits` [..., vocabulary]; ignored labels get 0."""
    ignored = labels == IGNORE_INDEX
    wide = _wide(logits)
    chosen = wide.gather(-1, labels.masked_fill(ignored, 0).unsqueeze(-1)).squeeze(-1)
    return (chosen - wide.logsumexp(-1)).masked_fill(ignored, 0.0)
