"""PPO reaches π_ref·exp(R/β)/Z on a policy that can be enumerated, and faults that are easy to make do not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from llmctl.rlhf.advantages import advantages_and_returns, token_rewards
from llmctl.training.losses.ppo import PpoLoss, clipped_objective
from llmctl.training.response import response_logprobs

_spec = importlib.util.spec_from_file_location("tabular", Path(__file__).with_name("tabular.py"))
tabular = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tabular)

torch.set_num_threads(1)


def _train(
    reward: torch.Tensor, kl_coef: float, seed: int, *, updates: int = 400, kl_sign: float = 1.0, shift: int = 0
):
    """Run PPO with exact expectations over every response; return (policy, reference, optimum) distributions."""
    ids, mask = tabular.batch_of_all()
    reference, policy = tabular.TabularPolicy(seed), tabular.TabularPolicy(seed)
    with torch.no_grad():
        reference_logprobs, _ = response_logprobs(reference, ids, mask)
    prior = reference_logprobs.sum(1)
    optimum = (prior + reward / kl_coef).softmax(0)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.1, eps=1e-5)
    loss = PpoLoss(clip_ratio=0.2)
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (1 - update / updates)
        with torch.no_grad():
            old, _ = response_logprobs(policy, ids, mask)
            share = old.sum(1).exp()
            rewards, _ = token_rewards(old, reference_logprobs, reward, mask, kl_sign * kl_coef)
            if shift:
                # The fault of several trainers: the score one token past the end of the response.
                plain, _ = token_rewards(old, reference_logprobs, torch.zeros_like(reward), mask, kl_coef)
                scores = rewards - plain
                rewards = plain + torch.roll(scores, shift, 1) * mask
            values = _state_values(policy, ids, mask, rewards, share)
            advantages, _ = advantages_and_returns(rewards, values, mask, 1.0, 0.95)
        for _ in range(2):
            # The objective is homogeneous in A: scaling it by the share makes the sum an exact expectation.
            out = loss(
                policy,
                {"input_ids": ids, "mask": mask, "old_logprobs": old, "advantages": advantages * share.unsqueeze(1)},
            )
            optimizer.zero_grad()
            out.total.backward()
            optimizer.step()
    with torch.no_grad():
        final = response_logprobs(policy, ids, mask)[0].sum(1).exp()
    return final, prior.exp(), optimum


def _state_values(policy, ids, mask, rewards, share) -> torch.Tensor:
    """Return the exact value of each token's state: the expected sum of the rewards from there on."""
    to_go = rewards.flip(1).cumsum(1).flip(1)
    states = policy(ids)[:, :-1].argmax(-1)
    values = torch.zeros_like(rewards)
    for state in states[mask].unique():
        here = (states == state) & mask
        weights = share.unsqueeze(1).expand_as(here)[here]
        values[here] = (to_go[here] * weights).sum() / weights.sum()
    return values


def _reward(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 + seed)
    return torch.rand(len(tabular.sequences()), generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("kl_coef", [0.1, 0.2, 0.5, 1.0])
def test_reaches_the_optimum_of_the_penalised_objective(kl_coef: float) -> None:
    for seed in (0, 1):
        final, prior, optimum = _train(_reward(seed), kl_coef, seed)
        assert tabular.total_variation(final, optimum) < 0.02
        assert tabular.total_variation(prior, optimum) > 0.05, "the test would pass without learning"


def test_mixed_objective_reaches_its_optimum() -> None:
    from llmctl.rlhf.scores import length_reward, mixed_objective

    lengths = tabular.batch_of_all()[1].sum(1)
    reward = _reward(3)
    scores, kl_coef = mixed_objective(reward, lengths, target_length=2)
    wanted = 0.7 * reward + 0.1 * length_reward(lengths, 2)
    assert torch.allclose(scores, wanted.to(scores.dtype))
    assert kl_coef == 0.2
    final, _, optimum = _train(wanted, kl_coef, 3)
    assert tabular.total_variation(final, optimum) < 0.02


def test_wrong_sign_and_misplaced_score_are_seen() -> None:
    reward = _reward(0)
    final, _, optimum = _train(reward, 0.2, 0, updates=150, kl_sign=-1.0)
    assert tabular.total_variation(final, optimum) > 0.1
    final, _, optimum = _train(reward, 0.2, 0, updates=150, shift=1)
    assert tabular.total_variation(final, optimum) > 0.1


def test_ratio_is_one_before_the_first_update() -> None:
    ids, mask = tabular.batch_of_all()
    policy = tabular.TabularPolicy(4)
    old, _ = response_logprobs(policy, ids, mask)
    loss = PpoLoss()
    out = loss(
        policy, {"input_ids": ids, "mask": mask, "old_logprobs": old.detach(), "advantages": torch.ones_like(old)}
    )
    assert loss.largest_deviation < 1e-12
    assert float(out.metrics["clip_fraction"]) == 0.0
    assert float(out.total.detach()) == pytest.approx(-float(mask.sum()))


def test_clipping_stops_the_gradient_where_the_ratio_has_moved_far_enough() -> None:
    old = torch.zeros(4, dtype=torch.float64)
    new = torch.log(torch.tensor([1.5, 1.5, 0.5, 0.5], dtype=torch.float64)).requires_grad_()
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    losses, _ = clipped_objective(new, old, advantages, 0.2)
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([-1.2, 1.5, -0.5, 0.8])
    assert new.grad.tolist() == pytest.approx([0.0, 1.5, -0.5, 0.0])


def test_huge_log_ratios_stay_finite() -> None:
    losses, _ = clipped_objective(torch.tensor([500.0]), torch.tensor([-500.0]), torch.tensor([-1.0]), 0.2)
    assert torch.isfinite(losses).all()


def test_padding_changes_neither_loss_nor_gradient() -> None:
    ids, mask = tabular.batch_of_all()
    old, _ = response_logprobs(tabular.TabularPolicy(1), ids, mask)
    advantages = torch.randn(mask.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * mask
    results = []
    for extra in (0, 5):
        policy = tabular.TabularPolicy(2)
        padded = {
            "input_ids": torch.nn.functional.pad(ids, (0, extra), value=3),
            "mask": torch.nn.functional.pad(mask, (0, extra)),
            "old_logprobs": torch.nn.functional.pad(old.detach(), (0, extra)),
            "advantages": torch.nn.functional.pad(advantages, (0, extra)),
        }
        out = PpoLoss()(policy, padded)
        out.total.backward()
        results.append((out, policy.table.grad.clone()))
    assert float(results[0][0].total) == pytest.approx(float(results[1][0].total), abs=1e-12)
    assert torch.allclose(results[0][1], results[1][1])
    for name in ("clip_fraction", "approx_kl", "entropy"):
        assert float(results[0][0].metrics[name]) == pytest.approx(float(results[1][0].metrics[name]))
