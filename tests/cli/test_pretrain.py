"""`llmctl pretrain` as a user runs it: finish, resume after a kill, refusals, export."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmctl.cli.app import run

TINY = """
steps: 12
seq_len: 32
global_batch_size: 4
micro_batch_size: 2
lr: 1e-2
checkpoint_every: 4
validate_every: 6
precision: fp32
validation_fraction: 0.1
tensorboard: false
threads: 1
model: {num_layers: 2, hidden_size: 32, num_heads: 4, num_kv_heads: 2, ffn_hidden_size: 48, dropout: 0.1}
"""
SENTENCES = ("the cat sat on the mat", "a dog ran over the hill", "rain fell on the roof", "she read an old book")


def text_of(number: int) -> str:
    return ". ".join(SENTENCES[(number * 7 + place * place) % 4] for place in range(3 + number % 5)) + "."


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    lines = [json.dumps({"text": text_of(number), "source": f"s{number % 2}"}) for number in range(60)]
    (root / "raw.jsonl").write_text("\n".join(lines) + "\n")
    assert run(["tokenize", str(root / "raw.jsonl"), str(root / "tok"), "--vocab-size", "280", "--workers", "1"]) == 0
    assert run(["shard", str(root / "tok"), str(root / "shards"), "--workers", "1"]) == 0
    (root / "tiny.yaml").write_text(TINY)
    return root / "shards"


def arguments(shards: Path, output: Path, *more: str) -> list[str]:
    return ["pretrain", str(shards), str(output), "--config", str(shards.parent / "tiny.yaml"), *more]


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def losses(root: Path) -> list[tuple]:
    return [(line["step"], line["loss"], line["grad_norm"], line["lr"]) for line in lines_of(root / "metrics.jsonl")]


@pytest.fixture(scope="module")
def finished(shards, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "run"
    assert run(arguments(shards, root)) == 0
    return root


def test_run_folder(finished, shards):
    metrics = lines_of(finished / "metrics.jsonl")
    assert [line["step"] for line in metrics] == list(range(1, 13))
    assert metrics[-1]["loss"] < metrics[0]["loss"] - 0.5
    assert {"grad_norm", "lr", "tokens", "step_time_s", "tokens_per_s", "data_time_s", "memory_bytes"} <= set(
        metrics[0]
    )
    assert metrics[-1]["tokens"] == 12 * 4 * 32
    validation = lines_of(finished / "validation.jsonl")
    assert [line["step"] for line in validation] == [0, 6, 12]
    assert validation[-1]["bits_per_byte"] < validation[0]["bits_per_byte"]
    assert (finished / "checkpoints" / "latest").read_text() == "step-00000012\n"
    assert sorted(path.name for path in (finished / "checkpoints").glob("step-*")) == ["step-00000008", "step-00000012"]
    assert len(lines_of(finished / "events" / "rank-0.jsonl")) == 12
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["kind"] == "model"
    assert not any("metrics" in record["path"] for record in manifest["files"])
    assert str(finished.parent) not in (finished / "manifest.json").read_text()


def test_export_loads_in_transformers(finished):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from llmctl.model.huggingface import load_model

    theirs = AutoModelForCausalLM.from_pretrained(finished / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    ids = tokenizer("the cat sat on", return_tensors="pt").input_ids
    ours = load_model(finished).eval()
    with torch.no_grad():
        torch.testing.assert_close(ours.logits(ours(ids)), theirs(ids).logits, rtol=1e-5, atol=1e-5)
    assert theirs.config.eos_token_id == tokenizer.eos_token_id is not None


def test_finished_is_left_alone_and_another_config_refused(finished, shards, capsys):
    before = (finished / "manifest.json").read_bytes()
    assert run(arguments(shards, finished)) == 0
    assert "up to date" in capsys.readouterr().err
    assert run(arguments(shards, finished, "--lr", "1e-3")) == 2
    assert "lr: 0.01 → 0.001" in capsys.readouterr().err
    assert run(arguments(shards, finished, "--log-every", "5")) == 0  # cannot change the output
    assert (finished / "manifest.json").read_bytes() == before


def start(shards: Path, root: Path, *more: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "llmctl", *arguments(shards, root, *more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for_step(root: Path, step: int, process: subprocess.Popen) -> None:
    path = root / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        if path.is_file() and path.read_bytes().count(b"\n") >= step:
            return
        time.sleep(0.005)
    raise AssertionError(f"no step {step}: {process.communicate()[1].decode()}")


def test_killed_run_ends_as_if_it_had_not_been(finished, shards, tmp_path):
    root = tmp_path / "run"
    for step in (3, 6):
        process = start(shards, root)
        wait_for_step(root, step, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (root / "manifest.json").exists()
    assert run(arguments(shards, root)) == 0
    assert losses(root) == losses(finished)
    assert (root / "model" / "model.safetensors").read_bytes() == (
        finished / "model" / "model.safetensors"
    ).read_bytes()
    assert (root / "manifest.json").read_bytes() == (finished / "manifest.json").read_bytes()
    assert [line["step"] for line in lines_of(root / "validation.jsonl")] == [0, 6, 12]


def test_sigterm_saves_and_exits_75(finished, shards, tmp_path):
    root = tmp_path / "run"
    process = start(shards, root, "--checkpoint-every", "0")
    wait_for_step(root, 2, process)
    process.terminate()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 75, err.decode()
    assert b"Traceback" not in err
    stopped = lines_of(root / "metrics.jsonl")[-1]["step"]
    assert (root / "checkpoints" / f"step-{stopped:08d}" / "manifest.json").is_file()
    assert run(arguments(shards, root)) == 0
    assert losses(root) == losses(finished)
    assert (root / "model" / "model.safetensors").read_bytes() == (
        finished / "model" / "model.safetensors"
    ).read_bytes()


def test_unfinished_with_another_config_is_refused(shards, tmp_path, capsys):
    root = tmp_path / "run"
    process = start(shards, root)
    wait_for_step(root, 2, process)
    process.kill()
    process.communicate()
    assert run(arguments(shards, root, "--seed", "5")) == 2
    assert "seed: 0 → 5" in capsys.readouterr().err


def test_damaged_checkpoint_falls_back(finished, shards, tmp_path, capsys):
    root = tmp_path / "run"
    process = start(shards, root, "--no-async-checkpoints")
    wait_for_step(root, 9, process)
    process.kill()
    process.communicate()
    newest = max((root / "checkpoints").glob("step-*"))
    target = newest / "model" / "tensors-00001.safetensors"
    data = bytearray(target.read_bytes())
    data[len(data) // 2] ^= 1
    target.write_bytes(data)
    assert run(arguments(shards, root)) == 0
    err = capsys.readouterr().err
    assert "damaged" in err
    assert "goes on after step 4" in err
    assert losses(root) == losses(finished)


def test_resume_from_another_run(finished, shards, tmp_path, capsys):
    root = tmp_path / "longer"
    assert run(arguments(shards, root, "--steps", "14", "--resume-from", str(finished))) == 0
    assert "starts from" in capsys.readouterr().err
    assert [line["step"] for line in lines_of(root / "metrics.jsonl")] == [13, 14]
    inputs = json.loads((root / "manifest.json").read_text())["inputs"]
    assert [entry["role"] for entry in inputs] == ["source", "checkpoint"]


def test_continue_from_model(finished, shards, tmp_path):
    root = tmp_path / "more"
    assert run(arguments(shards, root, "--steps", "2", "--init-from", str(finished))) == 0
    before, after = lines_of(finished / "validation.jsonl")[-1], lines_of(root / "validation.jsonl")[0]
    assert after["loss"] == pytest.approx(before["loss"], rel=1e-5)


def test_three_dimensional_layout_is_explained(capsys):
    assert run(["pretrain", "--tp", "8", "--pp", "4"]) == 2
    err = capsys.readouterr().err
    assert "needs 32 processes" in err
    assert "--nodes" in err
    assert "--device cpu --processes 32" in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--global-batch-size", "6", "--micro-batch-size", "4"], ["multiple", "4 or 8", "--micro-batch-size 3"]),
        (["--device", "cuda"], ["GPU", "--device cpu"]),
        (["--lr-scaling", "linear"], ["base_lr"]),
        (["--set", "model.num_heads=5"], ["num_heads", "multiple"]),
        (["--set", "model.vocab_size=5"], ["vocab_size"]),
        (["--zero-stage", "4"], ["zero"]),
        (["--rendezvous", "a:1", "--nodes", "2", "--node-rank", "2"], ["node_rank"]),
        (["--engine", "deepspeed", "--precision", "fp64"], ["fp64", "native"]),
    ],
)
def test_mistakes_get_one_sentence(shards, tmp_path, capsys, flags, words):
    assert run(arguments(shards, tmp_path / "run", *flags)) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_missing_shards(tmp_path, capsys):
    assert run(["pretrain", str(tmp_path / "nothing"), str(tmp_path / "run")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_dry_run_writes_nothing(shards, tmp_path, capsys):
    assert run(arguments(shards, tmp_path / "run", "--dry-run", "--json")) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["processes"] == 1
    assert plan["grad_accumulation_steps"] == 2
    assert plan["parameters"] > 0
    assert not (tmp_path / "run").exists()
