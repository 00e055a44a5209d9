"""From scores to advantages: KL-penalised rewards, generalised advantage estimation, whitening.

Everything is [batch, positions − 1], aligned with the tokens' log-probabilities: entry t belongs to token t + 1 and
to the state before it. Entries outside the response (mask False) are zero and change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def last_response_position(mask: torch.Tensor) -> torch.Tensor:
    """Return the index of the last response token of each row, int64 [batch] (0 for a row without one)."""
    positions = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    return positions.masked_fill(~mask, 0).amax(1)


def token_rewards(
    logprobs: torch.Tensor,
    reference_logprobs: torch.Tensor,
    scores: torch.Tensor,
    mask: torch.Tensor,
    kl_coef: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (reward, kl) per token: −kl_coef·kl everywhere, plus the score at the last token of the response.

    The estimator is k1, log π − log π_ref: as a *reward* it alone leads to π_ref·exp(score/kl_coef); the
    never-negative ones lead elsewhere.

    Args:
        scores: [batch], of each whole response.
    """
    kl = (logprobs - reference_logprobs).masked_fill(~mask, 0.0)
    rewards = -kl_coef * kl
    last = last_response_position(mask).unsqueeze(1)
    present = mask.any(1, keepdim=True)
    rewards = rewards.scatter_add(1, last, scores.to(rewards.dtype).unsqueeze(1) * present)
    return rewards, kl


def advantages_and_returns(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return generalised advantage estimates (Schulman et al. 2016, eq. 16) and the returns A + V.

    Args:
        values: of the state before each token; past the end of a response the value is 0.
        gamma: discount per token.
        lam: 1 gives returns less values, 0 one-step errors.
    """
    counted = mask.to(values.dtype)
    values = values * counted
    advantages = torch.zeros_like(values)
    following = torch.zeros_like(values[:, 0])
    next_value = torch.zeros_like(values[:, 0])
    for t in range(values.shape[1] - 1, -1, -1):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        following = (delta + gamma * lam * following) * counted[:, t]
        advantages[:, t] = following
        next_value = values[:, t]
    return advantages, (advantages + values) * counted


def whiten(
    parts: Sequence[tuple[torch.Tensor, torch.Tensor]],
    total: Callable[[Sequence[float]], Sequence[float]] = lambda sums: sums,
) -> list[torch.Tensor]:
    """Return values with mean 0 and variance 1 over the response tokens of the whole update, 0 elsewhere.

    Args:
        parts: (values, mask) of each micro-batch.
        total: adds sums over all processes, so that every process whitens alike.
    """
    chosen = [values[mask].double() for values, mask in parts]
    count, plain, squares = total(
        [
            float(sum(part.numel() for part in chosen)),
            float(sum(part.sum() for part in chosen)),
            float(sum(part.square().sum() for part in chosen)),
        ]
    )
    if count < 2:
        return [values.masked_fill(~mask, 0.0) for values, mask in parts]
    mean = plain / count
    scale = (max(squares / count - mean * mean, 0.0) + 1e-8) ** -0.5
    return [((values - mean) * scale).masked_fill(~mask, 0.0) for values, mask in parts]


def explained_variance(values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor) -> float:
    """Return 1 − Var(returns − values) / Var(returns) over the response tokens; NaN where the returns are constant."""
    wanted, predicted = returns[mask], values[mask]
    variance = wanted.var(unbiased=False) if wanted.numel() else torch.zeros(())
    if not float(variance):
        return float("nan")
    return 1.0 - float((wanted - predicted).var(unbiased=False) / variance)


def group_advantages(rewards: torch.Tensor, group_size: int, *, leave_one_out: bool, scale: bool) -> torch.Tensor:
    """Return each answer's reward less that of its group: the answers to the same prompt.

    Args:
        rewards: [prompts · group_size], the answers to a prompt next to one another.
        leave_one_out: the baseline is the mean of the *other* answers, which is unbiased; else of the whole group.
        scale: divide by the group's standard deviation (+ 1e-4, so that a group of equal rewards gives zeros).
    """
    groups = rewards.double().view(-1, group_size)
    centred = groups - groups.mean(1, keepdim=True)
    if leave_one_out:
        centred = centred * (group_size / (group_size - 1))
    if scale:
        centred = centred / (groups.std(1, keepdim=True) + 1e-4)
    return centred.flatten().to(rewards.dtype)
