"""Make the optimizer of a model: AdamW, LAMB or SGD, with weight decay on matrices only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from llmctl.training.config import TrainingConfig

# State tensors of the shape of their parameter, by optimizer; everything else is a step count.
STATE_NAMES = {"adamw": ("exp_avg", "exp_avg_sq"), "lamb": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}


def parameter_groups(parameters: Iterable[torch.nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Return groups with decay for matrices and without for norms and biases."""
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    matrices = [parameter for parameter in trainable if _dimensions(parameter) >= 2]
    others = [parameter for parameter in trainable if _dimensions(parameter) < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _dimensions(parameter: torch.Tensor) -> int:
    # A flat piece of a parameter knows the dimensions of the whole.
    return int(getattr(parameter, "whole_dimensions", parameter.ndim))


def make_optimizer(config: TrainingConfig, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer; its learning rate is 0 until a step sets it."""
    groups = parameter_groups(parameters, config.weight_decay)
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=config.beta1)
    betas = (config.beta1, config.beta2)
    if config.optimizer == "lamb":
        return Lamb(groups, lr=0.0, betas=betas, eps=config.adam_eps)
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=config.adam_eps, fused=True)


def set_learning_rate(optimizer: Any, lr: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = lr


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020, algorithm 2): Adam's direction, scaled per parameter by ‖weight‖ / ‖update‖.

    Attributes:
        square_sums: turns local sums of squares [parameters, 2] (weight, update) into those of whole parameters; set
            where parameters are split over processes. Called once a step, on every process.
    """

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self.square_sums: Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor] = lambda parameters, sums: sums

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        work = [
            (parameter, self._direction(parameter, group), group["lr"])
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        parameters = [parameter for parameter, _, _ in work]
        sums = [torch.stack((parameter.square().sum(), update.square().sum())) for parameter, update, _ in work]
        like = self.param_groups[0]["params"][0] if self.param_groups[0]["params"] else torch.empty(0)
        local = torch.stack(sums) if sums else torch.zeros(0, 2, dtype=like.dtype, device=like.device)
        norms = self.square_sums(parameters, local).sqrt().tolist()
        for (parameter, update, lr), (weight_norm, update_norm) in zip(work, norms, strict=True):
            ratio = weight_norm / update_norm if weight_norm > 0 and update_norm > 0 else 1.0
            parameter.add_(update, alpha=-lr * ratio)

    def _direction(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """Advance the moments and return Adam's direction with weight decay."""
        beta1, beta2 = group["betas"]
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        count = float(state["step"])
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (state["exp_avg_sq"] / (1 - beta2**count)).sqrt_().add_(group["eps"])
        update = (state["exp_avg"] / (1 - beta1**count)).div_(root)
        return update.add_(parameter, alpha=group["weight_decay"])
