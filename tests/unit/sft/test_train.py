"""Training: it learns, it learns to stop, it stops when validation turns up, and a killed run goes on exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from llmctl.config.common import RunOptions
from llmctl.model.generation import Sampling, generate
from llmctl.model.huggingface import load_model
from llmctl.sft.config import SftConfig
from llmctl.sft.stage import run
from llmctl.training.conversations.formats import read_prompt
from llmctl.training.conversations.template import load_chat_template


def config(**changes) -> SftConfig:
    values = {
        "precision": "fp32", "tensorboard": False, "lr": 5e-3, "epochs": 4.0, "seq_len": 64, "min_seed": 0,
        "global_batch_size": 4, "micro_batch_size": 2, "checkpoint_every": 2, "warmup_fraction": 0.0, "device": "cpu",
        "threads": 1, **changes,
    }  # fmt: skip
    return SftConfig(**values)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_learns_answers_and_to_stop(tmp_path, made, base) -> None:
    data = made.write_lines(tmp_path / "data.jsonl", made.conversations(2))
    manifest = run(
        data,
        tmp_path / "out",
        config(epochs=60, validation_fraction=0.0, stop_on_rise=0.0, checkpoint_every=0),
        RunOptions(),
        model=base,
    )
    assert manifest is not None and manifest.kind == "model"
    template = load_chat_template(tmp_path / "out" / "model")
    assert not template.is_default, "the template is saved with the model"
    assert template.sha256 == manifest.statistics["chat_template_sha256"]
    model = load_model(tmp_path / "out")
    for record in made.conversations(2):
        (prompt,) = template.prompts([read_prompt(record)])
        (answer,) = generate(
            model, [prompt], max_new_tokens=30, stop_ids=template.stop_ids, sampling=Sampling(temperature=0)
        )
        assert answer.stopped
        assert template.decode(answer.ids) == record["messages"][1]["content"]


def test_model_opens_in_transformers_with_the_same_logits_and_stop_tokens(tmp_path, made, base) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    data = made.write_lines(tmp_path / "data.jsonl", made.conversations(8))
    run(data, tmp_path / "out", config(steps=2), RunOptions(), model=base)
    folder = tmp_path / "out" / "model"
    theirs, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], return_tensors="pt")["input_ids"]
    ours = load_model(folder)
    with torch.no_grad():
        assert float((theirs(ids).logits - ours.logits(ours(ids))).abs().max()) < 1e-4
    assert set(theirs.generation_config.eos_token_id) == set(load_chat_template(folder).stop_ids)


def test_validation_loss_is_recorded_before_and_after(tmp_path, made, base) -> None:
    data = made.write_lines(tmp_path / "data.jsonl", made.conversations(40))
    validation = made.write_lines(tmp_path / "validation.jsonl", made.conversations(8, first=200))
    manifest = run(data, tmp_path / "out", config(), RunOptions(), model=base, validation=validation)
    found = lines(tmp_path / "out" / "validation.jsonl")
    assert found[0]["step"] == 0 and found[-1]["step"] == manifest.statistics["steps"]
    assert found[-1]["loss"] < 0.8 * found[0]["loss"]
    losses = manifest.statistics["validation_loss"]
    assert losses["before"] == pytest.approx(found[0]["loss"], abs=1e-4)
    assert losses["after"] == pytest.approx(found[-1]["loss"], abs=1e-4)


def test_stops_when_validation_turns_up_and_keeps_the_best(tmp_path, made, base) -> None:
    data = made.write_lines(tmp_path / "data.jsonl", made.conversations(8))
    contrary = made.conversations(8, first=300)
    for record in contrary:
        record["messages"][1]["content"] = "quick brown"
    validation = made.write_lines(tmp_path / "validation.jsonl", contrary)
    settings = config(epochs=100.0, eval_every=2, lr=1e-2, checkpoint_every=4)
    manifest = run(data, tmp_path / "out", settings, RunOptions(), model=base, validation=validation)
    statistics = manifest.statistics
    assert statistics["stopped_early"] and statistics["steps"] < 100
    assert statistics["exported_step"] < statistics["steps"]
    found = {line["step"]: line["loss"] for line in lines(tmp_path / "out" / "validation.jsonl")}
    assert found[statistics["exported_step"]] == min(loss for step, loss in found.items() if step)
    # The exported weights are those of that step: validating them again gives its loss.
    again = run(
        data,
        tmp_path / "again",
        config(steps=1, lr=0.0),
        RunOptions(),
        model=tmp_path / "out",
        validation=validation,
    )
    assert again.statistics["validation_loss"]["before"] == pytest.approx(found[statistics["exported_step"]], abs=1e-3)
    assert not (tmp_path / "out" / "best").exists()


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path, made, base, monkeypatch) -> None:
    from llmctl.training.run import TrainingRun

    data = made.write_lines(tmp_path / "data.jsonl", made.conversations(40))
    whole = run(data, tmp_path / "whole", config(epochs=2.0), RunOptions(), model=base)
    record = TrainingRun.record

    def dies(self, step, *arguments, **extra):
        if step == 3:
            raise KeyboardInterrupt
        return record(self, step, *arguments, **extra)

    monkeypatch.setattr(TrainingRun, "record", dies)
    with pytest.raises(KeyboardInterrupt):
        run(data, tmp_path / "cut", config(epochs=2.0), RunOptions(), model=base)
    monkeypatch.undo()
    resumed = run(data, tmp_path / "cut", config(epochs=2.0), RunOptions(), model=base)
    assert resumed.to_mapping() == whole.to_mapping(), "the weights' checksums are in the manifest"
    keys = ("step", "loss", "grad_norm", "lr", "tokens")
    metrics = [
        [{key: line[key] for key in keys} for line in lines(tmp_path / name / "metrics.jsonl")]
        for name in ("whole", "cut")
    ]
    assert metrics[0] == metrics[1] and metrics[0][-1]["step"] == whole.statistics["steps"]
    assert lines(tmp_path / "whole" / "validation.jsonl") == lines(tmp_path / "cut" / "validation.jsonl")


def test_micro_batches_and_packing_do_not_change_the_loss(tmp_path, made, base) -> None:
    data = made.write_lines(tmp_path / "data.jsonl", made.conversations(12))
    losses = []
    for number, changes in enumerate(
        ({"micro_batch_size": 1}, {"micro_batch_size": 4}, {"packing": "off", "global_batch_size": 12})
    ):
        # All the data in one step: packed or not, cut or not, it is the same sum over the same tokens.
        settings = config(steps=1, **{"global_batch_size": 12, "validation_fraction": 0.0, "lr": 1e-3, **changes})
        run(data, tmp_path / f"out{number}", settings, RunOptions(), model=base)
        losses.append(lines(tmp_path / f"out{number}" / "metrics.jsonl")[0])
    for line in losses[1:]:
        assert line["loss"] == pytest.approx(losses[0]["loss"], rel=1e-5)
        assert line["grad_norm"] == pytest.approx(losses[0]["grad_norm"], rel=1e-4)
