"""`llmctl rlhf reward | ppo | dpo` as a user runs them, each on the output of the one before."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from llmctl.cli.app import run

_path = Path(__file__).parents[1] / "unit" / "training" / "conversations" / "tokenizers_for_tests.py"
_spec = importlib.util.spec_from_file_location("tokenizers_for_tests", _path)
made = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(made)

FAST = [
    "--precision", "fp32", "--no-tensorboard", "--device", "cpu", "--threads", "1", "--seq-len", "64",
    "--global-batch-size", "8", "--micro-batch-size", "4", "--steps", "2",
]  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return made.tiny_model(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    records = [
        {
            "prompt": record["messages"][0]["content"],
            "chosen": record["messages"][1]["content"],
            "rejected": "brown fox",
        }
        for record in made.conversations(30)
    ]
    return made.write_lines(tmp_path_factory.mktemp("data") / "pairs.jsonl", records)


def command(*parts: object) -> list[str]:
    return [str(part) for part in parts]


def test_reward_then_ppo_then_generate(tmp_path, base, pairs, capsys) -> None:
    reward, ppo = tmp_path / "reward", tmp_path / "ppo"
    assert run(command("rlhf", "reward", pairs, reward, "--model", base, "--json", *FAST)) == 0
    assert json.loads(capsys.readouterr().out)["statistics"]["comparisons"]["training"] > 0
    arguments = command(
        "rlhf", "ppo", pairs, ppo, "--model", base, "--reward", reward, "--max-new-tokens", 8, "--json", *FAST
    )
    assert run([*arguments, "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == {"in": 30, "kept": 30, "removed": 0, "invalid": 0}
    assert not ppo.exists()
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out)["statistics"]["updates"] == 2
    metrics = [json.loads(line) for line in (ppo / "metrics.jsonl").read_text().splitlines()]
    wanted = {
        "reward_mean", "score_mean", "kl", "entropy", "clip_fraction", "approx_kl", "value_loss",
        "explained_variance", "response_length", "share_without_eos", "loss", "grad_norm", "lr", "tokens",
    }  # fmt: skip
    assert wanted <= set(metrics[0])
    assert run(arguments) == 0
    assert "up to date" in capsys.readouterr().err
    assert run(command("generate", ppo, "--prompt", "hello cat", "--max-new-tokens", 4, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["samples"][0]["tokens"] <= 4


def test_dpo(tmp_path, base, pairs, capsys) -> None:
    assert run(command("rlhf", "dpo", pairs, tmp_path / "dpo", "--model", base, "--json", *FAST)) == 0
    statistics = json.loads(capsys.readouterr().out)["statistics"]
    assert statistics["validation"]["before"]["margin"] == 0.0


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_groups_of_answers(tmp_path, base, pairs, capsys, kind: str) -> None:
    given = ["--model", base, "--reward-command", f"{sys.executable} -c 'for line in open(0): print(len(line))'"]
    arguments = command("rlhf", kind, pairs, tmp_path / "out", *given, "--max-new-tokens", 8, "--json", *FAST)
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out)["statistics"]["updates"] == 2
    assert (tmp_path / "out" / "model" / "config.json").is_file()
    assert run(command("rlhf", kind, pairs, tmp_path / "out", *given, "--group-size", "5", *FAST)) == 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["ppo", "PAIRS", "--model", "BASE"], "one reward"),
        (["ppo", "PAIRS", "--model", "BASE", "--reward", "BASE"], "not a reward model"),
        (["ppo", "PAIRS", "--model", "BASE", "--reward-fn", "score"], "FILE.py:NAME"),
        (["ppo", "PAIRS", "--model", "BASE", "--reward-fn", "missing.py:score"], "does not exist"),
        (["ppo", "PAIRS", "--model", "BASE", "--reward-fn", "x.py:f", "--max-new-tokens", "64"], "no room"),
        (["reward", "PROMPTS", "--model", "BASE"], "none of the"),
        (["reward", "PAIRS", "--model", "missing"], "does not exist"),
        (["reword", "PAIRS"], "reword"),
    ],
)
def test_mistakes_are_told(tmp_path, base, pairs, capsys, arguments: list[str], problem: str) -> None:
    prompts = made.write_lines(tmp_path / "prompts.jsonl", [{"prompt": "hello"}])
    names = {"PAIRS": str(pairs), "BASE": str(base), "PROMPTS": str(prompts)}
    given = [names.get(part, part) for part in arguments]
    # The output comes second.
    given.insert(2, str(tmp_path / "out"))
    short = ["--max-new-tokens", "8"] if given[0] == "ppo" and "--max-new-tokens" not in given else []
    status = run(["rlhf", *given, *short, *(FAST if given[0] != "reword" else [])])
    talk = capsys.readouterr().err
    assert status == 2 and problem in talk and "Traceback" not in talk


@pytest.mark.distributed
def test_two_processes_update_as_one(tmp_path, base, pairs) -> None:
    (tmp_path / "reward.py").write_text("def score(p, r):\n    return [float(len(x)) for x in r]\n")
    found = []
    for processes in (1, 2):
        out = tmp_path / f"out{processes}"
        arguments = command(
            "rlhf", "ppo", pairs, out, "--model", base, "--reward-fn", f"{tmp_path / 'reward.py'}:score",
            "--max-new-tokens", 8, *FAST, "--optimizer", "sgd", "--lr", "1e-2", "--processes", processes,
            "--engine", "native",
        )  # fmt: skip
        done = subprocess.run([sys.executable, "-m", "llmctl", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append([json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()])
    for one, two in zip(*found, strict=True):
        for name in (
            "score_mean",
            "reward_mean",
            "kl",
            "response_length",
            "entropy",
            "loss",
            "grad_norm",
            "value_loss",
        ):
            assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-4), name
