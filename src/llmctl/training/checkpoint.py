"""Checkpoints of a run: complete or absent, checked before they are used, the last complete one never deleted first.

``checkpoints/step-00000100/`` is an artifact of kind `checkpoint`: one folder of full tensors per engine,
``state.json``, and a manifest with the checksum of every file. It is written under a temporary name and renamed;
then ``checkpoints/latest`` is replaced. A thread may write it from a copy while the training goes on.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llmctl
from llmctl import console
from llmctl.artifacts.files import TEMPORARY_MARK, adopt_file, fsync_directory, write_file, write_json
from llmctl.artifacts.kinds import KINDS
from llmctl.artifacts.manifest import MANIFEST_NAME, Manifest, read_manifest
from llmctl.errors import LlmctlError, UserError
from llmctl.training.distributed import World
from llmctl.training.engines.base import Engine
from llmctl.training.tensors import write_snapshot

if TYPE_CHECKING:
    import torch

    Snapshot = tuple[Iterable[tuple[str, torch.Tensor]], dict[str, Any]]

FOLDER = "checkpoints"
LATEST = "latest"
STATE_NAME = "state.json"
# Weights and two moments in float32.
BYTES_PER_PARAMETER = 12
# A copy in memory is made only where this many times its size is free.
MEMORY_MARGIN = 1.5
_NO_SPACE, _AT_ONCE, _IN_BACKGROUND = "no space", "at once", "in the background"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its folder, the last finished step, and the run's own state as plain JSON."""

    folder: Path
    step: int
    state: dict[str, Any]


def folder_name(step: int) -> str:
    """Return the name of the checkpoint of a step."""
    return f"step-{step:08d}"


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        root: the run's folder.
        keep: how many complete checkpoints stay.
    """

    def __init__(self, root: Path, keep: int, world: World) -> None:
        self.root, self.folder, self.keep, self.world = root, root / FOLDER, keep, world
        self._pending: _Write | None = None

    def save(
        self,
        step: int,
        engines: Mapping[str, Engine],
        state: dict[str, Any],
        config: dict[str, Any],
        *,
        background: bool = False,
    ) -> bool:
        """Write the checkpoint of a step; every process calls it.

        Args:
            background: copy the state and return; a thread of process 0 writes it. `settle` says what came of it.
                Where memory is short for the copy, it is written at once.

        Returns:
            False if the disk is too full: the run goes on, and the checkpoints before stay.
        """
        self.settle()
        verdict = self._verdict(engines, background) if self.world.is_main else None
        verdict = self.world.broadcast(verdict)
        if verdict == _NO_SPACE:
            return False
        write = _Write(self, step, json.loads(json.dumps(state)), config)
        for name, engine in engines.items():
            write.take(name, engine.snapshot(), copy=verdict == _IN_BACKGROUND)
        if verdict == _IN_BACKGROUND:
            self._pending = write
            write.start()
            return True
        write.finish()
        return self._tell(write)

    def settle(self) -> bool:
        """Wait for a checkpoint that is being written in the background; every process calls it.

        Returns:
            False if one was being written and could not be.
        """
        write, self._pending = self._pending, None
        if write is None:
            return True
        write.join()
        return self._tell(write)

    def join(self) -> None:
        """Let a write in the background end, without asking the other processes."""
        if self._pending is not None:
            self._pending.join()

    def _tell(self, write: _Write) -> bool:
        if self.world.is_main and write.failure is not None:
            console.warning(
                f"no checkpoint of step {write.step}: {write.failure}", "free some space; the training goes on"
            )
        return bool(self.world.broadcast(write.failure is None))

    def _verdict(self, engines: Mapping[str, Engine], background: bool) -> str:
        needed = self._needed_bytes(engines)
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            console.warning(
                f"no checkpoint: it needs {needed / 1e9:.2f} GB, and {free / 1e9:.2f} GB are free",
                "free some space; the training goes on",
            )
            return _NO_SPACE
        return _IN_BACKGROUND if background and _available_memory() > MEMORY_MARGIN * needed else _AT_ONCE

    def _needed_bytes(self, engines: Mapping[str, Engine]) -> int:
        newest = next(iter(self.complete()), None)
        if newest is not None:
            return sum(file.stat().st_size for file in newest.rglob("*") if file.is_file())
        sizes = [sum(parameter.numel() for parameter in engine.model.parameters()) for engine in engines.values()]
        return BYTES_PER_PARAMETER * sum(sizes) * self.world.layout.tp * self.world.layout.pp

    def complete_write(self, temporary: Path, step: int, state: dict[str, Any], config: dict[str, Any]) -> None:
        """Add state and manifest to a written checkpoint and give it its name; process 0 calls it."""
        write_json(temporary, STATE_NAME, state)
        names = sorted(str(path.relative_to(temporary)) for path in temporary.rglob("*") if path.is_file())
        manifest = Manifest(
            kind="checkpoint",
            stage="training",
            config=config,
            files=[adopt_file(temporary, name) for name in names],
            statistics={"step": step},
            schema_version=KINDS["checkpoint"].schema_version,
            tool_version=llmctl.__version__,
        )
        manifest.write(temporary)
        final = self.folder / folder_name(step)
        if final.exists():  # a damaged one of the same step, or one from before a restart
            shutil.rmtree(final)
        os.replace(temporary, final)
        fsync_directory(self.folder)
        write_file(self.folder, LATEST, f"{final.name}\n".encode())
        for old in self.complete()[self.keep :]:
            shutil.rmtree(old, ignore_errors=True)

    def complete(self) -> list[Path]:
        """Return the folders of finished checkpoints, newest first (their checksums are not read)."""
        if not self.folder.is_dir():
            return []
        found = [path for path in self.folder.glob("step-*") if TEMPORARY_MARK not in path.name]
        return sorted((path for path in found if (path / MANIFEST_NAME).is_file()), reverse=True)

    def newest_step(self) -> int:
        """Return the step of the newest finished checkpoint, 0 if there is none."""
        newest = next(iter(self.complete()), None)
        return int(newest.name.removeprefix("step-")) if newest is not None else 0

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint whose files are whole; tells about damaged ones. Every process calls it."""
        choice = None
        if self.world.is_main:
            for leftover in self.folder.glob(f"step-*{TEMPORARY_MARK}*") if self.folder.is_dir() else ():
                shutil.rmtree(leftover, ignore_errors=True)
            for folder in self.complete():
                try:
                    checkpoint = read_checkpoint(folder)
                    choice = {"name": folder.name, "step": checkpoint.step, "state": checkpoint.state}
                    break
                except UserError as failure:
                    console.warning(f"{failure.problem}", "the checkpoint before it is used")
        choice = self.world.broadcast(choice)
        if choice is None:
            return None
        return Checkpoint(self.folder / choice["name"], int(choice["step"]), choice["state"])


