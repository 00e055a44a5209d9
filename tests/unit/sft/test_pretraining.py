"""Pretraining text in sft: its share of every batch, isolation, resume, and the report of what is forgotten."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from llmctl.artifacts.shards import open_shards
from llmctl.cli.app import run as llmctl
from llmctl.config.common import RunOptions
from llmctl.errors import UserError
from llmctl.model.huggingface import load_model
from llmctl.sft.config import SftConfig
from llmctl.sft.data import batch_plan
from llmctl.sft.packing import collate
from llmctl.sft.prepare import to_rows
from llmctl.sft.pretraining import PretrainingText
from llmctl.sft.stage import run
from llmctl.training.conversations.formats import read_conversations


def config(shards: Path, **changes) -> SftConfig:
    values = {
        "precision": "fp32", "tensorboard": False, "lr": 5e-3, "epochs": 2.0, "seq_len": 64, "min_seed": 0,
        "global_batch_size": 4, "micro_batch_size": 2, "checkpoint_every": 2, "warmup_fraction": 0.0, "device": "cpu",
        "threads": 1, "pretrain_shards": str(shards), "pretrain_validation_fraction": 0.2, **changes,
    }  # fmt: skip
    return SftConfig(**values)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def make_shards(root: Path, tokenizer: Path) -> Path:
    texts = [f"brown fox number {number} and the quick world, {'again and ' * (number % 5)}so" for number in range(40)]
    (root / "raw.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    command = ["tokenize", str(root / "raw.jsonl"), str(root / "tok"), "--tokenizer", str(tokenizer), "--workers", "1"]
    assert llmctl(command) == 0
    assert llmctl(["shard", str(root / "tok"), str(root / "shards"), "--workers", "1"]) == 0
    return root / "shards"


@pytest.fixture(scope="module")
def shards(base, tmp_path_factory) -> Path:
    return make_shards(tmp_path_factory.mktemp("text"), base)


@pytest.fixture(scope="module")
def rows(made, template):
    return to_rows(template.render([read_conversations(record)[0] for record in made.conversations(40)]))


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("packing", ["isolate", "off"])
def test_share_of_every_batch(shards, rows, template, share: float, packing: str) -> None:
    settings = config(shards, mix_pretrain=share, packing=packing)
    text = PretrainingText(shards, settings, template, 320, rows, batch_plan(rows, settings))
    plan = batch_plan(rows, settings)
    per_epoch = text.loader.per_epoch
    for step in range(1, min(2 * plan.steps_per_epoch, per_epoch // text.pieces) + 1):
        found = text.lines(step)
        conversations = sum(int(rows.lengths[members].sum()) for members in plan.step(step))
        mixed = sum(len(line) for line in found)
        # One sequence of an epoch is the rest of the text, and may be shorter.
        wanted = conversations * share / (1 - share)
        assert mixed <= wanted + 1
        if all(len(line) >= int(wanted / text.pieces) for line in found):
            assert mixed == pytest.approx(wanted, abs=0.51)
        assert all(len(line) <= settings.seq_len and (line.labels >= 0).all() for line in found)
        again = PretrainingText(shards, settings, template, 320, rows, plan).lines(step)
        assert all((a.input_ids == b.input_ids).all() for a, b in zip(found, again, strict=True))


def test_text_is_of_training_documents_and_held_out_ones_are_whole(shards, rows, template) -> None:
    settings = config(shards, mix_pretrain=0.5)
    text = PretrainingText(shards, settings, template, 320, rows, batch_plan(rows, settings))
    documents = open_shards(shards)
    held = {tuple(documents.tokens(int(number)).tolist()) for number in text.held_out}
    found, num_bytes = text.held_out_lines()
    stream = [int(token) for line in found for token in line.labels]
    assert len(stream) == sum(len(document) for document in held)
    ends = np.flatnonzero(np.array(stream) == documents.eos_id) + 1
    pieces = {tuple(part.tolist()) for part in np.split(np.array(stream), ends[:-1])}
    assert pieces == held
    assert num_bytes == int(documents.num_bytes[text.held_out].sum())
    assert not set(text.loader.members.tolist()) & set(text.held_out.tolist())


def test_documents_beside_conversations_do_not_see_each_other(shards, rows, template, base) -> None:
    settings = config(shards, mix_pretrain=0.5)
    text = PretrainingText(shards, settings, template, 320, rows, batch_plan(rows, settings))
    model = load_model(base).eval()
    (line, *_), _ = text.held_out_lines()
    batch = collate(rows, [[0, 1], line], template.pad_id)
    with torch.no_grad():
        together = model(batch["input_ids"], position_ids=batch["position_ids"], document_ids=batch["document_ids"])[1]
        for number in np.unique(line.document_ids):
            chosen = torch.from_numpy(np.flatnonzero(line.document_ids == number))
            alone = model(batch["input_ids"][1:, chosen], position_ids=batch["position_ids"][1:, chosen])[0]
            assert float((together[chosen] - alone).abs().max()) < 1e-5


def test_report_of_what_is_forgotten(tmp_path, made, base, shards, capsys) -> None:
    data = made.write_lines(tmp_path / "data.jsonl", made.conversations(24))
    rises = []
    for number, share in enumerate((0.0, 0.5)):
        out = tmp_path / f"out{number}"
        capsys.readouterr()
        manifest = run(data, out, config(shards, mix_pretrain=share, steps=10), RunOptions(), model=base)
        found = manifest.statistics["pretraining"]
        told = [line for line in lines(out / "validation.jsonl") if line.get("set") == "pretraining"]
        assert [told[0]["step"], told[-1]["step"]] == [0, 10]
        assert found["perplexity"]["before"] == pytest.approx(told[0]["perplexity"], abs=1e-3)
        after = {line["step"]: line["perplexity"] for line in told}[manifest.statistics["exported_step"]]
        assert found["perplexity"]["after"] == pytest.approx(after, abs=1e-3)
        assert found["rise"] == pytest.approx(after / told[0]["perplexity"] - 1, abs=1e-3)
        assert "perplexity on held-out pretraining documents" in capsys.readouterr().err
        own = [line for line in lines(out / "validation.jsonl") if "set" not in line]
        assert own and math.isfinite(own[-1]["loss"])
        rises.append(found["rise"])
    assert rises[1] < rises[0], "what is mixed in is learned"


@pytest.mark.slow
def test_warning_when_more_is_forgotten_than_allowed(tmp_path, made, base, shards, capsys) -> None:
    """A model that knows the documents, then learns conversations with a high rate and nothing beside them."""
    data = made.write_lines(tmp_path / "data.jsonl", made.conversations(24))
    knows = tmp_path / "knows"
    run(data, knows, config(shards, mix_pretrain=0.9, steps=20), RunOptions(), model=base)
    capsys.readouterr()
    settings = config(shards, steps=10, lr=2e-2, max_forgetting=0.05)
    manifest = run(data, tmp_path / "out", settings, RunOptions(), model=knows)
    assert manifest.statistics["pretraining"]["rise"] > 0.05
    talk = capsys.readouterr().err
    assert "the model forgets" in talk and "--mix-pretrain 0.10" in talk


def test_a_killed_run_with_text_goes_on_exactly(tmp_path, made, base, shards, monkeypatch) -> None:
    from llmctl.training.run import TrainingRun

    data = made.write_lines(tmp_path / "data.jsonl", made.conversations(40))
    settings = config(shards, mix_pretrain=0.3, eval_every=2)
    whole = run(data, tmp_path / "whole", settings, RunOptions(), model=base)
    record = TrainingRun.record

    def dies(self, step, *arguments, **extra):
        if step == 4:
            raise KeyboardInterrupt
        return record(self, step, *arguments, **extra)

    monkeypatch.setattr(TrainingRun, "record", dies)
    with pytest.raises(KeyboardInterrupt):
        run(data, tmp_path / "cut", settings, RunOptions(), model=base)
    monkeypatch.undo()
    resumed = run(data, tmp_path / "cut", settings, RunOptions(), model=base)
    assert resumed.to_mapping() == whole.to_mapping(), "the weights' checksums are in the manifest"
    assert lines(tmp_path / "whole" / "validation.jsonl") == lines(tmp_path / "cut" / "validation.jsonl")


def test_mistakes(tmp_path, made, base, shards, rows, template) -> None:
    with pytest.raises(UserError, match="without pretraining text"):
        config(shards, pretrain_shards=None, mix_pretrain=0.1).validate()
    with pytest.raises(UserError, match="can be held out"):
        settings = config(shards, pretrain_validation_fraction=0.0)
        PretrainingText(shards, settings, template, 320, rows, batch_plan(rows, settings))
    other = tmp_path / "other"
    made.byte_tokenizer(["<|endoftext|>", "<|im_start|>"], eos_token="<|endoftext|>").save_pretrained(str(other))
    foreign = make_shards(tmp_path, other)
    settings = config(foreign)
    with pytest.raises(UserError, match="id 1 is `<|im_start|>`".replace("|", r"\|")):
        PretrainingText(foreign, settings, template, 320, rows, batch_plan(rows, settings))
