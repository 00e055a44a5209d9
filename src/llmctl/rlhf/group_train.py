"""The training functions of `llmctl rlhf grpo` and `llmctl rlhf rloo`, run in every process."""

from __future__ import annotations

from typing import Any

from llmctl.model.huggingface import load_model
from llmctl.model.transformer import Transformer
from llmctl.rlhf.advantages import group_advantages
from llmctl.rlhf.config import GrpoConfig, RlooConfig
from llmctl.rlhf.online import OnlineRun, Start, load_reference, start
from llmctl.rlhf.rollout import Rollout
from llmctl.training.engines.base import Engine, StepReport
from llmctl.training.engines.choose import make_engine
from llmctl.training.losses.grpo import GrpoLoss
from llmctl.training.losses.rloo import RlooLoss
from llmctl.training.run import Job, TrainingRun


def train(job: Job) -> dict[str, Any]:
    """Prepare the prompts, improve the policy, export it, and keep answers from before and after."""
    given = start(job)
    policy = make_engine(load_model(given.folder), given.config, job.world)
    kind = _RlooRun if isinstance(given.config, RlooConfig) else _GrpoRun
    try:
        return kind(given, policy, load_reference(given)).run()
    finally:
        policy.close()


class _GroupRun(OnlineRun):
    """Advantages of answers against the other answers to the same prompt."""

    loss: Any

    def _put(self, rollout: Rollout, rewards: Any, *, leave_one_out: bool, scale: bool) -> dict[str, Any]:
        size = self.config.group_size
        advantages = group_advantages(rewards, size, leave_one_out=leave_one_out, scale=scale)
        rollout.put("advantages", advantages)
        # A group whose answers all earn the same teaches nothing; many of them mean prompts too easy or too hard.
        groups = rollout.scores.view(-1, size)
        alike = (groups == groups[:, :1]).all(1).float()
        return {"reward_mean": self.mean(rewards), "share_without_spread": self.mean(alike)}

    def learn(self, run: TrainingRun, rollout: Rollout, step: int) -> tuple[StepReport, dict[str, Any]]:
        """Make the passes of one update."""
        return self.passes(run, rollout, step, self.loss)


class _GrpoRun(_GroupRun):
    label = "grpo"

    def __init__(self, given: Start, policy: Engine, reference: Transformer) -> None:
        super().__init__(given, policy, reference)
        config: GrpoConfig = self.config
        self.loss = GrpoLoss(
            config.clip_ratio,
            config.clip_ratio_high or config.clip_ratio,
            kl_coef=config.kl_coef,
            kl_estimator=config.kl_estimator,
            loss_type=config.loss_type,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
        )

    def estimate(self, rollout: Rollout, run: TrainingRun) -> dict[str, Any]:
        """Put each answer's advantage into the micro-batches."""
        scale = self.config.scale_advantages == "group"
        return self._put(rollout, rollout.scores, leave_one_out=False, scale=scale)


class _RlooRun(_GroupRun):
    label = "rloo"

    def __init__(self, given: Start, policy: Engine, reference: Transformer) -> None:
        super().__init__(given, policy, reference)
        self.loss = RlooLoss(self.config.clip_ratio, self.config.temperature)

    def estimate(self, rollout: Rollout, run: TrainingRun) -> dict[str, Any]:
        """Put each answer's advantage into the micro-batches; the KL is part of the reward."""
        return self._put(rollout, rollout.scores - self.config.kl_coef * rollout.kl, leave_one_out=True, scale=False)
