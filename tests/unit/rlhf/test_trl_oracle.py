"""Losses against TRL's trainers: the same model and batch give the same number, and the same tokens are learned."""

from __future__ import annotations

import json
import warnings

import pytest
import torch

from llmctl.model.huggingface import load_model
from llmctl.model.scalar_head import ScalarModel, save_scalar_model
from llmctl.rlhf.advantages import group_advantages
from llmctl.rlhf.padding import pad_rows, response_mask
from llmctl.training.losses.dpo import DpoLoss
from llmctl.training.losses.grpo import GrpoLoss
from llmctl.training.losses.next_token import NextTokenLoss
from llmctl.training.losses.reward import RewardLoss
from llmctl.training.losses.rloo import RlooLoss
from llmctl.training.response import response_logprobs

pytestmark = pytest.mark.slow
CLOSE = 1e-5


@pytest.fixture(scope="module", autouse=True)
def trl():
    """Skip, visibly, where TRL is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("trl", reason="TRL is an oracle for developers")


@pytest.fixture(scope="module")
def reference(made, tmp_path_factory):
    """Another model than the policy, so that log-ratios are not all zero."""
    return made.tiny_model(tmp_path_factory.mktemp("models") / "reference", seed=7)


def _hf(folder, kind="AutoModelForCausalLM", **more):
    import transformers

    return getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32, **more)


def _tokenizer(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def _arguments(cls, tmp_path, **more):
    """Return TRL's settings with everything that is not the loss off."""
    return cls(
        output_dir=str(tmp_path / "trl"), use_cpu=True, report_to=[], bf16=False, fp16=False, disable_tqdm=True,
        per_device_train_batch_size=4, **more,
    )  # fmt: skip


def _comparisons(count: int = 4) -> list[dict[str, str]]:
    words = ["cat", "the quick fox", "hello hello world", "brown", "dog and owl", "a"]
    return [
        {"prompt": f"hello {words[n % 6]}", "chosen": f"the {words[(n + 1) % 6]}", "rejected": words[(n + 3) % 6]}
        for n in range(count)
    ]


@pytest.mark.parametrize("variant", ["sigmoid", "ipo"])
def test_dpo(trl, tmp_path, base, reference, variant: str) -> None:
    from datasets import Dataset

    arguments = _arguments(
        trl.DPOConfig, tmp_path, beta=0.3, loss_type=[variant], label_smoothing=0.0, disable_dropout=True
    )
    trainer = trl.DPOTrainer(
        model=_hf(base), ref_model=_hf(reference), args=arguments, train_dataset=Dataset.from_list(_comparisons()),
        processing_class=_tokenizer(base),
    )  # fmt: skip
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        theirs = float(trainer.compute_loss(trainer.model, dict(batch)))
    mask = batch["completion_mask"][:, 1:].bool()
    ids = batch["input_ids"]
    with torch.no_grad():
        totals = response_logprobs(load_model(reference), ids, mask)[0].sum(1)
        ours = {"input_ids": ids, "mask": mask, "reference_logprobs": totals}
        loss = DpoLoss(0.3, variant=variant)  # type: ignore[arg-type]
        value = float(loss(load_model(base), ours).total) / loss.weight(ours)
    assert abs(value - theirs) < CLOSE * max(1.0, abs(theirs))


