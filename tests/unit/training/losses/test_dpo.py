"""DPO: its optimum, its values in closed form, and what it measures."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
import torch

from llmctl.training.losses.dpo import DpoLoss, preference_losses
from llmctl.training.response import response_logprobs

_spec = importlib.util.spec_from_file_location("tabular", Path(__file__).with_name("tabular.py"))
tabular = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tabular)
torch.set_num_threads(1)


@pytest.mark.parametrize("beta", [0.2, 1.0])
def test_population_optimum_is_that_of_the_penalised_objective(beta: float) -> None:
    ids, mask = tabular.batch_of_all()
    reference, policy = tabular.TabularPolicy(0), tabular.TabularPolicy(0)
    reward = torch.rand(len(ids), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        prior = response_logprobs(reference, ids, mask)[0].sum(1)
    optimum = (prior + reward / beta).softmax(0)
    pairs = [(i, j) for i in range(len(ids)) for j in range(len(ids)) if i != j]
    first = torch.tensor([i for i, _ in pairs])
    second = torch.tensor([j for _, j in pairs])
    weights = torch.sigmoid(reward[first] - reward[second])
    optimizer = torch.optim.LBFGS(policy.parameters(), max_iter=300, tolerance_grad=1e-10, tolerance_change=1e-13)

    def closure():
        optimizer.zero_grad()
        moved = response_logprobs(policy, ids, mask)[0].sum(1) - prior
        total = (preference_losses(moved[first] - moved[second], beta) * weights).sum() / len(pairs)
        total.backward()
        return total

    optimizer.step(closure)
    with torch.no_grad():
        final = response_logprobs(policy, ids, mask)[0].sum(1).exp()
    assert tabular.total_variation(final, optimum) < 1e-3


def test_closed_values() -> None:
    margins = torch.tensor([0.0, 2.0], dtype=torch.float64)
    assert preference_losses(margins, 0.1).tolist() == pytest.approx([math.log(2), math.log(1 + math.exp(-0.2))])
    smooth = preference_losses(margins, 0.1, 0.1)
    assert float(smooth[1]) == pytest.approx(0.9 * math.log(1 + math.exp(-0.2)) + 0.1 * math.log(1 + math.exp(0.2)))
    assert preference_losses(margins, 0.25, variant="ipo").tolist() == pytest.approx([4.0, 0.0])


def test_loss_of_a_batch() -> None:
    ids, mask = tabular.batch_of_all()
    rows = torch.tensor([3, 8, 11, 20])
    policy, reference = tabular.TabularPolicy(1), tabular.TabularPolicy(2)
    with torch.no_grad():
        ref = response_logprobs(reference, ids[rows], mask[rows])[0].sum(1)
        new = response_logprobs(policy, ids[rows], mask[rows])[0].sum(1)
    batch = {"input_ids": ids[rows], "mask": mask[rows], "reference_logprobs": ref}
    loss = DpoLoss(beta=0.3)
    out = loss(policy, batch)
    margins = (new - ref)[:2] - (new - ref)[2:]
    assert loss.weight(batch) == 2
    assert float(out.total.detach()) == pytest.approx(float(-torch.nn.functional.logsigmoid(0.3 * margins).sum()))
    assert float(out.metrics["accuracy"]) == float((margins > 0).sum())
    assert float(out.metrics["margin"]) == pytest.approx(0.3 * float(margins.sum()))
