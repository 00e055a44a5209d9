"""The training function of `llmctl rlhf ppo`, run in every process."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from llmctl import console
from llmctl.model.huggingface import load_model
from llmctl.model.scalar_head import ScalarModel, load_scalar_model
from llmctl.model.transformer import Transformer
from llmctl.rlhf.advantages import advantages_and_returns, explained_variance, token_rewards, whiten
from llmctl.rlhf.config import PpoConfig
from llmctl.rlhf.kl_control import adapted_kl_coef
from llmctl.rlhf.online import OnlineRun, Start, load_reference, start
from llmctl.rlhf.rewards import RewardModel
from llmctl.rlhf.rollout import Batch, Rollout
from llmctl.rlhf.scores import MIXED_KL, MIXED_SCORE, mixed_objective
from llmctl.training.engines.base import Engine, StepReport
from llmctl.training.engines.choose import make_engine
from llmctl.training.engines.common import autocast
from llmctl.training.losses.ppo import PpoLoss
from llmctl.training.losses.value import ValueLoss
from llmctl.training.run import Job, TrainingRun
from llmctl.training.schedule import learning_rate


def train(job: Job) -> dict[str, Any]:
    """Prepare the prompts, improve the policy, export it, and keep answers from before and after."""
    given = start(job)
    config: PpoConfig = given.config
    policy = make_engine(load_model(given.folder), config, job.world)
    critic_config = dataclasses.replace(config, lr=config.critic_lr)
    critic = make_engine(_critic(given), critic_config, job.world)
    try:
        return _PpoRun(given, policy, critic, critic_config, load_reference(given)).run()
    finally:
        policy.close()
        critic.close()


def _critic(given: Start) -> ScalarModel:
    """Return the value model: the reward model's decoder where it reads the same tokens, else the policy's."""
    reward = given.reward
    if isinstance(reward, RewardModel) and reward.shares_tokens:
        critic = load_scalar_model(reward.folder)
        critic.bias = 0.0
    else:
        critic = ScalarModel(load_model(given.folder))
    critic.initialize_head(0.0)  # neutral: the first advantages are the returns
    return critic


class _PpoRun(OnlineRun):
    """Advantages from a value model that learns beside the policy."""

    label = "ppo"

    def __init__(
        self, given: Start, policy: Engine, critic: Engine, critic_config: PpoConfig, reference: Transformer
    ) -> None:
        super().__init__(given, policy, reference)
        self.critic, self.critic_config = critic, critic_config
        self.policy_loss = PpoLoss(self.config.clip_ratio, self.config.temperature)
        self.value_loss = ValueLoss(self.config.value_clip)

    def engines(self) -> dict[str, Engine]:
        """Return the engines of the run, by the name that their checkpoints have."""
        return {"policy": self.policy, "critic": self.critic}

    def begin(self, run: TrainingRun) -> None:
        """Say what the mixed objective comes to; begin with the configured KL coefficient."""
        if self.config.objective == "mixed" and self.world.is_main:
            console.info(
                f"mixed objective: 0.7·score − 0.2·KL (nats) + 0.1·R_length (in [−1, 0], beyond "
                f"{self.config.target_length} tokens); that is a KL coefficient of {MIXED_KL / MIXED_SCORE:.3f} on the "
                "score"
            )
        run.state.setdefault("kl_coef", self.config.kl_coef)

    @torch.no_grad()
    def estimate(self, rollout: Rollout, run: TrainingRun) -> dict[str, Any]:
        """Put advantages, returns and old values into the micro-batches."""
        scores, kl_coef = rollout.scores, float(run.state["kl_coef"])
        if self.config.objective == "mixed":
            scores, kl_coef = mixed_objective(scores, rollout.lengths, self.config.target_length)
        model: ScalarModel = self.critic.model  # type: ignore[assignment]
        model.eval()
        for batches, rows in zip(rollout.minibatches, rollout.rows, strict=True):
            for batch, chosen in zip(batches, rows, strict=True):
                self._estimate(model, batch, scores[chosen].to(self.world.device), kl_coef)
        batches_of_all = rollout.batches
        whitened = whiten([(batch["advantages"], batch["mask"]) for batch in batches_of_all], self.world.sum)
        for batch, advantages in zip(batches_of_all, whitened, strict=True):
            batch["advantages"] = advantages
        values, returns = (
            torch.cat([batch[name][batch["mask"]] for batch in batches_of_all]) for name in ("old_values", "returns")
        )
        return {
            "reward_mean": self.mean(scores - kl_coef * rollout.kl),
            "kl_coef": kl_coef,
            "explained_variance": explained_variance(values, returns, torch.ones_like(values, dtype=torch.bool)),
            "returns_mean": self.mean(returns),
        }

    def _estimate(self, model: ScalarModel, batch: Batch, scores: torch.Tensor, kl_coef: float) -> None:
        mask = batch["mask"]
        with autocast(self.config.precision, self.world.device):
            values = model(batch["input_ids"])[:, :-1].masked_fill(~mask, 0.0)
        rewards, _ = token_rewards(batch["old_logprobs"], batch["reference_logprobs"], scores, mask, kl_coef)
        advantages, returns = advantages_and_returns(
            rewards, values.to(rewards.dtype), mask, self.config.gamma, self.config.lam
        )
        batch |= {"advantages": advantages, "returns": returns, "old_values": values}

    def learn(self, run: TrainingRun, rollout: Rollout, step: int) -> tuple[StepReport, dict[str, Any]]:
        """Make the passes of one update, each step of the policy followed by one of the value model."""
        critic_lr = learning_rate(self.critic_config, step)
        reports: list[StepReport] = []

        def improve_critic(part: list[Batch]) -> None:
            reports.append(run.update("critic", part, self.value_loss, critic_lr, step))

        report, metrics = self.passes(run, rollout, step, self.policy_loss, improve_critic)
        value = reports[-1]
        return report, {**metrics, "value_loss": value.loss, "value_grad_norm": value.grad_norm, **value.metrics}

    def after(self, run: TrainingRun, metrics: Mapping[str, Any]) -> None:
        """Adapt the KL coefficient, where it has a target."""
        if self.config.kl_target and self.config.objective == "kl":
            run.state["kl_coef"] = adapted_kl_coef(
                run.state["kl_coef"],
                metrics["kl"],
                target=self.config.kl_target,
                answers=self.config.global_batch_size,
                horizon=self.config.kl_horizon,
            )
