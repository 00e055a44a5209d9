"""`llmctl sft` as a user runs it: dry run, mistakes, a second run, `--show`, statuses."""

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

FAST = ["--steps", "2", "--precision", "fp32", "--no-tensorboard", "--device", "cpu", "--threads", "1"]


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return made.tiny_model(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    records = [*made.conversations(30), {"text": "no conversation"}]
    return made.write_lines(tmp_path_factory.mktemp("data") / "data.jsonl", records)


@pytest.fixture(scope="module")
def shards(base, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("text")
    texts = [{"text": f"the quick brown fox {number} says hello"} for number in range(20)]
    raw = made.write_lines(root / "raw.jsonl", texts)
    assert run(command("tokenize", raw, root / "tokens", "--tokenizer", base, "--workers", 1)) == 0
    assert run(command("shard", root / "tokens", root / "shards", "--workers", 1)) == 0
    return root / "shards"


def command(*parts: object) -> list[str]:
    return [str(part) for part in parts]


def test_dry_run_prints_records_and_writes_nothing(tmp_path, base, data, capsys) -> None:
    assert run(command("sft", data, tmp_path / "out", "--model", base, "--dry-run", "--json", *FAST)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["records"] == {"in": 31, "kept": 30, "removed": 0, "invalid": 1}
    assert found["steps"] == 2 and found["learned_tokens"] > 0
    assert not (tmp_path / "out").exists()


def test_run_second_run_and_other_configuration(tmp_path, base, data, capsys) -> None:
    arguments = command("sft", data, tmp_path / "out", "--model", base, "--json", "--show", 2, *FAST)
    assert run(arguments) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result["kind"] == "model" and result["statistics"]["steps"] == 2
    assert printed.err.count("⟦the ") == 2 and "<|im_end|>⟧" in printed.err
    assert run(arguments) == 0
    again = capsys.readouterr()
    assert "up to date" in again.err and json.loads(again.out)["fingerprint"] == result["fingerprint"]
    assert run([*arguments, "--lr", "1e-3"]) == 2
    assert "lr" in capsys.readouterr().err
    assert run(command("show", tmp_path / "out")) == 0


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"source": "missing.jsonl"}, "does not exist"),
        ({"model": "missing"}, "does not exist"),
        ({"extra": ["--set", "lerning_rate=1"]}, "lerning_rate"),
        ({"extra": ["--packing", "isolated"]}, "isolate"),
        ({"extra": ["--tp", "2"]}, "data-parallel"),
        ({"extra": ["--mix-pretrain", "0.1"]}, "--pretrain-shards"),
        ({"extra": ["--pretrain-shards", "missing"]}, "does not exist"),
    ],
)
def test_mistakes_are_told(tmp_path, base, data, capsys, changes, problem: str) -> None:
    source, model = changes.get("source", data), changes.get("model", base)
    status = run(command("sft", source, tmp_path / "out", "--model", model, *FAST, *changes.get("extra", [])))
    talk = capsys.readouterr().err
    assert status == 2 and problem in talk and "Traceback" not in talk


def test_pretraining_text_beside_the_conversations(tmp_path, base, data, shards, capsys) -> None:
    mixed = command("sft", data, tmp_path / "out", "--model", base, "--pretrain-shards", shards, "--json", *FAST)
    mixed += ["--mix-pretrain", "0.10"]
    capsys.readouterr()
    assert run([*mixed, "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["pretraining"]["mixed_share"] == 0.1
    assert run(mixed) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)["statistics"]["pretraining"]
    assert found["held_out_documents"] == 1 and found["perplexity"]["after"] is not None
    assert "perplexity on held-out pretraining documents" in printed.err
    rows = [json.loads(line) for line in (tmp_path / "out" / "validation.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row.get("set") == "pretraining"] == [0, 1, 2]
    assert run([*mixed[:-1], "0.2"]) == 2
    assert "mix_pretrain" in capsys.readouterr().err
    assert run(command("show", tmp_path / "out")) == 0


def test_too_many_invalid_records_is_status_3_with_everything_written(tmp_path, base, capsys) -> None:
    records = [*made.conversations(10), *[{"text": "x"}] * 10]
    source = made.write_lines(tmp_path / "data.jsonl", records)
    assert run(command("sft", source, tmp_path / "out", "--model", base, *FAST)) == 3
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()
    lines = (tmp_path / "out" / "invalid" / "training.jsonl").read_text().splitlines()
    assert len(lines) == 10 and json.loads(lines[0])["line"] == 11


def test_every_shared_conversation_file_dry_runs(tmp_path, base, shared_data, capsys) -> None:
    for name in (
        "llamafactory_alpaca_zh_demo.json.gz",
        "llamafactory_glaive_toolcall_en_demo.json.gz",
        "fastchat_dummy_conversation.json.gz",
    ):
        source = shared_data / "post" / name
        arguments = command(
            "sft", source, tmp_path / "out", "--model", base, "--dry-run", "--json", "--overlong", "truncate", *FAST
        )
        assert run(arguments) == 0, name
        records = json.loads(capsys.readouterr().out)["records"]
        assert records["in"] == records["kept"] + records["removed"] + records["invalid"] and records["kept"] > 0


@pytest.mark.distributed
@pytest.mark.parametrize("engine", ["native", "deepspeed"])
def test_two_processes_train_as_one(tmp_path, base, data, shards, engine: str) -> None:
    from safetensors.torch import load_file

    weights = []
    for processes in (1, 2):
        out = tmp_path / f"out{processes}"
        arguments = command(
            "sft", data, out, "--model", base, *FAST, "--processes", processes, "--engine", engine, "--lr", "1e-3",
            "--global-batch-size", 4, "--optimizer", "sgd", "--pretrain-shards", shards, "--mix-pretrain", 0.3,
        )  # fmt: skip
        done = subprocess.run([sys.executable, "-m", "llmctl", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        weights.append(load_file(out / "model" / "model.safetensors"))
        metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        losses = [line["loss"] for line in metrics]
        norms = [line["grad_norm"] for line in metrics]
        if processes == 1:
            first = losses, norms
        else:
            assert losses == pytest.approx(first[0], rel=1e-5) and norms == pytest.approx(first[1], rel=1e-4)
    for name, tensor in weights[0].items():
        assert float((tensor - weights[1][name]).abs().max()) < 1e-5, name
