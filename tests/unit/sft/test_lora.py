"""Adapters: nothing changes at first, merging keeps the logits, peft reads them, and runs resume exactly."""

from __future__ import annotations

import json

import pytest
import torch

from llmctl.config.common import RunOptions
from llmctl.errors import UserError
from llmctl.model.huggingface import load_model
from llmctl.model.lora import add_lora, load_adapter, merge, read_tensors
from llmctl.sft.config import SftConfig
from llmctl.sft.stage import run


def config(**changes) -> SftConfig:
    values = {
        "precision": "fp32", "tensorboard": False, "lr": 1e-2, "epochs": 4.0, "seq_len": 64, "min_seed": 0,
        "global_batch_size": 4, "micro_batch_size": 2, "checkpoint_every": 2, "warmup_fraction": 0.0, "device": "cpu",
        "threads": 1, "lora_rank": 4, "stop_on_rise": 0.0, **changes,
    }  # fmt: skip
    return SftConfig(**values)


def logits(model) -> torch.Tensor:
    ids = torch.arange(3, 40).unsqueeze(0)
    with torch.no_grad():
        return model.logits(model(ids))


@pytest.mark.parametrize("dora", [False, True])
def test_nothing_changes_at_first_and_adapters_alone_are_trained(base, dora: bool) -> None:
    plain, adapted = load_model(base), load_model(base)
    add_lora(adapted, 4, 8.0, dora=dora, seed=0)
    assert float((logits(plain) - logits(adapted)).abs().max()) < 1e-5
    trained = {name.rsplit(".", 1)[-1] for name, item in adapted.named_parameters() if item.requires_grad}
    assert trained == {"lora_a", "lora_b", *(["magnitude"] if dora else [])}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dora", [False, True])
def test_learns_merges_and_is_read_by_peft(tmp_path, made, dora: bool, tied: bool) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    base = made.tiny_model(tmp_path / "base", tied_embeddings=tied)
    data = made.write_lines(tmp_path / "data.jsonl", made.conversations(40))
    manifest = run(data, tmp_path / "out", config(dora=dora), RunOptions(), model=base)
    losses = manifest.statistics["validation_loss"]
    assert losses["after"] < losses["before"] - 0.2
    merged = load_model(tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model")
    with_adapter = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), tmp_path / "out" / "adapter"
    )
    ids = torch.arange(3, 40).unsqueeze(0)
    with torch.no_grad():
        wanted = with_adapter.eval()(ids).logits
        assert float((theirs(ids).logits - wanted).abs().max()) < 1e-4
    assert float((logits(merged) - wanted).abs().max()) < 1e-4
    assert float((logits(load_model(base)) - wanted).abs().max()) > 1e-2, "the adapter does something"
    # Embeddings and norms are those of the base, to the bit, tied or not.
    before, after = (dict(load_model(folder).named_parameters()) for folder in (base, tmp_path / "out"))
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before if "_proj" not in name)


@pytest.mark.parametrize("dora", [False, True])
def test_the_command_merges_what_the_run_merged(tmp_path, made, base, capsys, dora: bool) -> None:
    from llmctl.cli.app import run as llmctl

    data = made.write_lines(tmp_path / "data.jsonl", made.conversations(16))
    run(data, tmp_path / "out", config(dora=dora, epochs=1.0), RunOptions(), model=base)
    for number, adapter in enumerate((tmp_path / "out", tmp_path / "out" / "adapter")):
        assert llmctl(["merge", str(base), str(adapter), str(tmp_path / f"merged{number}")]) == 0
        one, other = (load_model(folder) for folder in (tmp_path / "out", tmp_path / f"merged{number}"))
        assert float((logits(one) - logits(other)).abs().max()) < 1e-5
    assert llmctl(["merge", str(base), str(tmp_path / "out"), str(tmp_path / "merged0")]) == 0  # a second run: nothing
    assert llmctl(["merge", str(base), str(base), str(tmp_path / "none")]) == 2
    assert "holds no adapter" in capsys.readouterr().err
    other = made.tiny_model(tmp_path / "other", hidden_size=32)
    assert llmctl(["merge", str(other), str(tmp_path / "out"), str(tmp_path / "wrong")]) == 2
    assert "give the model that it was trained on" in capsys.readouterr().err


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path, made, base, monkeypatch) -> None:
    from llmctl.training.run import TrainingRun

    data = made.write_lines(tmp_path / "data.jsonl", made.conversations(40))
    whole = run(data, tmp_path / "whole", config(epochs=1.0), RunOptions(), model=base)
    record = TrainingRun.record

    def dies(self, step, *arguments, **extra):
        if step == 5:
            raise KeyboardInterrupt
        return record(self, step, *arguments, **extra)

    monkeypatch.setattr(TrainingRun, "record", dies)
    with pytest.raises(KeyboardInterrupt):
        run(data, tmp_path / "cut", config(epochs=1.0), RunOptions(), model=base)
    monkeypatch.undo()
    assert run(data, tmp_path / "cut", config(epochs=1.0), RunOptions(), model=base).to_mapping() == whole.to_mapping()


def test_adapters_of_another_model_or_kind_are_refused(tmp_path, made, base) -> None:
    data = made.write_lines(tmp_path / "data.jsonl", made.conversations(8))
    run(data, tmp_path / "out", config(steps=1), RunOptions(), model=base)
    adapter, scale = load_adapter(tmp_path / "out" / "adapter")
    other = made.tiny_model(tmp_path / "other", hidden_size=32)
    with pytest.raises(UserError, match="of shape"):
        list(merge(read_tensors(other), adapter, scale))
    path = tmp_path / "out" / "adapter" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rank_pattern": {"q_proj": 8}}))
    with pytest.raises(UserError, match="rank_pattern"):
        load_adapter(path.parent)
    with pytest.raises(UserError, match="holds no adapter"):
        load_adapter(tmp_path)
    with pytest.raises(UserError, match="without adapters"):
        config(lora_rank=0, dora=True).validate()
