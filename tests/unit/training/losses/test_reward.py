"""Reward modelling: K-wise equals the double loop, two answers equal Bradley–Terry, the true reward is recovered."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from llmctl.model.config import ModelConfig
from llmctl.model.scalar_head import ScalarModel, load_scalar_model, save_scalar_model, score_last
from llmctl.model.transformer import Transformer
from llmctl.training.losses.reward import RewardLoss, pair_losses

torch.set_num_threads(1)
SHAPE = ModelConfig(
    vocab_size=60, num_layers=2, hidden_size=32, num_heads=4, num_kv_heads=2, ffn_hidden_size=48, init_std=0.2
)


def model(seed: int = 0) -> ScalarModel:
    scalar = ScalarModel(Transformer(SHAPE, seed=seed)).double()
    scalar.initialize_head(0.2, seed)
    return scalar


def test_two_answers_are_bradley_terry() -> None:
    scores = torch.tensor([0.3, -1.2], dtype=torch.float64)
    expected = -math.log(1 / (1 + math.exp(-(0.3 + 1.2))))
    assert float(pair_losses(scores, torch.tensor([[0, 1]]))) == pytest.approx(expected)


def test_all_pairs_of_a_prompt_are_averaged() -> None:
    ids = torch.randint(0, 60, (7, 9), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([9, 4, 6, 7, 8, 5, 3])
    ranks = [[0, 1, 2, 3], [4, 5], [6]]
    pairs, weights = [], []
    for rows in ranks:
        of_prompt = [(a, b) for i, a in enumerate(rows) for b in rows[i + 1 :]]
        pairs += of_prompt
        weights += [1 / max(1, len(of_prompt))] * len(of_prompt)
    batch = {
        "input_ids": ids,
        "lengths": lengths,
        "pairs": torch.tensor(pairs),
        "pair_weights": torch.tensor(weights, dtype=torch.float64),
    }
    scalar = model()
    scores = score_last(scalar, ids, lengths)
    expected = 0.0
    for rows in ranks[:2]:
        losses = [-F.logsigmoid(scores[a] - scores[b]) for i, a in enumerate(rows) for b in rows[i + 1 :]]
        expected += float((sum(losses) / len(losses)).detach())
    loss = RewardLoss()
    assert loss.weight(batch) == 2
    assert float(loss(scalar, batch).total.detach()) == pytest.approx(expected, abs=1e-12)


def test_the_same_answer_twice_has_loss_ln2_and_no_gradient() -> None:
    ids = torch.randint(0, 60, (1, 6), generator=torch.Generator().manual_seed(1)).repeat(2, 1)
    batch = {
        "input_ids": ids,
        "lengths": torch.tensor([6, 6]),
        "pairs": torch.tensor([[0, 1]]),
        "pair_weights": torch.ones(1, dtype=torch.float64),
    }
    scalar = model()
    total = RewardLoss()(scalar, batch).total
    total.backward()
    assert float(total.detach()) == pytest.approx(math.log(2), abs=1e-12)
    assert max(float(p.grad.abs().max()) for p in scalar.parameters() if p.grad is not None) < 1e-12


def test_recovers_the_true_reward_up_to_a_constant() -> None:
    truth = torch.tensor([0.0, 0.7, -0.4, 1.3], dtype=torch.float64)
    learned = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    pairs = torch.tensor([(i, j) for i in range(4) for j in range(4) if i != j])
    # The population loss: each order with the probability that Bradley–Terry gives it.
    weights = torch.sigmoid(truth[pairs[:, 0]] - truth[pairs[:, 1]])
    optimizer = torch.optim.LBFGS([learned], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-14)

    def closure():
        optimizer.zero_grad()
        total = (pair_losses(learned, pairs) * weights).sum()
        total.backward()
        return total

    optimizer.step(closure)
    assert float((learned.detach() - truth).std()) < 1e-4


def test_score_does_not_depend_on_padding_or_batch_mates() -> None:
    scalar = model()
    short = torch.tensor([[5, 6, 7]])
    alone = score_last(scalar, short, torch.tensor([3]))
    together = torch.randint(0, 60, (4, 12), generator=torch.Generator().manual_seed(2))
    together[1, :3] = short
    scores = score_last(scalar, together, torch.tensor([12, 3, 9, 1]))
    assert float((scores[1] - alone[0]).abs().detach()) < 1e-12


@pytest.mark.parametrize("tied", [True, False])
def test_saved_model_scores_the_same_here_and_in_transformers(tmp_path, tied: bool) -> None:
    import dataclasses

    from transformers import AutoModelForSequenceClassification

    shape = dataclasses.replace(SHAPE, tied_embeddings=tied)
    scalar = ScalarModel(Transformer(shape, seed=3), bias=-0.5)
    scalar.initialize_head(0.3)
    save_scalar_model(scalar, tmp_path)
    again = load_scalar_model(tmp_path)
    ids = torch.randint(1, 60, (2, 8), generator=torch.Generator().manual_seed(3))
    lengths = torch.tensor([8, 8])
    with torch.no_grad():
        ours = score_last(scalar, ids, lengths)
        assert torch.equal(score_last(again, ids, lengths), ours)
        theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path, pad_token_id=0).eval()(ids).logits[:, 0]
    assert torch.allclose(theirs + again.bias, ours, atol=1e-5)