class _Write:
    """One checkpoint on its way to the disk: tensors of each engine, then state and manifest, then the name."""

    def __init__(self, store: CheckpointStore, step: int, state: dict[str, Any], config: dict[str, Any]) -> None:
        self.store, self.step, self.state, self.config = store, step, state, config
        self.failure: OSError | LlmctlError | None = None
        self._temporary = store.folder / f"{folder_name(step)}{TEMPORARY_MARK}write"
        self._copies: dict[str, Snapshot] = {}
        self._thread: threading.Thread | None = None
        if store.world.is_main:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def take(self, name: str, snapshot: Snapshot, copy: bool) -> None:
        """Copy an engine's state for later, or write it; every process calls it."""
        is_main = self.store.world.is_main
        if copy:
            tensors, scalars = snapshot
            # Other processes take part in gathering each tensor, and keep nothing.
            copies = []
            for key, tensor in tensors:
                if is_main:
                    copies.append((key, tensor.detach().to("cpu", copy=True)))
            self._copies[name] = (copies, scalars)
            return
        try:
            write_snapshot(self._temporary / name, snapshot, is_main)
        except (OSError, LlmctlError) as problem:  # process 0 only: it alone writes
            self.failure = problem

    def start(self) -> None:
        """Write the copies in a thread of process 0."""
        if self.store.world.is_main:
            self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            for name in list(self._copies):
                write_snapshot(self._temporary / name, self._copies.pop(name), is_main=True)
        except (OSError, LlmctlError) as problem:
            self.failure = problem
        self.finish()

    def finish(self) -> None:
        """Complete what has been written, or take it away."""
        if not self.store.world.is_main:
            return
        if self.failure is None:
            try:
                self.store.complete_write(self._temporary, self.step, self.state, self.config)
            except (OSError, LlmctlError) as problem:
                self.failure = problem
        if self.failure is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def join(self) -> None:
        """Wait for the thread."""
        if self._thread is not None:
            self._thread.join()


def _available_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint and check all its checksums.

    Raises:
        UserError: it is not complete, or a file differs from its checksum.
    """
    manifest = read_manifest(folder, ("checkpoint",))
    damage = manifest.damaged_files()
    if damage:
        raise UserError(f"the checkpoint {folder} is damaged: {damage[0]}", "use another checkpoint")
    try:
        state = json.loads((folder / STATE_NAME).read_bytes())
        return Checkpoint(folder, int(manifest.statistics["step"]), dict(state))
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"the checkpoint {folder} has no readable {STATE_NAME}", "use another checkpoint") from None


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint folder that a path names: itself, or the newest one of a run's folder.

    Raises:
        UserError: there is none.
    """
    if (path / STATE_NAME).is_file():
        return path
    store = CheckpointStore(path, 1, World())
    complete = store.complete()
    if not complete:
        raise UserError(f"{path} holds no checkpoint", "give a run's folder, or one of its checkpoints/step-*")
    return complete[0]