def test_reward(trl, tmp_path, base) -> None:
    from datasets import Dataset

    scalar = ScalarModel(load_model(base))
    scalar.initialize_head(0.5, seed=3)
    save_scalar_model(scalar, tmp_path / "reward", base)
    theirs_model = _hf(tmp_path / "reward", "AutoModelForSequenceClassification", num_labels=1)
    trainer = trl.RewardTrainer(
        model=theirs_model, args=_arguments(trl.RewardConfig, tmp_path, disable_dropout=True),
        train_dataset=Dataset.from_list(_comparisons()), processing_class=_tokenizer(base),
    )  # fmt: skip
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        theirs = float(trainer.compute_loss(trainer.model, dict(batch)))
    rows = len(batch["input_ids"])
    pairs = torch.tensor([[row, row + rows // 2] for row in range(rows // 2)])
    ours = {
        "input_ids": batch["input_ids"],
        "lengths": batch["attention_mask"].sum(1),
        "pairs": pairs,
        "pair_weights": torch.ones(len(pairs)),
    }
    loss = RewardLoss()
    with torch.no_grad():
        value = float(loss(scalar.eval(), ours).total) / loss.weight(ours)
    assert abs(value - theirs) < CLOSE


def _rollout(base, reference):
    """Return (TRL's inputs, our batch) of eight answers to two prompts, scored by moved policies."""
    generator = torch.Generator().manual_seed(0)
    prompts = [[10, 20, 30, 40], [50, 60]]
    answers = [torch.randint(10, 300, (length,), generator=generator).tolist() for length in (3, 5, 1, 4, 2, 6, 3, 5)]
    rows = [[*prompts[number // 4], *answer] for number, answer in enumerate(answers)]
    starts = [len(prompts[number // 4]) for number in range(8)]
    ids = pad_rows(rows, 1)
    mask = response_mask(starts, [len(row) for row in rows], ids.shape[1])
    policy = load_model(base)
    with torch.no_grad():
        # An old policy close to the new one, so that some ratios are clipped and some are not.
        old = response_logprobs(policy, ids, mask)[0]
        old = old + 0.25 * torch.randn(old.shape, generator=generator) * mask
        ref = response_logprobs(load_model(reference), ids, mask)[0]
    rewards = torch.tensor([1.0, 0.0, 0.5, 2.0, 3.0, 3.0, -1.0, 0.0])
    width = max(map(len, answers))
    wide = torch.zeros(8, width)
    theirs = {
        "prompt_ids": torch.tensor([[1] * (4 - len(p)) + p for p in (prompts[n // 4] for n in range(8))]),
        "prompt_mask": torch.tensor([[0] * (4 - len(p)) + [1] * len(p) for p in (prompts[n // 4] for n in range(8))]),
        "completion_ids": torch.tensor([answer + [1] * (width - len(answer)) for answer in answers]),
        "completion_mask": torch.tensor([[1] * len(answer) + [0] * (width - len(answer)) for answer in answers]),
        "old_per_token_logps": wide.clone(),
        "ref_per_token_logps": wide.clone(),
    }
    for row, answer in enumerate(answers):
        theirs["old_per_token_logps"][row, : len(answer)] = old[row][mask[row]]
        theirs["ref_per_token_logps"][row, : len(answer)] = ref[row][mask[row]]
    ours = {"input_ids": ids, "mask": mask, "old_logprobs": old, "reference_logprobs": ref}
    return theirs, ours, rewards


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo"])
def test_grpo(trl, tmp_path, base, reference, loss_type: str) -> None:
    from datasets import Dataset

    arguments = _arguments(
        trl.GRPOConfig, tmp_path, beta=0.1, loss_type=loss_type, epsilon=0.2, epsilon_high=0.3, num_generations=4,
        use_bias_correction_kl=False,
        max_completion_length=8,
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model=_hf(base), reward_funcs=lambda completions, **_: [0.0] * len(completions), args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "hello"}] * 8), processing_class=_tokenizer(base),
    )  # fmt: skip
    theirs, ours, rewards = _rollout(base, reference)
    groups = rewards.view(2, 4)
    advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
    ours["advantages"] = group_advantages(rewards, 4, leave_one_out=False, scale=True)
    assert torch.allclose(ours["advantages"], advantages, atol=1e-6)
    theirs |= {"advantages": advantages, "num_items_in_batch": theirs["completion_mask"].sum()}
    trainer.model.eval()
    trainer.current_gradient_accumulation_steps = 1
    with torch.no_grad():
        wanted = float(trainer._compute_loss(trainer.model, theirs))
        loss = GrpoLoss(
            0.2, 0.3, kl_coef=0.1, kl_estimator="k3", loss_type=loss_type, max_new_tokens=8  # type: ignore[arg-type]
        )  # fmt: skip
        output = loss(load_model(base), ours)
    value = float(output.total) / loss.weight(ours)
    assert abs(value - wanted) < CLOSE * max(1.0, abs(wanted))
    assert 0 < float(output.metrics["clip_fraction"]) / loss.weight(ours) < 1


def test_rloo(trl, tmp_path, base, reference) -> None:
    from datasets import Dataset

    arguments = _arguments(trl.RLOOConfig, tmp_path, epsilon=0.2, num_generations=4, max_completion_length=8)
    trainer = trl.RLOOTrainer(
        model=_hf(base), reward_funcs=lambda completions, **_: [0.0] * len(completions), args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "hello"}] * 8), processing_class=_tokenizer(base),
    )  # fmt: skip
    theirs, ours, rewards = _rollout(base, reference)
    groups = rewards.view(2, 4)
    advantages = (groups - (groups.sum(1, keepdim=True) - groups) / 3).flatten()
    ours["advantages"] = group_advantages(rewards, 4, leave_one_out=True, scale=False)
    assert torch.allclose(ours["advantages"], advantages, atol=1e-6)
    theirs |= {"advantages": advantages, "old_logps": theirs["old_per_token_logps"].sum(1)}
    trainer.model.eval()
    with torch.no_grad():
        wanted = float(trainer._compute_loss(trainer.model, theirs))
        loss = RlooLoss(0.2)
        value = float(loss(load_model(base), ours).total) / loss.weight(ours)
    assert abs(value - wanted) < CLOSE * max(1.0, abs(wanted))


def test_sft_learns_the_same_tokens_with_the_same_loss(trl, tmp_path, made, base, template) -> None:
    from datasets import Dataset

    from llmctl.training.conversations.formats import read_conversations

    records = [
        {
            "messages": [
                *record["messages"],
                {"role": "user", "content": "and the dog?"},
                {"role": "assistant", "content": "brown fox"},
            ]
        }
        for record in made.conversations(4)
    ]
    tokenizer = _tokenizer(base)
    # TRL needs the learned part named in the template; the text is that of our default.
    tokenizer.chat_template = (
        "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
        "{%- if message.role == 'assistant' %}{% generation %}{{- message.content + '<|im_end|>' }}{% endgeneration %}"
        "{{- '\\n' }}{%- else %}{{- message.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
    )
    arguments = _arguments(trl.SFTConfig, tmp_path, assistant_only_loss=True, max_length=None, packing=False)
    trainer = trl.SFTTrainer(
        model=_hf(base), args=arguments, train_dataset=Dataset.from_list(records), processing_class=tokenizer
    )
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.model.eval()
    with torch.no_grad():
        theirs = float(trainer.compute_loss(trainer.model, dict(batch)))
    conversations = [conversation for record in records for conversation in read_conversations(record)]
    rendered = template.render(conversations)
    ours = {tuple(row.ids): [i for i, learned in enumerate(row.trained) if learned] for row in rendered}
    labels = batch["labels"]
    for row in range(4):
        length = int(batch["attention_mask"][row].sum()) - 1  # we leave off what comes after the last end of turn
        ids = tuple(batch["input_ids"][row, :length].tolist())
        assert [i for i in range(length) if labels[row, i] != -100] == ours[ids], json.dumps(ids)
    width = batch["input_ids"].shape[1]
    shifted = torch.full((4, width), -100)
    shifted[:, :-1] = labels[:, 1:]
    mine = {"input_ids": batch["input_ids"], "labels": shifted}
    loss = NextTokenLoss()
    with torch.no_grad():
        value = float(loss(load_model(base).eval(), mine).total) / loss.weight(mine)
    assert abs(value - theirs) < CLOSE * max(1.0, theirs)
