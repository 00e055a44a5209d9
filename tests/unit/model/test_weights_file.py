"""A weights file is written whole, or the system's error is told and nothing is left."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from llmctl.model.weights_file import write_safetensors


def test_tensors_come_back(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3)}
    write_safetensors(tmp_path / "w.safetensors", tensors, {"format": "pt"})
    assert torch.equal(load_file(tmp_path / "w.safetensors")["a"], tensors["a"])


def test_a_full_disk_is_the_systems_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.torch
    from safetensors import SafetensorError

    def full(tensors: dict, path: Path, metadata: dict | None = None) -> None:
        Path(path).write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError) as caught:
        write_safetensors(tmp_path / "w.safetensors", {"a": torch.zeros(1)})
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "w.safetensors"))
    assert not list(tmp_path.iterdir())
