"""Checkpoints: complete or absent, damaged ones recognised, a full disk survived, the last one kept."""

from __future__ import annotations

import errno
import json
import threading
from collections import namedtuple

import pytest
import torch

from llmctl.config.load import build
from llmctl.errors import UserError
from llmctl.model.config import ModelConfig
from llmctl.model.transformer import Transformer
from llmctl.training import checkpoint as module
from llmctl.training.checkpoint import CheckpointStore, find_checkpoint, read_checkpoint
from llmctl.training.config import TrainingConfig
from llmctl.training.distributed import World
from llmctl.training.engines.native import NativeEngine
from llmctl.training.losses.next_token import NextTokenLoss
from llmctl.training.tensors import StoredTensors, write_tensors

SHAPE = ModelConfig(31, 1, 16, 2, 1, 0, 24)


@pytest.fixture
def engine():
    torch.set_num_threads(1)
    config = build(TrainingConfig, {"precision": "fp32", "engine": "native"})
    made = NativeEngine(Transformer(SHAPE, seed=0), config, World())
    ids = torch.arange(12).view(2, 6)
    made.step([{"input_ids": ids, "labels": ids}], NextTokenLoss(), 1e-2)
    return made


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


def test_keep_the_newest(tmp_path, engine):
    store = CheckpointStore(tmp_path, 2, World())
    for step in (1, 2, 3):
        assert store.save(step, {"model": engine}, {"tokens": step}, {})
    assert names(store) == ["latest", "step-00000002", "step-00000003"]
    newest = store.newest()
    assert (newest.step, newest.state) == (3, {"tokens": 3})
    assert find_checkpoint(tmp_path) == newest.folder


def test_a_checkpoint_in_the_background_holds_the_state_of_its_step(tmp_path, engine, monkeypatch):
    """Training goes on while it is written: what is written is the copy, and `settle` waits for it."""
    at_once = CheckpointStore(tmp_path / "at-once", 2, World())
    at_once.save(1, {"model": engine}, {"tokens": 1}, {})
    store = CheckpointStore(tmp_path / "behind", 2, World())
    go_on, write = threading.Event(), module.write_snapshot

    def slow(*arguments, **named):
        assert go_on.wait(60)
        return write(*arguments, **named)

    monkeypatch.setattr(module, "write_snapshot", slow)
    state = {"tokens": 1}
    assert store.save(1, {"model": engine}, state, {}, background=True)
    assert store.complete() == []
    ids = torch.arange(12).view(2, 6)
    engine.step([{"input_ids": ids, "labels": ids}], NextTokenLoss(), 1e-2)
    state["tokens"] = 2
    go_on.set()
    assert store.settle()
    assert store.newest().state == {"tokens": 1} and store.newest_step() == 1
    tensors = "step-00000001/model/tensors-00001.safetensors"
    assert (store.folder / tensors).read_bytes() == (at_once.folder / tensors).read_bytes()
    assert (store.folder / "step-00000001/manifest.json").read_bytes() == (
        at_once.folder / "step-00000001/manifest.json"
    ).read_bytes()


def test_a_disk_that_fills_in_the_background_is_told_and_the_one_before_kept(tmp_path, engine, capsys, monkeypatch):
    store = CheckpointStore(tmp_path, 1, World())
    store.save(1, {"model": engine}, {}, {})

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("llmctl.training.tensors.adopt_file", full)
        assert store.save(2, {"model": engine}, {}, {}, background=True)
        assert not store.settle()
    assert "no checkpoint of step 2" in capsys.readouterr().err
    assert names(store) == ["latest", "step-00000001"]


def test_no_copy_where_memory_is_short(tmp_path, engine, monkeypatch):
    monkeypatch.setattr(module, "_available_memory", lambda: 10)
    store = CheckpointStore(tmp_path, 1, World())
    assert store.save(1, {"model": engine}, {}, {}, background=True)
    assert store.newest_step() == 1  # written before `save` returned


