"""What rollouts sample, and what is measured from them."""

from __future__ import annotations

import pytest
import torch

from llmctl.model.huggingface import load_model
from llmctl.rlhf.config import PpoConfig
from llmctl.rlhf.prompts import Prompt
from llmctl.rlhf.rollout import LocalRollouts, RolloutMaker
from llmctl.training.conversations.records import Message
from llmctl.training.response import response_logprobs


def settings(**changes) -> PpoConfig:
    return PpoConfig(**{"precision": "fp32", "max_new_tokens": 6, "seq_len": 64, "missing_eos_penalty": 0.0, **changes})


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_first_tokens_come_from_the_full_distribution(base, template, temperature: float) -> None:
    from scipy import stats

    model, prompt = load_model(base).eval(), [5, 30, 61, 200]
    config = settings(max_new_tokens=1, temperature=temperature, rollout_batch_size=500)
    rollouts = LocalRollouts(model, template.stop_ids, config, torch.device("cpu"))
    count = 3000
    answers = rollouts.answer([prompt] * count, list(range(count)))
    with torch.no_grad():
        shares = (model.logits(model(torch.tensor([prompt])))[0, -1].double() / temperature).softmax(-1)
    seen = torch.bincount(torch.tensor([answer.ids[0] for answer in answers]), minlength=len(shares)).double()
    # Bins of tokens ordered by probability: a hidden top-k or top-p would empty the last ones.
    order = shares.argsort(descending=True)
    bins = torch.arange(len(shares)) * 16 // len(shares)
    expected = torch.zeros(16, dtype=torch.float64).index_add(0, bins, shares[order]) * count
    found = torch.zeros(16, dtype=torch.float64).index_add(0, bins, seen[order])
    assert float(expected[8:].sum()) > 100, "the test could not see a hidden top-k"
    assert stats.chisquare(found.numpy(), expected.numpy()).pvalue > 1e-3


def test_micro_batches_and_minibatches_hold_every_answer_once_with_logprobs_equal_to_recomputation(
    base, template
) -> None:
    policy, reference = load_model(base), load_model(base)
    prompts = [Prompt(list(range(3, 4 + n)), (Message("user", str(n)),)) for n in range(8)]
    config = settings(minibatches=2)
    device = torch.device("cpu")
    rollouts = LocalRollouts(policy, template.stop_ids, config, device)
    maker = RolloutMaker(
        rollouts, policy, reference, lambda answers: [float(len(a.response_ids)) for a in answers], template, config,
        device, 3,
    )  # fmt: skip
    rollout = maker.make(prompts, list(range(8)), [n // 4 for n in range(8)])
    assert [sorted(row for part in rows for row in part) for rows in rollout.rows] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    generated = rollouts.answer([prompt.ids for prompt in prompts], list(range(8)))
    for batches, parts in zip(rollout.minibatches, rollout.rows, strict=True):
        for batch, rows in zip(batches, parts, strict=True):
            assert batch["mask"].sum(1).tolist() == [len(rollout.answers[row].response_ids) for row in rows]
            for line, row in enumerate(rows):
                # Alone and without padding, and as the cache saw it while it was written: the same numbers.
                whole = torch.tensor([[*prompts[row].ids, *rollout.answers[row].response_ids]])
                mask = torch.zeros(1, whole.shape[1] - 1, dtype=torch.bool)
                mask[0, len(prompts[row].ids) - 1 :] = True
                with torch.no_grad():
                    alone = response_logprobs(policy.eval(), whole, mask)[0][mask]
                assert torch.allclose(batch["old_logprobs"][line][batch["mask"][line]], alone, atol=1e-5)
                assert torch.allclose(torch.tensor(generated[row].logprobs), alone, atol=1e-5)
    assert rollout.kl.abs().max() < 1e-5
    rollout.put("number", torch.arange(8.0))
    assert [batch["number"].tolist() for batch in rollout.batches] == [
        [float(row) for row in rows] for part in rollout.rows for rows in part
    ]
