"""Rewards per token, advantages and whitening against their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from llmctl.rlhf.advantages import (
    advantages_and_returns,
    explained_variance,
    last_response_position,
    token_rewards,
    whiten,
)
from llmctl.rlhf.scores import length_reward, shaped_scores


def example(extra: int = 0):
    generator = torch.Generator().manual_seed(0)
    mask = torch.tensor(
        [[0, 0, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]], dtype=torch.bool
    )
    rewards = torch.randn(4, 6, generator=generator, dtype=torch.float64) * mask
    values = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    pad = (0, extra)
    return tuple(torch.nn.functional.pad(item, pad) for item in (rewards, values, mask))


def test_score_stands_at_the_last_token_and_kl_everywhere() -> None:
    _, _, mask = example()
    logprobs, reference = torch.full((4, 6), -1.0), torch.full((4, 6), -1.5)
    scores = torch.tensor([10.0, 20.0, 30.0, 40.0])
    rewards, kl = token_rewards(logprobs, reference, scores, mask, 0.1)
    assert last_response_position(mask).tolist() == [4, 2, 5, 0]
    assert torch.allclose(kl, 0.5 * mask)
    expected = -0.05 * mask
    for row, column in enumerate([4, 2, 5]):
        expected[row, column] += scores[row]
    assert torch.allclose(rewards, expected)
    # A response without tokens earns nothing.
    assert float(rewards[3].abs().sum()) == 0


def test_lambda_one_is_returns_less_values() -> None:
    rewards, values, mask = example()
    advantages, returns = advantages_and_returns(rewards, values, mask, 1.0, 1.0)
    to_go = rewards.flip(1).cumsum(1).flip(1)
    assert torch.allclose(advantages[mask], (to_go - values)[mask])
    assert torch.allclose(returns[mask], to_go[mask])


def test_lambda_zero_is_the_one_step_error() -> None:
    rewards, values, mask = example()
    advantages, _ = advantages_and_returns(rewards, values, mask, 0.9, 0.0)
    following = torch.cat([(values * mask)[:, 1:], torch.zeros(4, 1)], 1)
    assert torch.allclose(advantages[mask], (rewards + 0.9 * following - values)[mask])


def test_matches_the_sum_of_discounted_errors() -> None:
    rewards, values, mask = example()
    gamma, lam = 0.97, 0.8
    advantages, _ = advantages_and_returns(rewards, values, mask, gamma, lam)
    for row in range(4):
        steps = [t for t in range(6) if mask[row, t]]
        for i, t in enumerate(steps):
            expected = 0.0
            for k, u in enumerate(steps[i:]):
                after = float(values[row, u + 1]) if u + 1 < 6 and mask[row, u + 1] else 0.0
                expected += (gamma * lam) ** k * (float(rewards[row, u]) + gamma * after - float(values[row, u]))
            assert float(advantages[row, t]) == pytest.approx(expected)


def test_padding_changes_nothing() -> None:
    plain = advantages_and_returns(*example(), 1.0, 0.95)
    padded = advantages_and_returns(*example(7), 1.0, 0.95)
    for first, second in zip(plain, padded, strict=True):
        assert torch.equal(first, second[:, :6]) and not second[:, 6:].any()
    (first,), (second,) = whiten([(plain[0], example()[2])]), whiten([(padded[0], example(7)[2])])
    assert torch.allclose(first, second[:, :6])


def test_whitening_counts_response_tokens_only() -> None:
    rewards, values, mask = example()
    values = values + 1000.0 * ~mask  # whatever stands outside must not matter
    (white,) = whiten([(values, mask)])
    assert float(white[mask].mean()) == pytest.approx(0.0, abs=1e-9)
    assert float(white[mask].var(unbiased=False)) == pytest.approx(1.0, abs=1e-6)
    assert not white[~mask].any()
    single = torch.zeros_like(mask)
    single[0, 2] = True
    assert torch.isfinite(whiten([(rewards, single)])[0]).all()
    halves = whiten([(values[:2], mask[:2]), (values[2:], mask[2:])])
    assert torch.allclose(torch.cat(halves), white), "micro-batches must not be whitened one by one"


def test_explained_variance() -> None:
    _, values, mask = example()
    assert explained_variance(values, values, mask) == 1.0
    assert explained_variance(torch.zeros_like(values), values, mask) == pytest.approx(0.0)
    assert math.isnan(explained_variance(values, torch.ones_like(values), mask))


def test_penalty_is_subtracted_where_an_answer_does_not_stop() -> None:
    scores = torch.tensor([-3.0, -3.0, 30.0])
    shaped = shaped_scores(scores, torch.tensor([True, False, True]), clip=10.0, missing_eos_penalty=1.0)
    assert shaped.tolist() == [-3.0, -4.0, 10.0]


def test_length_reward_is_between_minus_one_and_zero() -> None:
    assert length_reward(torch.tensor([0, 10, 15, 20, 90]), 10).tolist() == [0.0, 0.0, -0.5, -1.0, -1.0]