def test_no_pickle_in_a_checkpoint(tmp_path, engine):
    store = CheckpointStore(tmp_path, 2, World())
    store.save(1, {"model": engine}, {}, {})
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors", ""}  # `latest` has none
    assert not any(path.read_bytes()[:2] in (b"\x80\x02", b"\x80\x04", b"PK") for path in files)


@pytest.mark.parametrize("damage", ["flip", "cut", "delete", "no manifest"])
def test_damage_is_recognised_and_the_one_before_used(tmp_path, engine, capsys, damage):
    store = CheckpointStore(tmp_path, 3, World())
    for step in (1, 2):
        store.save(step, {"model": engine}, {}, {})
    folder = store.folder / "step-00000002"
    target = folder / "model" / "tensors-00001.safetensors"
    data = bytearray(target.read_bytes())
    if damage == "flip":
        data[-3] ^= 4
        target.write_bytes(data)
    elif damage == "cut":
        target.write_bytes(data[:-1])
    elif damage == "delete":
        target.unlink()
    else:
        (folder / "manifest.json").unlink()
    assert store.newest().step == 1
    if damage != "no manifest":  # that one was never complete
        assert "damaged" in capsys.readouterr().err
        with pytest.raises(UserError, match="damaged"):
            read_checkpoint(folder)


def test_an_unfinished_one_is_never_seen(tmp_path, engine):
    store = CheckpointStore(tmp_path, 2, World())
    store.save(1, {"model": engine}, {}, {})
    leftover = store.folder / "step-00000002.tmp-write" / "model"
    leftover.mkdir(parents=True)
    (leftover / "tensors.json").write_text("{}")
    assert store.newest().step == 1
    assert names(store) == ["latest", "step-00000001"]


def test_a_full_disk_does_not_end_the_run(tmp_path, engine, capsys, monkeypatch):
    store = CheckpointStore(tmp_path, 1, World())
    assert store.save(1, {"model": engine}, {}, {})
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "disk_usage", lambda path: usage(10, 9, 1))
        assert not store.save(2, {"model": engine}, {}, {})
    assert "free some space" in capsys.readouterr().err

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("llmctl.training.tensors.adopt_file", full)
        assert not store.save(3, {"model": engine}, {}, {})
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_json", full)
        assert not store.save(4, {"model": engine}, {}, {})
    assert names(store) == ["latest", "step-00000001"]
    assert store.newest().step == 1
    assert store.save(5, {"model": engine}, {}, {})
    assert names(store) == ["latest", "step-00000005"]


def test_tensors_are_exhausted_after_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("llmctl.training.tensors.FILE_BYTES", 1)
    seen = []

    def tensors():
        for number in range(4):
            seen.append(number)
            yield str(number), torch.zeros(3)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr("llmctl.training.tensors.adopt_file", full)
        with pytest.raises(OSError, match="full"):
            write_tensors(tmp_path, tensors(), {})
    assert seen == [0, 1, 2, 3]  # other processes take part in making each of them


def test_stored_tensors_refuse_what_they_should(tmp_path):
    write_tensors(tmp_path, [("a", torch.arange(6.0).view(2, 3))], {"n": 1})
    stored = StoredTensors(tmp_path)
    assert stored.scalars == {"n": 1}
    assert torch.equal(stored.piece("a")[1:, :2], torch.tensor([[3.0, 4.0]]))
    with pytest.raises(UserError, match="lacks `b`"):
        stored.piece("b")
    index = json.loads((tmp_path / "tensors.json").read_text())
    index["tensors"]["a"] = "../../etc/passwd"
    (tmp_path / "tensors.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="leads out"):
        StoredTensors(tmp_path)


def test_another_model_is_refused(tmp_path, engine):
    engine.save(tmp_path / "e")
    other = NativeEngine(
        Transformer(ModelConfig(31, 1, 16, 2, 1, 0, 32), seed=0),
        build(TrainingConfig, {"precision": "fp32"}),
        World(),
    )
    with pytest.raises(UserError, match="instead of"):
        other.load(tmp_path / "e")
