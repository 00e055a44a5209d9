"""LAMB against the published formula written out, and which parameters decay."""

from __future__ import annotations

import torch

from llmctl.config.load import build
from llmctl.training.config import TrainingConfig
from llmctl.training.optimizers import Lamb, make_optimizer, set_learning_rate


def test_lamb_follows_the_formula():
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(5, 4, generator=generator, dtype=torch.float64))
    optimizer = Lamb([{"params": [weight], "weight_decay": 0.1}], lr=0.02, betas=(0.9, 0.95), eps=1e-6)
    expected = weight.detach().clone()
    m, v = torch.zeros_like(expected), torch.zeros_like(expected)
    for step in range(1, 6):
        gradient = torch.randn(5, 4, generator=generator, dtype=torch.float64)
        weight.grad = gradient.clone()
        optimizer.step()
        m = 0.9 * m + 0.1 * gradient
        v = 0.95 * v + 0.05 * gradient**2
        update = (m / (1 - 0.9**step)) / ((v / (1 - 0.95**step)).sqrt() + 1e-6) + 0.1 * expected
        expected = expected - 0.02 * expected.norm() / update.norm() * update
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-10, atol=1e-12)


def test_lamb_leaves_zero_weights_able_to_move():
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = Lamb([{"params": [weight], "weight_decay": 0.0}], lr=0.1, betas=(0.9, 0.95), eps=1e-6)
    weight.grad = torch.ones(3)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((3,), -0.1), rtol=1e-4, atol=1e-6)


def test_norms_and_biases_do_not_decay():
    config = build(TrainingConfig, {"weight_decay": 0.5, "lr": 1.0})
    for kind in ("adamw", "lamb", "sgd"):
        config.optimizer = kind
        module = torch.nn.Linear(3, 3)
        optimizer = make_optimizer(config, module.parameters())
        decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
        assert decays == {id(module.weight): 0.5, id(module.bias): 0.0}
        assert {group["lr"] for group in optimizer.param_groups} == {0.0}
        set_learning_rate(optimizer, 0.3)
        assert {group["lr"] for group in optimizer.param_groups} == {0.3}


def test_weight_decay_is_decoupled_from_the_learning_direction():
    for kind in ("adamw", "sgd"):
        config = build(TrainingConfig, {"weight_decay": 0.5, "optimizer": kind, "beta1": 0.0})
        weight = torch.nn.Parameter(torch.full((2, 2), 4.0))
        optimizer = make_optimizer(config, [weight])
        set_learning_rate(optimizer, 0.1)
        weight.grad = torch.zeros(2, 2)
        optimizer.step()
        torch.testing.assert_close(weight.detach(), torch.full((2, 2), 4.0 * (1 - 0.1 * 0.5)))
