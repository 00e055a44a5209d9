"""PPO end to end on a tiny model: it earns more reward, keeps its invariants, and a killed run goes on exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmctl.config.common import RunOptions
from llmctl.errors import UserError
from llmctl.rlhf.config import PpoConfig, RewardConfig
from llmctl.rlhf.online import read_samples
from llmctl.rlhf.stage import run_ppo, run_reward

REWARD = "def the(prompts, responses):\n    return [float(text.count('the')) for text in responses]\n"


def config(**changes) -> PpoConfig:
    values = {
        "precision": "fp32", "tensorboard": False, "lr": 3e-3, "critic_lr": 3e-3, "steps": 3, "seq_len": 48,
        "max_new_tokens": 8, "global_batch_size": 16, "micro_batch_size": 8, "checkpoint_every": 1,
        "warmup_fraction": 0.0, "device": "cpu", "threads": 1, "num_samples": 2, "missing_eos_penalty": 0.0, **changes,
    }  # fmt: skip
    return PpoConfig(**values)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def prompts(made, tmp_path_factory) -> Path:
    return made.write_lines(tmp_path_factory.mktemp("prompts") / "prompts.jsonl", made.conversations(30))


@pytest.fixture(scope="module")
def reward_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("reward") / "reward.py"
    path.write_text(REWARD)
    return path


def test_earns_more_of_the_reward_and_keeps_its_invariants(tmp_path, prompts, reward_file, base) -> None:
    settings = config(steps=14, global_batch_size=32, micro_batch_size=16, kl_coef=0.01, checkpoint_every=0)
    manifest = run_ppo(prompts, tmp_path / "out", settings, RunOptions(), model=base, reward_fn=f"{reward_file}:the")
    found = lines(tmp_path / "out" / "metrics.jsonl")
    assert found[0]["kl"] == pytest.approx(0.0, abs=1e-6), "the policy begins as its reference"
    assert all(line["ratio_deviation"] < 1e-5 for line in found)
    early = sum(line["score_mean"] for line in found[:3]) / 3
    late = sum(line["score_mean"] for line in found[-3:]) / 3
    assert late > early + 0.3
    assert found[-1]["kl"] > 0.1
    for line in found:
        assert line["reward_mean"] == pytest.approx(line["score_mean"] - 0.01 * line["kl"], abs=1e-5)
        assert 0 <= line["clip_fraction"] <= 1 and 0 <= line["share_without_eos"] <= 1
        assert line["entropy"] > 0 and line["value_loss"] >= 0 and 1 <= line["response_length"] <= 8
    assert manifest.statistics["records"] == {"in": 30, "kept": 30, "removed": 0, "invalid": 0}
    samples = read_samples(tmp_path / "out")
    assert [row["when"] for row in samples] == ["before"] * 2 + ["after"] * 2
    assert samples[0]["prompt"] == samples[2]["prompt"]
    assert all(row["score"] == float(row["response"].count("the")) for row in samples)


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path, prompts, reward_file, base, monkeypatch) -> None:
    from llmctl.training.run import TrainingRun

    settings = config(steps=4, kl_target=1.0, kl_horizon=100, ppo_epochs=2, minibatches=2, micro_batch_size=4)
    where = f"{reward_file}:the"
    whole = run_ppo(prompts, tmp_path / "whole", settings, RunOptions(), model=base, reward_fn=where)
    record = TrainingRun.record

    def dies(self, step, *arguments, **extra):
        if step == 3:
            raise KeyboardInterrupt
        return record(self, step, *arguments, **extra)

    monkeypatch.setattr(TrainingRun, "record", dies)
    with pytest.raises(KeyboardInterrupt):
        run_ppo(prompts, tmp_path / "cut", settings, RunOptions(), model=base, reward_fn=where)
    monkeypatch.undo()
    resumed = run_ppo(prompts, tmp_path / "cut", settings, RunOptions(), model=base, reward_fn=where)
    assert resumed.to_mapping() == whole.to_mapping(), "the weights' checksums are in the manifest"
    timed = ("_s", "memory_bytes")
    metrics = [
        [
            {key: value for key, value in line.items() if not key.endswith(timed)}
            for line in lines(tmp_path / name / "metrics.jsonl")
        ]
        for name in ("whole", "cut")
    ]
    assert metrics[0] == metrics[1]
    coefficients = [line["kl_coef"] for line in metrics[0]]
    assert len(set(coefficients)) > 1, "the coefficient adapts, and is there again after the resume"


def test_ratio_that_is_not_one_is_an_error(tmp_path, prompts, reward_file, base, monkeypatch) -> None:
    from llmctl.errors import RunFailed
    from llmctl.rlhf import rollout

    # The fault of scoring at another temperature than the update: nothing else would notice it.
    true = rollout.response_logprobs
    monkeypatch.setattr(rollout, "response_logprobs", lambda model, ids, mask, temperature: true(model, ids, mask, 0.7))
    with pytest.raises(RunFailed, match="probability ratio"):
        run_ppo(prompts, tmp_path / "out", config(steps=1), RunOptions(), model=base, reward_fn=f"{reward_file}:the")


def test_endless_answers_pay_the_penalty(tmp_path, prompts, reward_file, base) -> None:
    settings = config(steps=1, missing_eos_penalty=3.0, kl_coef=0.0, max_new_tokens=4)
    run_ppo(prompts, tmp_path / "out", settings, RunOptions(), model=base, reward_fn=f"{reward_file}:the")
    (line,) = lines(tmp_path / "out" / "metrics.jsonl")
    assert line["share_without_eos"] > 0.5
    assert line["reward_mean"] == pytest.approx(line["score_mean"] - 3.0 * line["share_without_eos"], abs=1e-5)


def test_mixed_objective(tmp_path, prompts, reward_file, base) -> None:
    settings = config(steps=2, objective="mixed", target_length=4)
    run_ppo(prompts, tmp_path / "out", settings, RunOptions(), model=base, reward_fn=f"{reward_file}:the")
    first = lines(tmp_path / "out" / "metrics.jsonl")[0]
    assert first["kl_coef"] == 0.2
    # KL is zero at first: what is left is the score and the length, which lies in [−1, 0].
    assert 0.7 * first["score_mean"] - 0.1 <= first["reward_mean"] + 1e-6 <= 0.7 * first["score_mean"] + 1e-6


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("def the(p, r):\n    return [0.0]\n", "gave 1 scores for 16 responses"),
        ("def the(p, r):\n    return [float('nan')] * len(r)\n", "gave nan"),
        ("def the(p, r):\n    return [1 / 0]\n", "ZeroDivisionError"),
        ("def the(p, r):\n    return ['x'] * len(r)\n", "ValueError"),
        ("def teh(p, r):\n    return []\n", "unknown function"),
        ("syntax error\n", "cannot be loaded"),
    ],
)
def test_mistakes_in_a_reward_function_are_told(tmp_path, prompts, base, body: str, problem: str) -> None:
    file = tmp_path / "mistake.py"
    file.write_text(body)
    with pytest.raises(UserError, match=problem):
        run_ppo(prompts, tmp_path / "out", config(steps=1), RunOptions(), model=base, reward_fn=f"{file}:the")


def test_exactly_one_reward(tmp_path, prompts, base) -> None:
    with pytest.raises(UserError, match="one reward"):
        run_ppo(prompts, tmp_path / "out", config(), RunOptions(), model=base)
    with pytest.raises(UserError, match="not a reward model"):
        run_ppo(prompts, tmp_path / "out", config(), RunOptions(), model=base, reward=base)


@pytest.fixture(scope="module")
def reward_run(made, base, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("reward-run")
    pairs = [
        {
            "prompt": record["messages"][0]["content"],
            "chosen": record["messages"][1]["content"],
            "rejected": "brown fox",
        }
        for record in made.conversations(60)
    ]
    settings = RewardConfig(
        precision="fp32", tensorboard=False, lr=5e-3, epochs=3.0, seq_len=64, global_batch_size=10, device="cpu",
        micro_batch_size=5, threads=1, validation_fraction=0.2,
    )  # fmt: skip
    data = made.write_lines(folder / "pairs.jsonl", pairs)
    manifest = run_reward(data, folder / "run", settings, RunOptions(), model=base, validation=None)
    assert manifest.statistics["validation"]["after"]["accuracy"] > 0.9
    assert manifest.statistics["longer_wins"]["training"] < 1.0
    return folder / "run"


def test_reward_model_scores_are_normalised_and_do_not_depend_on_the_batch(reward_run, base, template) -> None:
    import torch

    from llmctl.rlhf.comparisons import read
    from llmctl.rlhf.rewards import Answer, RewardModel

    reward = RewardModel(reward_run, template, torch.device("cpu"), "fp32")
    assert reward.shares_tokens, "same tokenizer and template: ids are scored as they are"
    rows = [row for item in read(reward_run).training for row in item.rows]
    answers = [Answer((), row[:4], row[4:], "", True) for row in rows]
    scores = torch.tensor(reward(answers))
    assert float(scores.mean()) == pytest.approx(0.0, abs=0.02)
    assert float(scores.std(unbiased=False)) == pytest.approx(1.0, abs=0.02)
    assert reward(answers[5:6])[0] == pytest.approx(float(scores[5]), abs=1e-4)


def test_ppo_against_a_reward_model_of_another_size_and_tokenizer(tmp_path, prompts, reward_run, made) -> None:
    other = made.tiny_model(tmp_path / "other", seed=5, hidden_size=32)
    # Another vocabulary: the same text has other ids, so answers must be rendered for the reward model anew.
    import json as json_module

    tokenizer = json_module.loads((other / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:5]
    (other / "tokenizer.json").write_text(json_module.dumps(tokenizer))
    manifest = run_ppo(prompts, tmp_path / "out", config(steps=1), RunOptions(), model=other, reward=reward_run)
    assert manifest.statistics["updates"] == 1
