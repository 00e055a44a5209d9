"""One round of answers: sample, score, and measure everything that the update needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from llmctl.model.generation import Generated, Sampling, generate
from llmctl.model.transformer import Transformer
from llmctl.rlhf.config import RolloutConfig
from llmctl.rlhf.padding import pad_rows, response_mask
from llmctl.rlhf.prompts import Prompt
from llmctl.rlhf.rewards import Answer, Reward
from llmctl.rlhf.scores import shaped_scores
from llmctl.training.conversations.template import ChatTemplate
from llmctl.training.engines.common import autocast
from llmctl.training.response import response_logprobs

Batch = dict[str, torch.Tensor]


class RolloutEngine(Protocol):
    """Writes answers with the policy's present weights, from its full distribution.

    The log-probabilities that the losses compare with are always computed anew by the trained model, so an engine with
    other arithmetic cannot bias them; but what it samples must be that distribution, at `temperature`.
    """

    def answer(self, prompts: Sequence[Sequence[int]], sample_ids: Sequence[int]) -> list[Generated]:
        """Answer prompts (token ids); an answer depends on the weights, the seed and its sample id alone."""
        ...


class LocalRollouts:
    """Answers with the policy itself, in this process."""

    def __init__(
        self, model: Transformer, stop_ids: Sequence[int], config: RolloutConfig, device: torch.device
    ) -> None:
        self.model, self.stop_ids, self.config, self.device = model, stop_ids, config, device

    def answer(self, prompts: Sequence[Sequence[int]], sample_ids: Sequence[int]) -> list[Generated]:
        """Answer prompts; see `RolloutEngine`."""
        with autocast(self.config.precision, self.device):
            return generate(
                self.model,
                prompts,
                max_new_tokens=self.config.max_new_tokens,
                stop_ids=self.stop_ids,
                sampling=Sampling(temperature=self.config.temperature),
                seed=self.config.seed,
                sample_ids=sample_ids,
                batch_size=self.config.rollout_batch_size,
            )


def sample_answers(
    rollouts: RolloutEngine, template: ChatTemplate, prompts: Sequence[Prompt], sample_ids: Sequence[int]
) -> list[Answer]:
    """Answer prompts, and decode the answers for the reward."""
    generated = rollouts.answer([prompt.ids for prompt in prompts], sample_ids)
    return [
        Answer(prompt.messages, prompt.ids, answer.ids, template.decode(answer.ids), answer.stopped, prompt.record)
        for prompt, answer in zip(prompts, generated, strict=True)
    ]


@dataclass
class Rollout:
    """The answers of one update in one process, cut into micro-batches that stay as they are through the update.

    Attributes:
        answers: in the order of the prompts.
        raw_scores: as the reward gave them; [answers].
        scores: after clipping and penalties; [answers].
        kl: summed over each answer's tokens, k1, in nats; [answers].
        minibatches: the micro-batches of each; they hold `input_ids`, `mask`, `old_logprobs`, `reference_logprobs`.
        rows: the answers of each micro-batch, in the same nesting.
    """

    answers: list[Answer]
    raw_scores: torch.Tensor
    scores: torch.Tensor
    kl: torch.Tensor
    minibatches: list[list[Batch]] = field(default_factory=list)
    rows: list[list[list[int]]] = field(default_factory=list)

    @property
    def batches(self) -> list[Batch]:
        """Return the micro-batches of all minibatches."""
        return [batch for part in self.minibatches for batch in part]

    @property
    def lengths(self) -> torch.Tensor:
        """Return the tokens of each answer, int64 [answers]."""
        return torch.tensor([len(answer.response_ids) for answer in self.answers])

    def put(self, name: str, values: torch.Tensor) -> None:
        """Give every micro-batch its part of one value per answer, [answers]."""
        for batches, rows in zip(self.minibatches, self.rows, strict=True):
            for batch, chosen in zip(batches, rows, strict=True):
                batch[name] = values[chosen].to(batch["input_ids"].device)


class RolloutMaker:
    """Makes rollouts with the policy and the reference of a run.

    Args:
        micro_batch_size: answers that the losses see at once.
    """

    def __init__(
        self,
        rollouts: RolloutEngine,
        policy: Transformer,
        reference: Transformer,
        reward: Reward,
        template: ChatTemplate,
        config: RolloutConfig,
        device: torch.device,
        micro_batch_size: int,
    ) -> None:
        self.rollouts, self.policy, self.reference = rollouts, policy, reference
        self.reward, self.template, self.config = reward, template, config
        self.device, self.micro_batch_size = device, micro_batch_size

    def make(self, prompts: Sequence[Prompt], sample_ids: Sequence[int], minibatch_of: Sequence[int]) -> Rollout:
        """Answer prompts and measure the answers.

        Args:
            minibatch_of: the minibatch of each prompt's answer.
        """
        answers = sample_answers(self.rollouts, self.template, prompts, sample_ids)
        raw = torch.tensor(self.reward(answers), dtype=torch.float32)
        stopped = torch.tensor([answer.stopped for answer in answers])
        scores = shaped_scores(
            raw, stopped, clip=self.config.score_clip, missing_eos_penalty=self.config.missing_eos_penalty
        )
        rollout = Rollout(answers, raw, scores, torch.zeros(len(answers)))
        for number in range(self.config.minibatches):
            mine = [row for row in range(len(answers)) if minibatch_of[row] == number]
            # Like lengths come together; the micro-batches stay the same for old and new log-probabilities, so that
            # the ratio of the first pass is one to the last bit.
            mine.sort(key=lambda row: -_length(answers[row]))
            parts = [
                mine[start : start + self.micro_batch_size] for start in range(0, len(mine), self.micro_batch_size)
            ]
            rollout.rows.append(parts)
            rollout.minibatches.append([self._measure(rollout, part) for part in parts])
        return rollout

    @torch.no_grad()
    def _measure(self, rollout: Rollout, rows: Sequence[int]) -> Batch:
        batch = self._collate([rollout.answers[row] for row in rows])
        mask, ids = batch["mask"], batch["input_ids"]
        self.policy.eval()
        with autocast(self.config.precision, self.device):
            old, _ = response_logprobs(self.policy, ids, mask, self.config.temperature)
            reference, _ = response_logprobs(self.reference, ids, mask, self.config.temperature)
        rollout.kl[list(rows)] = (old - reference).sum(1).float().cpu()
        return {**batch, "old_logprobs": old, "reference_logprobs": reference}

    def _collate(self, answers: Sequence[Answer]) -> Batch:
        rows = [[*answer.prompt_ids, *answer.response_ids] for answer in answers]
        ids = pad_rows(rows, self.template.pad_id)
        mask = response_mask([len(answer.prompt_ids) for answer in answers], [len(row) for row in rows], ids.shape[1])
        return {"input_ids": ids.to(self.device), "mask": mask.to(self.device)}


def _length(answer: Answer) -> int:
    return len(answer.prompt_ids) + len(answer.response_ids)
