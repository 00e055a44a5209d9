"""GRPO and RLOO end to end on a tiny model: they earn more reward, and a killed run goes on exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmctl.config.common import RunOptions
from llmctl.errors import UserError
from llmctl.rlhf.config import GrpoConfig, RlooConfig
from llmctl.rlhf.online import read_samples
from llmctl.rlhf.stage import run_grpo, run_rloo

KINDS = {"grpo": (GrpoConfig, run_grpo), "rloo": (RlooConfig, run_rloo)}
REWARD = "def the(prompts, responses):\n    return [float(text.count('e')) for text in responses]\n"


def config(kind: str, **changes):
    values = {
        "precision": "fp32", "tensorboard": False, "lr": 3e-3, "steps": 3, "seq_len": 48, "max_new_tokens": 8,
        "global_batch_size": 16, "group_size": 4, "micro_batch_size": 8, "checkpoint_every": 1, "warmup_fraction": 0.0,
        "device": "cpu", "threads": 1, "num_samples": 2, "missing_eos_penalty": 0.0, **changes,
    }  # fmt: skip
    return KINDS[kind][0](**values)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def prompts(made, tmp_path_factory) -> Path:
    return made.write_lines(tmp_path_factory.mktemp("prompts") / "prompts.jsonl", made.conversations(30))


@pytest.fixture(scope="module")
def reward(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("reward") / "reward.py"
    path.write_text(REWARD)
    return f"{path}:the"


@pytest.mark.parametrize("kind", KINDS)
def test_earns_more_of_the_reward_and_keeps_its_invariants(kind, tmp_path, prompts, reward, base) -> None:
    settings = config(kind, steps=20, global_batch_size=32, kl_coef=0.01, checkpoint_every=0, micro_batch_size=16)
    manifest = KINDS[kind][1](prompts, tmp_path / "out", settings, RunOptions(), model=base, reward_fn=reward)
    found = lines(tmp_path / "out" / "metrics.jsonl")
    assert found[0]["kl"] == pytest.approx(0.0, abs=1e-6), "the policy begins as its reference"
    assert all(line["ratio_deviation"] < 1e-5 for line in found)
    early, late = (sum(line["score_mean"] for line in part) / 3 for part in (found[:3], found[-3:]))
    assert late > early + 0.5
    assert found[-1]["kl"] > 0.05
    assert all(0 <= line["share_without_spread"] <= 1 and line["entropy"] > 0 for line in found)
    assert manifest.stage == f"rlhf-{kind}" and manifest.statistics["updates"] == 20
    assert len(read_samples(tmp_path / "out")) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(kind, tmp_path, prompts, reward, base, monkeypatch) -> None:
    from llmctl.training.run import TrainingRun

    run = KINDS[kind][1]
    settings = config(kind, steps=4, ppo_epochs=2, minibatches=2)
    whole = run(prompts, tmp_path / "whole", settings, RunOptions(), model=base, reward_fn=reward)
    record = TrainingRun.record

    def dies(self, step, *arguments, **extra):
        if step == 3:
            raise KeyboardInterrupt
        return record(self, step, *arguments, **extra)

    monkeypatch.setattr(TrainingRun, "record", dies)
    with pytest.raises(KeyboardInterrupt):
        run(prompts, tmp_path / "cut", settings, RunOptions(), model=base, reward_fn=reward)
    monkeypatch.undo()
    resumed = run(prompts, tmp_path / "cut", settings, RunOptions(), model=base, reward_fn=reward)
    assert resumed.to_mapping() == whole.to_mapping(), "the weights' checksums are in the manifest"
    timed = ("_s", "memory_bytes")
    metrics = [
        [{key: value for key, value in line.items() if not key.endswith(timed)} for line in lines(folder)]
        for folder in (tmp_path / "whole" / "metrics.jsonl", tmp_path / "cut" / "metrics.jsonl")
    ]
    assert metrics[0] == metrics[1] and len(metrics[0]) == 4


def test_reward_by_command_and_by_a_function_that_reads_the_record(tmp_path, made, base) -> None:
    records = [{**record, "answer": str(number)} for number, record in enumerate(made.conversations(6))]
    prompts = made.write_lines(tmp_path / "prompts.jsonl", records)
    script = tmp_path / "score.py"
    script.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    assert asked['prompt'] and isinstance(asked['response'], str)\n"
        "    print(float(asked['record']['answer']))\n"
    )
    function = tmp_path / "reward.py"
    function.write_text("def score(prompts, responses, records):\n    return [float(r['answer']) for r in records]\n")
    import sys

    command = config("grpo", steps=1, reward_command=f"{sys.executable} {script}")
    run_grpo(prompts, tmp_path / "command", command, RunOptions(), model=base)
    run_grpo(prompts, tmp_path / "function", config("grpo", steps=1), RunOptions(), model=base,
             reward_fn=f"{function}:score")  # fmt: skip
    scores = [lines(tmp_path / name / "metrics.jsonl")[0]["score_mean"] for name in ("command", "function")]
    assert scores[0] == scores[1] > 0


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("false", "ended with status 1"),
        ("no-such-program-anywhere", "cannot be started"),
        ("echo 1", "gave 1 scores for 16 responses"),
        ("echo one", "other than numbers"),
        ("echo 'open", "split into words"),
    ],
)
def test_mistakes_in_a_reward_command_are_told(tmp_path, prompts, base, command: str, problem: str) -> None:
    settings = config("rloo", steps=1, reward_command=command)
    with pytest.raises(UserError, match=problem):
        run_rloo(prompts, tmp_path / "out", settings, RunOptions(), model=base)


def test_one_reward_and_room_for_minibatches(tmp_path, prompts, reward, base) -> None:
    with pytest.raises(UserError, match="one reward"):
        run_grpo(prompts, tmp_path / "out", config("grpo"), RunOptions(), model=base)
    with pytest.raises(UserError, match="minibatches"):
        config("grpo", minibatches=5).validate()
    with pytest.raises(UserError, match="multiple of `group_size`"):
        config("grpo", group_size=5).validate()
