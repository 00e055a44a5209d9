"""Log-probabilities of responses: the one function behind old, new and reference log-probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def response_logprobs(
    model: Any, input_ids: torch.Tensor, mask: torch.Tensor, temperature: float = 1.0, *, with_entropy: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the log-probability of each response token, and the entropy it was chosen at.

    Logits are made at response positions only, in at least float32: bfloat16 would be off by several percent.

    Args:
        model: a `Transformer`.
        input_ids: int64 [batch, positions], prompt and response, padded on the right.
        mask: bool [batch, positions − 1]; True where the *next* token belongs to the response.
        temperature: divides the logits, as it did when the response was sampled.
        with_entropy: compute the entropy too (without a gradient).

    Returns:
        Two tensors [batch, positions − 1], zero outside the response: log-probabilities, and entropies or None.
    """
    import torch

    hidden = model(input_ids)[:, :-1][mask]
    logits = model.logits(hidden)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    if temperature != 1.0:
        wide = wide / temperature
    normaliser = wide.logsumexp(-1)
    chosen = wide.gather(-1, input_ids[:, 1:][mask].unsqueeze(-1)).squeeze(-1)
    logprobs = torch.zeros(mask.shape, dtype=wide.dtype, device=wide.device).masked_scatter(mask, chosen - normaliser)
    if not with_entropy:
        return logprobs, None
    with torch.no_grad():
        entropies = normaliser - (wide.softmax(-1) * wide).sum(-1)
        entropy = torch.zeros_like(logprobs).masked_scatter(mask, entropies)
    return logprobs, entropy
