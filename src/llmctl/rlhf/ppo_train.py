"""The training function of `llmctl rlhf ppo`, run in every process."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from llmctl import console
from llmctl.artifacts.documents import write_jsonl
from llmctl.artifacts.inputs import open_input
from llmctl.errors import RunFailed
from llmctl.model.huggingface import find_model_folder, load_model, read_model_config
from llmctl.model.scalar_head import ScalarModel, load_scalar_model
from llmctl.rlhf import prompts as prompt_data
from llmctl.rlhf.advantages import explained_variance, whiten
from llmctl.rlhf.config import PpoConfig
from llmctl.rlhf.kl_control import adapted_kl_coef
from llmctl.rlhf.order import Order
from llmctl.rlhf.prompts import Prompt
from llmctl.rlhf.rewards import Reward, RewardFunction, RewardModel
from llmctl.rlhf.rollout import Rollout, RolloutMaker, sample_answers
from llmctl.rlhf.scores import MIXED_KL, MIXED_SCORE
from llmctl.rlhf.watch import RewardWatch
from llmctl.training.conversations.template import ChatTemplate, load_chat_template
from llmctl.training.engines.base import Engine, StepReport
from llmctl.training.engines.choose import make_engine
from llmctl.training.export import export_model
from llmctl.training.layout import micro_batch_size
from llmctl.training.losses.ppo import PpoLoss
from llmctl.training.losses.value import ValueLoss
from llmctl.training.once import prepare_once
from llmctl.training.respond import check_vocabulary
from llmctl.training.run import Job, TrainingRun, seed_step
from llmctl.training.schedule import learning_rate

TOKENIZER_FOLDER = "tokenizer"
SAMPLES = "samples.jsonl"
# How far the first ratio of an update may be from one. It is one to the last bit where old and new
# log-probabilities come from the same function on the same micro-batch; more means that they do not.
RATIO_TOLERANCE = {"fp64": 1e-6, "fp32": 1e-3, "bf16": 0.1, "fp16": 0.1}


def train(job: Job) -> dict[str, Any]:
    """Prepare the prompts, improve the policy, export it, and keep answers from before and after."""
    folder = find_model_folder(job.sources["model"])
    shape = read_model_config(folder)
    seq_len = min(job.config.seq_len, shape.max_seq_len or job.config.seq_len)
    config: PpoConfig = dataclasses.replace(job.config, seq_len=seq_len)
    config.validate()
    template = load_chat_template(folder)
    check_vocabulary(template, shape.vocab_size, folder)
    prompts, statistics = _prompts(job, config, template)
    reward = _reward(job, config, template)
    job = dataclasses.replace(job, config=config)
    policy = make_engine(load_model(folder), config, job.world)
    critic_config = dataclasses.replace(config, lr=config.critic_lr)
    critic = make_engine(_critic(folder, reward, template), critic_config, job.world)
    reference = load_model(folder, device=job.world.device).eval().requires_grad_(False)
    try:
        run = _PpoRun(job, config, critic_config, template, prompts, policy, critic, reference, reward)
        return {**statistics, **run.run()}
    finally:
        policy.close()
        critic.close()


def _prompts(job: Job, config: PpoConfig, template: ChatTemplate) -> tuple[list[Prompt], dict[str, Any]]:
    def build() -> None:
        template.save(job.root / TOKENIZER_FOLDER)
        source = open_input(job.sources["source"], role="source")
        prompt_data.build(source, template, config.seq_len - config.max_new_tokens, job.root)

    prepare_once(job.world, lambda: prompt_data.is_written(job.root), build)
    return prompt_data.read(job.root)


def _reward(job: Job, config: PpoConfig, template: ChatTemplate) -> Reward:
    if config.reward_function:
        return RewardFunction(job.sources["reward_fn"], config.reward_function)
    return RewardModel(job.sources["reward"], template, job.world.device, config.precision)


def _critic(folder: Path, reward: Reward, template: ChatTemplate) -> ScalarModel:
    """Return the value model: the reward model's decoder where it reads the same tokens, else the policy's."""
    if isinstance(reward, RewardModel) and reward.shares_tokens:
        critic = load_scalar_model(reward.folder)
        critic.bias = 0.0
    else:
        critic = ScalarModel(load_model(folder))
    critic.initialize_head(0.0)  # neutral: the first advantages are the returns
    return critic


class _PpoRun:
    """One run: updates, their records, and what is decided from them."""

    def __init__(
        self,
        job: Job,
        config: PpoConfig,
        critic_config: PpoConfig,
        template: ChatTemplate,
        prompts: list[Prompt],
        policy: Engine,
        critic: Engine,
        reference: Any,
        reward: Reward,
    ) -> None:
        self.job, self.config, self.critic_config, self.template = job, config, critic_config, template
        self.world, self.prompts = job.world, prompts
        self.policy, self.critic, self.reference = policy, critic, reference
        self.order = Order(len(prompts), config.global_batch_size, config.seed, wrap=True)
        self.policy_loss = PpoLoss(config.clip_ratio, config.temperature)
        self.value_loss = ValueLoss(config.value_clip)
        self.watch = RewardWatch()
        self.maker = RolloutMaker(
            policy.model,  # type: ignore[arg-type]
            reference,
            critic.model,  # type: ignore[arg-type]
            reward,
            template,
            config,
            self.world.device,
            micro_batch_size(config, policy.data_parallel_size),
        )

    def run(self) -> dict[str, Any]:
        """Make every update that is not made yet, then export."""
        if self.config.objective == "mixed" and self.world.is_main:
            console.info(
                f"mixed objective: 0.7·score − 0.2·KL + 0.1·R_length; that is a KL coefficient of "
                f"{MIXED_KL / MIXED_SCORE:.3f} on the score"
            )
        engines = {"policy": self.policy, "critic": self.critic}
        with TrainingRun(self.job, engines, label="ppo") as run:
            run.state.setdefault("kl_coef", self.config.kl_coef)
            for step in range(run.step + 1, run.total_steps + 1):
                self._update(run, step)
                run.end_of_step()
            summary = {"updates": run.step, "first": run.state.get("first"), "last": run.state.get("last")}
        extra = {"eos_token_id": list(self.template.stop_ids), "pad_token_id": self.template.pad_id}
        export_model(
            self.policy,
            self.job.root / "model",
            self.config,
            self.world,
            tokenizer_folder=self.job.root / TOKENIZER_FOLDER,
            extra_config=extra,
        )
        if self.world.is_main:
            self._write_samples()
        return summary

    def _update(self, run: TrainingRun, step: int) -> None:
        started = time.perf_counter()
        seed_step(self.config.seed, step, self.world.rank)
        chosen = self.order.step(step)
        replicas, mine = self.policy.data_parallel_size, self.policy.data_parallel_rank
        first_id = (step - 1) * self.config.global_batch_size
        positions = range(mine, len(chosen), replicas)
        kl_coef = float(run.state["kl_coef"])
        rollout = self.maker.make(
            [self.prompts[chosen[position]] for position in positions],
            [first_id + position for position in positions],
            kl_coef,
        )
        rollout_s = time.perf_counter() - started
        whitened = whiten([(batch["advantages"], batch["mask"]) for batch in rollout.batches], self.world.sum)
        for batch, advantages in zip(rollout.batches, whitened, strict=True):
            batch["advantages"] = advantages
        policy_report, value_report, passes, deviation = self._learn(run, rollout, step)
        metrics = self._metrics(rollout, value_report, kl_coef)
        metrics |= {"passes": passes, "ratio_deviation": deviation, "rollout_s": rollout_s}
        (tokens,) = self.world.sum([float(sum(batch["input_ids"].numel() for batch in rollout.batches))])
        run.record(step, policy_report, policy_report.lr, int(tokens), time.perf_counter() - started, **metrics)
        self._remember(run, step, metrics)

    def _learn(self, run: TrainingRun, rollout: Rollout, step: int) -> tuple[StepReport, StepReport, int, float]:
        """Make the passes of one update; return the last reports, the passes made and the first ratio's deviation."""
        lr, critic_lr = learning_rate(self.config, step), learning_rate(self.critic_config, step)
        parts = [rollout.batches[part :: self.config.minibatches] for part in range(self.config.minibatches)]
        policy_report, value_report = StepReport(float("nan")), StepReport(float("nan"))
        deviation, passes = 0.0, 0
        for epoch in range(self.config.ppo_epochs):
            passes = epoch + 1
            for number, part in enumerate(parts):
                self.policy_loss.largest_deviation = 0.0
                policy_report = run.update("policy", part, self.policy_loss, lr, step)
                if epoch == 0 and number == 0:
                    (deviation,) = self.world.maximum([self.policy_loss.largest_deviation])
                    self._check_ratio(deviation, step)
                value_report = run.update("critic", part, self.value_loss, critic_lr, step)
            if 0 < self.config.max_approx_kl < policy_report.metrics["approx_kl"]:
                break
        return policy_report, value_report, passes, deviation

    def _check_ratio(self, deviation: float, step: int) -> None:
        if deviation > RATIO_TOLERANCE[self.config.precision]:
            raise RunFailed(
                f"update {step}: the probability ratio is off by {deviation:.3g} before the first step of the policy",
                "log-probabilities of rollout and training come from different computations; please report this",
            )

    def _metrics(self, rollout: Rollout, value_report: StepReport, kl_coef: float) -> dict[str, Any]:
        answers = rollout.answers
        sums = self.world.sum(
            [
                float(len(answers)),
                float(rollout.scores.double().sum()),
                float(rollout.scores.double().square().sum()),
                float(sum(rollout.rewards)),
                float(sum(rollout.kl)),
                float(sum(len(answer.response_ids) for answer in answers)),
                float(sum(not answer.stopped for answer in answers)),
            ]
        )
        count = max(sums[0], 1.0)
        score_mean = sums[1] / count
        mask = [batch["mask"] for batch in rollout.batches]
        values = torch.cat([batch["old_values"][part] for batch, part in zip(rollout.batches, mask, strict=True)])
        returns = torch.cat([batch["returns"][part] for batch, part in zip(rollout.batches, mask, strict=True)])
        return {
            "reward_mean": sums[3] / count,
            "score_mean": score_mean,
            "score_std": max(sums[2] / count - score_mean**2, 0.0) ** 0.5,
            "kl": sums[4] / count,
            "kl_coef": MIXED_KL if self.config.objective == "mixed" else kl_coef,
            "response_length": sums[5] / count,
            "share_without_eos": sums[6] / count,
            "value_loss": value_report.loss,
            "value_grad_norm": value_report.grad_norm,
            **value_report.metrics,
            "explained_variance": explained_variance(values, returns, torch.ones_like(values, dtype=torch.bool)),
            "returns_mean": float(returns.mean()) if returns.numel() else 0.0,
        }

    def _remember(self, run: TrainingRun, step: int, metrics: dict[str, Any]) -> None:
        kept = ("reward_mean", "score_mean", "kl", "response_length", "share_without_eos")
        summary = {name: round(metrics[name], 4) for name in kept}
        run.state.setdefault("first", summary)
        run.state["last"] = summary
        if self.config.kl_target and self.config.objective == "kl":
            run.state["kl_coef"] = adapted_kl_coef(
                run.state["kl_coef"],
                metrics["kl"],
                target=self.config.kl_target,
                answers=self.config.global_batch_size,
                horizon=self.config.kl_horizon,
            )
        history = run.state.setdefault("watch", [])
        history.append(
            [round(metrics[name], 6) for name in ("score_mean", "response_length", "kl", "share_without_eos")]
        )
        problem = self.watch.look(history)
        if problem and self.world.is_main:
            console.warning(f"update {step}: {problem[0]}", problem[1])

    def _write_samples(self) -> None:
        """Keep answers to the same prompts, with the same random numbers, from before and after."""
        prompts = self.prompts[: self.config.num_samples]
        if not prompts:
            return
        ids = [-1 - position for position in range(len(prompts))]
        rows = []
        for when, model in (("before", self.reference), ("after", self.policy.model)):
            answers = sample_answers(model, self.template, prompts, ids, self.config, self.world.device)  # type: ignore[arg-type]
            scores: Sequence[float] = self.maker.reward(answers)
            rows += [
                {
                    "when": when,
                    "prompt": prompt.text,
                    "response": answer.text,
                    "score": score,
                    "stopped": answer.stopped,
                }
                for prompt, answer, score in zip(prompts, answers, scores, strict=True)
            ]
        write_jsonl(self.job.root, SAMPLES, rows)


def read_samples(root: Path) -> list[dict[str, Any]]:
    """Return the answers that a finished run kept."""
    path = root / SAMPLES
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
