"""`llmctl pretrain` with a mixture: the plan is told and written, kept to the sample, and limits are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmctl.cli.app import run

TINY = """
steps: 10
seq_len: 16
global_batch_size: 4
validate_every: 0
precision: fp32
validation_fraction: 0
tensorboard: false
threads: 1
model: {num_layers: 1, hidden_size: 16, num_heads: 2, num_kv_heads: 1, ffn_hidden_size: 16}
"""
TABLE = """
phases:
  - {start: 0, weights: {talk: 3, facts: 1}}
  - {start: 0.5, weights: {talk: 1, facts: 3}}
groups: {talk: ["chat*"], facts: [wiki, books]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("mixture")
    sources = ("chat-a", "chat-b", "wiki", "books")
    lines = [json.dumps({"text": f"text number {n} of some words " * 3, "source": sources[n % 4]}) for n in range(40)]
    (root / "raw.jsonl").write_text("\n".join(lines) + "\n")
    assert run(["tokenize", str(root / "raw.jsonl"), str(root / "tok"), "--vocab-size", "280", "--workers", "1"]) == 0
    assert run(["shard", str(root / "tok"), str(root / "shards"), "--workers", "1"]) == 0
    (root / "tiny.yaml").write_text(TINY)
    (root / "table.yaml").write_text(TABLE)
    return root


def arguments(folder: Path, output: str, *more: str) -> list[str]:
    table = ["--mixture-table", str(folder / "table.yaml")]
    return [
        "pretrain",
        str(folder / "shards"),
        str(folder / output),
        "--config",
        str(folder / "tiny.yaml"),
        *table,
        *more,
    ]


def test_the_plan_is_written_and_kept(folder):
    assert run(arguments(folder, "run", "--packing", "best_fit", "--log-samples")) == 0
    root = folder / "run"
    plan = json.loads((root / "mixture.json").read_text())
    assert [phase["samples"] for phase in plan["phases"]] == [{"talk": 15, "facts": 5}, {"talk": 5, "facts": 15}]
    assert [column["sources"] for column in plan["columns"]] == [["chat-a", "chat-b"], ["books", "wiki"]]
    lines = [json.loads(line) for line in (root / "samples" / "replica-0000.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 11))
    for phase, steps in zip(plan["phases"], (range(1, 6), range(6, 11)), strict=True):
        given = {"talk": 0, "facts": 0}
        for line in lines:
            if line["step"] in steps:
                for name, count in line["columns"].items():
                    given[name] += count
                for number, column, _, _ in line["rows"]:
                    assert (line["step"] - 1) * 4 <= number < line["step"] * 4
                    assert column in (0, 1)
        assert given == phase["samples"]
    page = (root / "mixture.html").read_text()
    assert "<svg" in page
    assert "delivered" in page
    assert "chat-a, chat-b" in page
    manifest = json.loads((root / "manifest.json").read_text())
    assert manifest["statistics"]["mixture"]["phases"] == plan["phases"]
    metrics = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    assert all(0 <= line["data_wait"] <= 1 for line in metrics)


def test_another_table_is_another_run(folder, capsys):
    assert run(arguments(folder, "other", "--steps", "2")) == 0
    changed = folder / "changed.yaml"
    changed.write_text(TABLE.replace("talk: 3", "talk: 2"))
    capsys.readouterr()
    command = arguments(folder, "other", "--steps", "2")
    assert run([*command, "--mixture-table", str(changed)]) == 2
    assert "mixture" in capsys.readouterr().err
    assert run(command) == 0
    assert "up to date" in capsys.readouterr().err


def test_a_dry_run_shows_the_plan(folder, capsys):
    assert run(arguments(folder, "dry", "--dry-run", "--json", "--seq-len", "128")) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["mixture"]["phases"][1]["samples"] == {"talk": 5, "facts": 15}
    assert 0 < plan["truncated_share"] < 1
    assert not (folder / "dry").exists()
    assert run(arguments(folder, "dry", "--dry-run")) == 0
    assert "facts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--steps", "400", "--max-epochs", "2"], ["sees talk", "--when-exhausted"]),
        (["--steps", "400", "--max-epochs", "2", "--when-exhausted", "renormalize"], ["used up at 2 epochs"]),
        (["--mixture-table", "nowhere.yaml"], ["no such configuration", "staged"]),
        (["--mixture-table", "staged"], ["weight to code", "no such source"]),
        (["--when-exhausted", "stop"], ["when_exhausted"]),
    ],
)
def test_refusals(folder, capsys, flags, words):
    assert run(arguments(folder, "refused", *flags)) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    for word in words:
        assert word in error
    assert not (folder / "refused").exists()
