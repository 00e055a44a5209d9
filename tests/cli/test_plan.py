"""`llmctl plan` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmctl.cli.app import run

MODEL = """num_layers: 40
hidden_size: 6144
num_heads: 48
num_kv_heads: 48
ffn_hidden_size: 24576
gated_mlp: false
vocab_size: 51200
seq_len: 2048
tied_embeddings: true
"""
FLAGS = [
    "--gpus",
    "256",
    "--hw",
    "a100-80g",
    "--tp",
    "8",
    "--pp",
    "1",
    "--micro-batch-size",
    "8",
    "--global-batch-size",
    "1024",
    "--recompute",
    "full",
    "--no-sequence-parallel",
    "--schedule",
    "1f1b",
    "--virtual-stages",
    "1",
    "--zero-stage",
    "0",
]


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "MODEL.yaml"
    path.write_text(MODEL, encoding="utf-8")
    return str(path)


def test_json_has_the_names_that_scripts_rely_on(model: str, capsys) -> None:
    assert run(["plan", model, *FLAGS, "--json"]) == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    for name in ("step_time_s", "tflops_per_gpu", "mfu", "hfu", "bubble_fraction"):
        assert isinstance(data[name], float), name
    memory = data["memory_bytes"]
    parts = ["parameters", "gradients", "optimizer", "activations", "other"]
    assert sum(memory[name] for name in parts) == pytest.approx(memory["total"])
    assert {"tp", "pp", "dp"} <= set(data["comm_bytes"])
    assert "72·B·L·s·h²" in data["tflops_formula"]
    assert data["mfu"] == pytest.approx(data["tflops_per_gpu"] / 312)
    # Narayanan et al. 2021, table 1: 135 TFLOP/s with recomputation counted.
    assert data["hardware_tflops_per_gpu"] == pytest.approx(135, rel=0.12)


def test_text_is_short(model: str, capsys) -> None:
    assert run(["plan", model, *FLAGS]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) < 12
    assert "MFU" in captured.out and "GB" in captured.out
    assert "note: tokens not given" in captured.err


def test_search_against_page_and_saved_plan(model: str, tmp_path: Path, capsys) -> None:
    html, saved = tmp_path / "out" / "plan.html", tmp_path / "plan.json"
    arguments = ["plan", model, "--gpus", "16", "--global-batch-size", "64", "--against"]
    assert run([*arguments, "--html", str(html), "--save", str(saved)]) == 0
    out = capsys.readouterr().out
    assert "legal layouts fit" in out and "pure data parallel" in out
    assert html.read_text(encoding="utf-8").startswith("<!doctype html>")
    data = json.loads(saved.read_text(encoding="utf-8"))
    assert data["search"]["layouts"][0]["step_time_s"] == data["step_time_s"]
    assert {row["name"] for row in data["against"]} >= {"chosen", "ZeRO-3"}


def test_equal_commands_give_equal_plans(model: str, capsys) -> None:
    outputs = []
    for _ in range(2):
        assert run(["plan", model, "--gpus", "8", "--global-batch-size", "32", "--json"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("arguments", "words", "hint"),
    [
        (
            ["--tp", "5", "--pp", "1", "--gpus", "10", "--global-batch-size", "20"],
            "cannot be split over --tp 5",
            "works",
        ),
        (["--hw", "a100-80gb"], "unknown hardware", "did you mean `a100-80g`?"),
        (["--gpus", "1"], "layouts fits in 85.9 GB", "use more devices"),
        (["--schedule", "zb"], "unknown value of `schedule`", "hint"),
        (["--hw-file", "none.toml"], "cannot read none.toml", "hint"),
    ],
)
def test_mistakes_get_one_sentence_and_a_hint(model: str, capsys, arguments: list[str], words: str, hint: str) -> None:
    assert run(["plan", model, *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and hint in error
    assert "Traceback" not in error


def test_no_model_and_hardware_list(capsys) -> None:
    assert run(["plan"]) == 2
    assert "a model is missing" in capsys.readouterr().err
    assert run(["plan", "--list-hardware", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)["hardware"]
    assert table["h100"]["sources"]["peak_tflops"]


def test_shipped_recipe(capsys) -> None:
    assert run(["plan", "gpt3-175b", "--config", "megatron-175b", "--json", "--quiet"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["layout"]["pp"] == 12
    assert data["hardware_tflops_per_gpu"] == pytest.approx(153, rel=0.12)


def test_calibration_writes_a_file_that_can_be_used(model: str, tmp_path: Path, capsys, monkeypatch) -> None:
    from llmctl.planning import calibrate

    monkeypatch.setattr(calibrate, "SECONDS_EACH", 0.02)
    monkeypatch.setattr(calibrate, "ALL_REDUCE_BYTES", 1 << 18)
    path = tmp_path / "machine.toml"
    assert run(["plan", "--calibrate", "--hw-file", str(path)]) == 0
    assert run(["plan", "--calibrate", "--hw-file", str(path), "--json"]) == 0  # its own file may be written again
    foreign = tmp_path / "own.toml"
    foreign.write_text("[a100-80g]\nprice = 1.0\n", encoding="utf-8")
    assert run(["plan", "--calibrate", "--hw-file", str(foreign)]) == 2
    assert foreign.read_text(encoding="utf-8").startswith("[a100-80g]")
    tiny = tmp_path / "tiny.yaml"
    tiny.write_text(
        "num_layers: 2\nhidden_size: 64\nnum_heads: 4\nvocab_size: 320\nseq_len: 64\nffn_hidden_size: 128\n",
        encoding="utf-8",
    )
    capsys.readouterr()
    asked = ["--gpus", "1", "--tp", "1", "--pp", "1", "--micro-batch-size", "4", "--global-batch-size", "4"]
    command = ["plan", str(tiny), "--hw", "cpu", "--hw-file", str(path), "--precision", "fp32", "--json", *asked]
    assert run(command) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["fits"] and data["step_time_s"] > 0
    assert data["hardware"]["sources"]["matmul_tflops"] == "machine.toml"
