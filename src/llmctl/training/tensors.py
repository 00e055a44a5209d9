"""Full tensors of a run on disk: safetensors files and a JSON index, the same for every engine and layout.

Tensors are gathered one at a time and written by process 0, so the files do not depend on how they were split.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from llmctl.artifacts.files import adopt_file, safe_relative, write_json
from llmctl.errors import UserError
from llmctl.model.weights_file import write_safetensors

INDEX_NAME = "tensors.json"
FILE_BYTES = 1 << 30


def write_tensors(folder: Path, tensors: Iterable[tuple[str, torch.Tensor]], scalars: dict[str, Any]) -> None:
    """Write named tensors in files of about 1 GiB, then the index; each file is fsynced.

    Args:
        tensors: consumed lazily; it is always exhausted, also after an error, because other processes take part.
        scalars: plain values that belong to them.

    Raises:
        OSError: the disk is full, say; raised once the tensors are exhausted.
    """
    index: dict[str, str] = {}
    group: dict[str, torch.Tensor] = {}
    size, failure = 0, None
    iterator = iter(tensors)
    for name, tensor in iterator:
        if failure is not None:
            continue
        group[name] = tensor.detach().contiguous().cpu()
        size += tensor.numel() * tensor.element_size()
        if size >= FILE_BYTES:
            failure = _write_group(folder, group, index)
            group, size = {}, 0
    if failure is None and group:
        failure = _write_group(folder, group, index)
    if failure is not None:
        raise failure
    write_json(folder, INDEX_NAME, {"format": 1, "tensors": index, "scalars": scalars})


def write_snapshot(
    folder: Path, snapshot: tuple[Iterable[tuple[str, torch.Tensor]], dict[str, Any]], is_main: bool
) -> None:
    """Write an engine's snapshot on process 0; elsewhere take part in gathering it.

    Raises:
        OSError: the disk is full, say.
    """
    tensors, scalars = snapshot
    if is_main:
        write_tensors(folder, tensors, scalars)
        return
    for _ in tensors:
        pass


def _write_group(folder: Path, group: dict[str, torch.Tensor], index: dict[str, str]) -> OSError | None:
    name = f"tensors-{len(set(index.values())) + 1:05d}.safetensors"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_safetensors(folder / name, group)
        adopt_file(folder, name)
    except OSError as failure:
        return failure
    index.update(dict.fromkeys(group, name))
    return None


class StoredTensors:
    """Read tensors that `write_tensors` wrote, whole or by slices, without reading the rest."""

    def __init__(self, folder: Path) -> None:
        try:
            loaded = json.loads((folder / INDEX_NAME).read_bytes())
            self.scalars: dict[str, Any] = loaded["scalars"]
            self._files = {str(name): safe_relative(str(file), str(folder)) for name, file in loaded["tensors"].items()}
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"{folder} holds no readable {INDEX_NAME}", "use another checkpoint") from None
        self._folder = folder
        self._handles: dict[str, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def names(self) -> Iterator[str]:
        """Yield the names of all tensors."""
        yield from self._files

    def piece(self, name: str) -> Any:
        """Return a lazily read tensor: index it with slices, ``[:]`` for the whole.

        Raises:
            UserError: there is no such tensor, or the file cannot be read.
        """
        from safetensors import SafetensorError, safe_open

        if name not in self._files:
            raise UserError(f"{self._folder} lacks `{name}`", "the checkpoint belongs to another model")
        file = self._files[name]
        try:
            if file not in self._handles:
                self._handles[file] = safe_open(self._folder / file, framework="pt")
            return self._handles[file].get_slice(name)
        except (SafetensorError, OSError) as failure:
            raise UserError(f"cannot read {self._folder / file}: {failure}", "use another checkpoint") from None

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return tuple(self.piece(name).get_shape())
