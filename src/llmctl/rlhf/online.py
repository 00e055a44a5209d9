"""What PPO, GRPO and RLOO share: a loop of answers and updates, its records, and what is watched.

Which prompts an update takes, which answers are sampled and which minibatch holds them are functions of the step
alone, not of the number of processes.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from llmctl import console
from llmctl.artifacts.documents import write_jsonl
from llmctl.artifacts.inputs import open_input
from llmctl.errors import RunFailed
from llmctl.model.huggingface import find_model_folder, load_model, read_model_config
from llmctl.model.transformer import Transformer
from llmctl.rlhf import prompts as prompt_data
from llmctl.rlhf.config import RolloutConfig
from llmctl.rlhf.order import Order
from llmctl.rlhf.prompts import Prompt
from llmctl.rlhf.rewards import Reward, RewardCommand, RewardFunction, RewardModel
from llmctl.rlhf.rollout import LocalRollouts, Rollout, RolloutMaker, sample_answers
from llmctl.rlhf.watch import WINDOW, RewardWatch
from llmctl.training.conversations.template import ChatTemplate, load_chat_template
from llmctl.training.engines.base import Engine, StepReport
from llmctl.training.export import export_model
from llmctl.training.layout import micro_batch_size
from llmctl.training.once import prepare_once
from llmctl.training.respond import check_vocabulary
from llmctl.training.run import Job, TrainingRun, seed_step
from llmctl.training.schedule import learning_rate

TOKENIZER_FOLDER = "tokenizer"
SAMPLES = "samples.jsonl"
# How far the first ratio of an update may be from one. It is one to the last bit where old and new
# log-probabilities come from the same function on the same micro-batch; more means that they do not.
RATIO_TOLERANCE = {"fp64": 1e-6, "fp32": 1e-3, "bf16": 0.1, "fp16": 0.1}
WATCHED = ("score_mean", "response_length", "kl", "share_without_eos")


@dataclass
class Start:
    """What a run begins with.

    Attributes:
        folder: of the model that the policy starts from.
        held_out: a reward model that the policy is not trained against, or None.
    """

    job: Job
    config: Any
    folder: Path
    template: ChatTemplate
    prompts: list[Prompt]
    statistics: dict[str, Any]
    reward: Reward
    held_out: RewardModel | None = None


def start(job: Job) -> Start:
    """Prepare the prompts and load the reward."""
    folder = find_model_folder(job.sources["model"])
    shape = read_model_config(folder)
    seq_len = min(job.config.seq_len, shape.max_seq_len or job.config.seq_len)
    config: RolloutConfig = dataclasses.replace(job.config, seq_len=seq_len)
    config.validate()
    template = load_chat_template(folder)
    check_vocabulary(template, shape.vocab_size, folder)

    def build() -> None:
        template.save(job.root / TOKENIZER_FOLDER)
        source = open_input(job.sources["source"], role="source")
        prompt_data.build(source, template, config.seq_len - config.max_new_tokens, job.root)

    prepare_once(job.world, lambda: prompt_data.is_written(job.root), build)
    prompts, statistics = prompt_data.read(job.root)
    held_out = job.sources.get("held_out_reward")
    return Start(
        dataclasses.replace(job, config=config),
        config,
        folder,
        template,
        prompts,
        statistics,
        _reward(job, config, template),
        RewardModel(held_out, template, job.world.device, config.precision) if held_out is not None else None,
    )


def _reward(job: Job, config: RolloutConfig, template: ChatTemplate) -> Reward:
    if config.reward_command:
        return RewardCommand(config.reward_command)
    if config.reward_function:
        return RewardFunction(job.sources["reward_fn"], config.reward_function)
    return RewardModel(job.sources["reward"], template, job.world.device, config.precision)


class OnlineRun:
    """One run: updates, their records, and what is decided from them.

    Subclasses say what the losses need (`estimate`) and how an update is made (`learn`).
    """

    label = "rl"

    def __init__(self, given: Start, policy: Engine, reference: Transformer) -> None:
        self.given, self.job, self.config, self.template = given, given.job, given.config, given.template
        self.world, self.prompts = given.job.world, given.prompts
        self.policy, self.reference = policy, reference
        self.order = Order(len(self.prompts), self.config.prompts_per_update, self.config.seed, wrap=True)
        self.watch = RewardWatch()
        model: Transformer = policy.model  # type: ignore[assignment]
        self.maker = RolloutMaker(
            LocalRollouts(model, self.template.stop_ids, self.config, self.world.device),
            model,
            reference,
            given.reward,
            self.template,
            self.config,
            self.world.device,
            micro_batch_size(self.config, policy.data_parallel_size),
        )

    # -- what differs ----------------------------------------------------------------------------------------

    def engines(self) -> dict[str, Engine]:
        """Return the engines of the run, by the name that their checkpoints have."""
        return {"policy": self.policy}

    def begin(self, run: TrainingRun) -> None:
        """Say what a person should know, and set what the run's state holds at first."""

    def estimate(self, rollout: Rollout, run: TrainingRun) -> dict[str, Any]:
        """Put into the micro-batches what the losses need; return metrics, `reward_mean` among them."""
        raise NotImplementedError

    def learn(self, run: TrainingRun, rollout: Rollout, step: int) -> tuple[StepReport, dict[str, Any]]:
        """Make the passes of one update; return the policy's last report, and metrics."""
        raise NotImplementedError

    def after(self, run: TrainingRun, metrics: Mapping[str, Any]) -> None:
        """Adapt what is adapted from one update to the next."""

    # -- the loop --------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Make every update that is not made yet, then export."""
        with TrainingRun(self.job, self.engines(), label=self.label) as run:
            self.begin(run)
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
        return {**self.given.statistics, **summary}

    def rollout(self, step: int) -> Rollout:
        """Make this process's answers of an update."""
        chosen = self.order.step(step)
        replicas, mine = self.policy.data_parallel_size, self.policy.data_parallel_rank
        each = self.config.answers_per_prompt
        positions = [position for position in range(mine, len(chosen), replicas) for _ in range(each)]
        first_id = (step - 1) * len(chosen) * each
        rollout = self.maker.make(
            [self.prompts[chosen[position]] for position in positions],
            [first_id + position * each + number % each for number, position in enumerate(positions)],
            [position * self.config.minibatches // len(chosen) for position in positions],
        )
        self._even_out(rollout)
        return rollout

    def _even_out(self, rollout: Rollout) -> None:
        """Give every process the same number of micro-batches, with empty ones where it has fewer."""
        counts = [float(len(part)) for part in rollout.minibatches]
        for part, rows, wanted in zip(rollout.minibatches, rollout.rows, self.world.maximum(counts), strict=True):
            while len(part) < int(wanted):
                part.append({**part[-1], "mask": torch.zeros_like(part[-1]["mask"])})
                rows.append(rows[-1])

    def _update(self, run: TrainingRun, step: int) -> None:
        started = time.perf_counter()
        seed_step(self.config.seed, step, self.world.rank)
        rollout = self.rollout(step)
        rollout_s = time.perf_counter() - started
        estimates = self.estimate(rollout, run)
        report, learned = self.learn(run, rollout, step)
        metrics = {**self._answer_metrics(rollout), **estimates, **learned, "rollout_s": rollout_s}
        (tokens,) = self.world.sum([float(sum(batch["input_ids"].numel() for batch in rollout.batches))])
        run.record(step, report, report.lr, int(tokens), time.perf_counter() - started, **metrics)
        self._remember(run, step, metrics, rollout)

    def passes(
        self, run: TrainingRun, rollout: Rollout, step: int, loss: Any, then: Callable[[list[Any]], None] | None = None
    ) -> tuple[StepReport, dict[str, Any]]:
        """Pass over the answers `ppo_epochs` times, or until the policy has moved far enough.

        Args:
            loss: the policy's; its `largest_deviation` tells how far a ratio was from one.
            then: called after each of the policy's steps with its micro-batches.
        """
        lr = learning_rate(self.config, step)
        report, deviation, passes = StepReport(float("nan")), 0.0, 0
        for epoch in range(self.config.ppo_epochs):
            passes = epoch + 1
            for number, part in enumerate(rollout.minibatches):
                loss.largest_deviation = 0.0
                report = run.update("policy", part, loss, lr, step)
                if epoch == 0 and number == 0:
                    (deviation,) = self.world.maximum([loss.largest_deviation])
                    self._check_ratio(deviation, step)
                if then is not None:
                    then(part)
            if 0 < self.config.max_approx_kl < report.metrics["approx_kl"]:
                break
        return report, {"passes": passes, "ratio_deviation": deviation}

    def _check_ratio(self, deviation: float, step: int) -> None:
        if deviation > RATIO_TOLERANCE[self.config.precision]:
            raise RunFailed(
                f"update {step}: the probability ratio is off by {deviation:.3g} before the first step of the policy",
                "log-probabilities of rollout and training come from different computations; please report this",
            )

    # -- records ---------------------------------------------------------------------------------------------

    def mean(self, values: torch.Tensor) -> float:
        """Return the mean of one value per answer over the answers of all processes."""
        total, count = self.world.sum([float(values.double().sum()), float(values.numel())])
        return total / max(count, 1.0)

    def _answer_metrics(self, rollout: Rollout) -> dict[str, Any]:
        raw = rollout.raw_scores.double()
        mean = self.mean(raw)
        metrics = {
            "score_mean": mean,
            "score_std": max(self.mean(raw.square()) - mean**2, 0.0) ** 0.5,
            "kl": self.mean(rollout.kl),
            "response_length": self.mean(rollout.lengths),
            "share_without_eos": self.mean(torch.tensor([float(not answer.stopped) for answer in rollout.answers])),
        }
        if self.given.held_out is not None:
            metrics["held_out_score"] = self.mean(torch.tensor(self.given.held_out(rollout.answers)))
        return metrics

    def _remember(self, run: TrainingRun, step: int, metrics: dict[str, Any], rollout: Rollout) -> None:
        kept = ("reward_mean", "score_mean", "kl", "response_length", "share_without_eos", "held_out_score")
        summary = {name: round(metrics[name], 4) for name in kept if name in metrics}
        run.state.setdefault("first", summary)
        run.state["last"] = summary
        self.after(run, metrics)
        history = run.state.setdefault("watch", [])
        held_out = [round(metrics["held_out_score"], 6)] if "held_out_score" in metrics else []
        history.append([round(metrics[name], 6) for name in WATCHED] + held_out)
        run.state["watch"] = history[:WINDOW] + history[WINDOW:][-WINDOW:]
        problem = self.watch.look(run.state["watch"])
        if problem and self.world.is_main:
            console.warning(f"update {step}: {problem[0]}", problem[1])
            best = max(range(len(rollout.answers)), key=lambda row: float(rollout.raw_scores[row]))
            answer = rollout.answers[best]
            console.info(
                f"highest score of this update, {float(rollout.raw_scores[best]):.3g}: "
                f"{answer.messages[-1].content[:160]!r} → {answer.text[:400]!r}"
            )

    def _write_samples(self) -> None:
        """Keep answers to the same prompts, with the same random numbers, from before and after."""
        prompts = self.prompts[: self.config.num_samples]
        if not prompts:
            return
        ids = [-1 - position for position in range(len(prompts))]
        rows = []
        for when, model in (("before", self.reference), ("after", self.policy.model)):
            rollouts = LocalRollouts(model, self.template.stop_ids, self.config, self.world.device)  # type: ignore[arg-type]
            answers = sample_answers(rollouts, self.template, prompts, ids)
            for prompt, answer, score in zip(prompts, answers, self.given.reward(answers), strict=True):
                found = {"prompt": prompt.text, "response": answer.text, "score": score, "stopped": answer.stopped}
                rows.append({"when": when, **found})
        write_jsonl(self.job.root, SAMPLES, rows)


def load_reference(given: Start) -> Transformer:
    """Return the frozen copy of the model that the policy starts from."""
    return load_model(given.folder, device=given.job.world.device).eval().requires_grad_(False)


def read_samples(root: Path) -> list[dict[str, Any]]:
    """Return the answers that a finished run kept."""
    path = root / SAMPLES
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
