"""GRPO and RLOO reach the optimum that belongs to each, on a policy that can be enumerated."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from llmctl.rlhf.advantages import group_advantages
from llmctl.training.losses.grpo import GrpoLoss, kl_in_loss
from llmctl.training.losses.rloo import RlooLoss
from llmctl.training.response import response_logprobs

_spec = importlib.util.spec_from_file_location("tabular", Path(__file__).with_name("tabular.py"))
tabular = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tabular)
torch.set_num_threads(1)


def _reward(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 + seed)
    return torch.rand(len(tabular.sequences()), generator=generator, dtype=torch.float64)


def _train(loss, advantages_of, seed: int, updates: int = 200, kl=None):
    """Update with exact expectations over every response; return (policy, reference) as log-probabilities by token.

    In a group of all responses, each as often as it is likely, the group's mean is the expected reward.
    """
    ids, mask = tabular.batch_of_all()
    reference, policy = tabular.TabularPolicy(seed), tabular.TabularPolicy(seed)
    with torch.no_grad():
        prior, _ = response_logprobs(reference, ids, mask)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.1, eps=1e-5)
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (1 - update / updates)
        with torch.no_grad():
            old, _ = response_logprobs(policy, ids, mask)
            share = old.sum(1).exp()
            advantages = advantages_of(old, prior, share)
        batch = {"input_ids": ids, "mask": mask, "old_logprobs": old, "reference_logprobs": prior}
        # The objective is homogeneous in A: scaling it by the share makes the sum an exact expectation.
        total = loss(policy, {**batch, "advantages": advantages * share}).total
        if kl is not None:
            logprobs, _ = response_logprobs(policy, ids, mask)
            total = total + (kl(logprobs, prior) * mask * share.unsqueeze(1)).sum()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    with torch.no_grad():
        return response_logprobs(policy, ids, mask)[0].sum(1).exp(), prior


@pytest.mark.parametrize("kl_coef", [0.2, 1.0])
def test_rloo_reaches_the_optimum_of_the_penalised_objective(kl_coef: float) -> None:
    reward = _reward(0)

    def advantages(old, prior, share):
        whole = reward - kl_coef * (old - prior).sum(1)
        return whole - (whole * share).sum()

    final, prior = _train(RlooLoss(), advantages, 0)
    optimum = (prior.sum(1) + reward / kl_coef).softmax(0)
    assert tabular.total_variation(final, optimum) < 0.02
    assert tabular.total_variation(prior.sum(1).exp(), optimum) > 0.05


def _optimum_of_grpo(prior: torch.Tensor, reward: torch.Tensor, kl_coef: float, estimator: str) -> torch.Tensor:
    """Return where GRPO with its KL in the loss comes to rest, by backward induction.

    The KL of a token pulls that token only: the value of a choice is the expected reward alone, without later KL.
    With k2 a state's choices are π_ref·exp(Q/β)/Z; with k3 they are β·π_ref/(β + V − Q), with V their mean of Q.
    """
    rows = tabular.sequences()
    start = {(): 0.0}
    ends = dict(zip(rows, reward.tolist(), strict=True))
    steps: dict[tuple[int, ...], dict[int, float]] = {}
    for row, logprobs in zip(rows, prior.exp().tolist(), strict=True):
        for position, token in enumerate(row):
            steps.setdefault(row[:position], {})[token] = logprobs[position]
    value: dict[tuple[int, ...], float] = {**start, **ends}
    chosen: dict[tuple[int, ...], dict[int, float]] = {}
    for state in sorted(steps, key=len, reverse=True):
        tokens = sorted(steps[state])
        ref = torch.tensor([steps[state][token] for token in tokens], dtype=torch.float64)
        q = torch.tensor([value[(*state, token)] for token in tokens], dtype=torch.float64)
        if estimator == "k2":
            policy = (ref.log() + q / kl_coef).softmax(0)
        else:
            low, high = q.max() - kl_coef, q.max() + 1
            for _ in range(200):
                middle = (low + high) / 2
                total = (kl_coef * ref / (kl_coef + middle - q)).sum()
                low, high = (middle, high) if total > 1 else (low, middle)
            policy = kl_coef * ref / (kl_coef + high - q)
        chosen[state] = dict(zip(tokens, policy.tolist(), strict=True))
        value[state] = float((policy * q).sum())
    shares = []
    for row in rows:
        share = 1.0
        for position, token in enumerate(row):
            share *= chosen[row[:position]][token]
        shares.append(share)
    return torch.tensor(shares, dtype=torch.float64)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_grpo_reaches_the_optimum_that_belongs_to_its_estimator(estimator: str) -> None:
    reward, kl_coef = _reward(1), 0.3

    def advantages(old, prior, share):
        return reward - (reward * share).sum()

    def kl(logprobs, prior):
        return kl_coef * kl_in_loss(logprobs, prior, estimator)

    final, prior = _train(GrpoLoss(), advantages, 1, kl=kl)
    optimum = _optimum_of_grpo(prior, reward, kl_coef, estimator)
    assert float(optimum.sum()) == pytest.approx(1.0, abs=1e-6)
    assert tabular.total_variation(final, optimum) < 0.02
    assert tabular.total_variation(prior.sum(1).exp(), optimum) > 0.05


def test_advantages_of_groups() -> None:
    rewards = torch.tensor([1.0, 2.0, 3.0, 6.0, 5.0, 5.0, 5.0, 5.0])
    plain = group_advantages(rewards, 4, leave_one_out=False, scale=False)
    assert plain.tolist() == [-2.0, -1.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0]
    out = group_advantages(rewards, 4, leave_one_out=True, scale=False)
    for row in range(4):
        others = [float(rewards[other]) for other in range(4) if other != row]
        assert float(out[row]) == pytest.approx(float(rewards[row]) - sum(others) / 3)
    scaled = group_advantages(rewards, 4, leave_one_out=False, scale=True)
    spread = float(rewards[:4].std())
    assert scaled[:4].tolist() == pytest.approx([value / (spread + 1e-4) for value in (-2, -1, 0, 3)])
    assert scaled[4:].tolist() == [0.0] * 4, "a group whose rewards are alike teaches nothing, and is no NaN"


def _batch(extra: int = 0):
    ids, mask = tabular.batch_of_all()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        old, _ = response_logprobs(tabular.TabularPolicy(1), ids, mask)
        reference, _ = response_logprobs(tabular.TabularPolicy(3), ids, mask)
    pad = torch.nn.functional.pad
    return {
        "input_ids": pad(ids, (0, extra), value=3),
        "mask": pad(mask, (0, extra)),
        "old_logprobs": pad(old, (0, extra)),
        "reference_logprobs": pad(reference, (0, extra)),
        "advantages": torch.randn(len(ids), generator=generator, dtype=torch.float64),
    }


LOSSES = {
    **{kind: GrpoLoss(kl_coef=0.1, loss_type=kind, max_new_tokens=3) for kind in ("dapo", "grpo", "dr_grpo")},
    "rloo": RlooLoss(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_padding_and_cutting_change_neither_loss_nor_gradient(name: str) -> None:
    loss, results = LOSSES[name], []
    whole, padded = _batch(), _batch(5)
    parts = [{key: value[start : start + 7] for key, value in whole.items()} for start in range(0, 40, 7)]
    for batches in ([whole], [padded], parts):
        policy = tabular.TabularPolicy(2)
        weight = sum(loss.weight(batch) for batch in batches)
        total = sum(loss(policy, batch).total for batch in batches) / weight
        total.backward()
        results.append((float(total.detach()), policy.table.grad.clone()))
    for total, gradient in results[1:]:
        assert total == pytest.approx(results[0][0], abs=1e-12)
        assert torch.allclose(gradient, results[0][1])


def test_what_the_losses_are_averaged_over() -> None:
    batch = _batch()
    policy = tabular.TabularPolicy(1)  # the old policy: every ratio is one
    lengths = batch["mask"].sum(1).double()
    advantages = batch["advantages"]
    expected = {
        "dapo": -(advantages * lengths).sum() / lengths.sum(),
        "grpo": -advantages.mean(),
        "dr_grpo": -(advantages * lengths).sum() / 3 / len(lengths),
    }
    for kind, value in expected.items():
        loss = GrpoLoss(loss_type=kind, max_new_tokens=3)
        assert float(loss(policy, batch).total.detach()) / loss.weight(batch) == pytest.approx(float(value))
        assert loss.largest_deviation < 1e-12


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_kl_stands_in_the_loss_with_its_sign(estimator: str) -> None:
    batch = {**_batch(), "advantages": torch.zeros(40, dtype=torch.float64)}
    policy = tabular.TabularPolicy(1)
    out = GrpoLoss(kl_coef=0.5, kl_estimator=estimator)(policy, batch)
    kl = kl_in_loss(batch["old_logprobs"], batch["reference_logprobs"], estimator)[batch["mask"]].sum()
    assert float(kl) > 1.0
    assert float(out.total.detach()) == pytest.approx(0.5 * float(kl))
    assert float(out.metrics["kl_loss"]) == pytest.approx(float(kl))


def test_estimators_of_the_kl_agree_where_the_policies_do() -> None:
    same = torch.tensor([-1.0, -2.0])
    for estimator in ("k2", "k3"):
        assert kl_in_loss(same, same, estimator).tolist() == [0.0, 0.0]
        near = kl_in_loss(same, same + 1e-2, estimator)
        assert near.tolist() == pytest.approx([5e-5, 5e-5], rel=2e-2)
        assert torch.isfinite(kl_in_loss(same, same + 500, estimator)).all()
