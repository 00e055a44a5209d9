"""One round of answers: sample, score, and measure everything that the update needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from llmctl.model.generation import Sampling, generate
from llmctl.model.scalar_head import ScalarModel
from llmctl.model.transformer import Transformer
from llmctl.rlhf.advantages import advantages_and_returns, token_rewards
from llmctl.rlhf.config import PpoConfig
from llmctl.rlhf.padding import pad_rows, response_mask
from llmctl.rlhf.prompts import Prompt
from llmctl.rlhf.rewards import Answer, Reward
from llmctl.rlhf.scores import mixed_objective, shaped_scores
from llmctl.training.conversations.template import ChatTemplate
from llmctl.training.engines.common import autocast
from llmctl.training.response import response_logprobs

Batch = dict[str, torch.Tensor]


def sample_answers(
    model: Transformer,
    template: ChatTemplate,
    prompts: Sequence[Prompt],
    sample_ids: Sequence[int],
    config: PpoConfig,
    device: torch.device,
) -> list[Answer]:
    """Answer prompts from the model's full distribution; what an answer says depends on (seed, sample id) alone."""
    with autocast(config.precision, device):
        generated = generate(
            model,
            [prompt.ids for prompt in prompts],
            max_new_tokens=config.max_new_tokens,
            stop_ids=template.stop_ids,
            sampling=Sampling(temperature=config.temperature),
            seed=config.seed,
            sample_ids=sample_ids,
            batch_size=config.rollout_batch_size,
        )
    return [
        Answer(prompt.messages, prompt.ids, answer.ids, template.decode(answer.ids), answer.stopped)
        for prompt, answer in zip(prompts, generated, strict=True)
    ]


@dataclass
class Rollout:
    """The answers of one update in one process, cut into micro-batches that stay as they are through the update.

    Attributes:
        answers: in the order of the prompts.
        scores: as the reward gave them, before clipping and penalties; [answers].
        batches: micro-batches with all that the losses need, whitening aside.
        kl: summed over each answer's tokens, k1, in nats; [answers].
        rewards: summed over each answer's tokens; [answers].
    """

    answers: list[Answer]
    scores: torch.Tensor
    batches: list[Batch] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)


class RolloutMaker:
    """Makes rollouts with the policy, the reference and the value model of a run.

    Args:
        micro_batch_size: answers that the losses see at once.
    """

    def __init__(
        self,
        policy: Transformer,
        reference: Transformer,
        critic: ScalarModel,
        reward: Reward,
        template: ChatTemplate,
        config: PpoConfig,
        device: torch.device,
        micro_batch_size: int,
    ) -> None:
        self.policy, self.reference, self.critic = policy, reference, critic
        self.reward, self.template, self.config = reward, template, config
        self.device, self.micro_batch_size = device, micro_batch_size

    def make(self, prompts: Sequence[Prompt], sample_ids: Sequence[int], kl_coef: float) -> Rollout:
        """Answer prompts and measure the answers.

        Args:
            kl_coef: weight of the KL penalty; replaced by that of the mixed objective where it is used.
        """
        answers = sample_answers(self.policy, self.template, prompts, sample_ids, self.config, self.device)
        raw = torch.tensor(self.reward(answers), dtype=torch.float32)
        rollout = Rollout(answers, raw)
        stopped = torch.tensor([answer.stopped for answer in answers])
        scores = shaped_scores(
            raw, stopped, clip=self.config.score_clip, missing_eos_penalty=self.config.missing_eos_penalty
        )
        if self.config.objective == "mixed":
            lengths = torch.tensor([len(answer.response_ids) for answer in answers])
            scores, kl_coef = mixed_objective(scores, lengths, self.config.target_length)
        # Like lengths come together; the micro-batches stay the same for old and new log-probabilities, so that the
        # ratio of the first pass is one to the last bit.
        order = sorted(range(len(answers)), key=lambda row: -_length(answers[row]))
        for start in range(0, len(order), self.micro_batch_size):
            rows = order[start : start + self.micro_batch_size]
            self._measure(rollout, [answers[row] for row in rows], scores[rows], kl_coef)
        return rollout

    @torch.no_grad()
    def _measure(self, rollout: Rollout, answers: Sequence[Answer], scores: torch.Tensor, kl_coef: float) -> None:
        batch = self._collate(answers)
        mask, ids = batch["mask"], batch["input_ids"]
        self.policy.eval()
        self.critic.eval()
        with autocast(self.config.precision, self.device):
            old, _ = response_logprobs(self.policy, ids, mask, self.config.temperature)
            reference, _ = response_logprobs(self.reference, ids, mask, self.config.temperature)
            values = self.critic(ids)[:, :-1].masked_fill(~mask, 0.0)
        rewards, kl = token_rewards(old, reference, scores.to(self.device), mask, kl_coef)
        advantages, returns = advantages_and_returns(
            rewards, values.to(rewards.dtype), mask, self.config.gamma, self.config.lam
        )
        rollout.batches.append(
            {
                **batch,
                "old_logprobs": old,
                "advantages": advantages,
                "returns": returns,
                "old_values": values,
            }
        )
        rollout.kl += kl.sum(1).tolist()
        rollout.rewards += rewards.sum(1).tolist()

    def _collate(self, answers: Sequence[Answer]) -> Batch:
        rows = [[*answer.prompt_ids, *answer.response_ids] for answer in answers]
        ids = pad_rows(rows, self.template.pad_id)
        mask = response_mask([len(answer.prompt_ids) for answer in answers], [len(row) for row in rows], ids.shape[1])
        return {"input_ids": ids.to(self.device), "mask": mask.to(self.device)}


def _length(answer: Answer) -> int:
    return len(answer.prompt_ids) + len(answer.response_ids)
