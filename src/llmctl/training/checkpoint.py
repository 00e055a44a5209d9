"""Checkpoints of a run: complete or absent, checked before they are used, the last complete one never deleted first.

``checkpoints/step-00000100/`` is an artifact of kind `checkpoint`: one folder of full tensors per engine,
``state.json``, and a manifest with the checksum of every file. It is written under a temporary name and renamed;
then ``checkpoints/latest`` is replaced.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llmctl
from llmctl import console
from llmctl.artifacts.files import TEMPORARY_MARK, adopt_file, fsync_directory, write_file, write_json
from llmctl.artifacts.kinds import KINDS
from llmctl.artifacts.manifest import MANIFEST_NAME, Manifest, read_manifest
from llmctl.errors import LlmctlError, UserError
from llmctl.training.distributed import World
from llmctl.training.engines.base import Engine

FOLDER = "checkpoints"
LATEST = "latest"
STATE_NAME = "state.json"
# Weights and two moments in float32.
BYTES_PER_PARAMETER = 12


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

    def save(self, step: int, engines: Mapping[str, Engine], state: dict[str, Any], config: dict[str, Any]) -> bool:
        """Write the checkpoint of a step; every process calls it.

        Returns:
            False if the disk is too full: the run goes on, and the checkpoints before stay.
        """
        if not self.world.broadcast(self._has_space(engines) if self.world.is_main else None):
            return False
        temporary = self.folder / f"{folder_name(step)}{TEMPORARY_MARK}write"
        failure: OSError | LlmctlError | None = None
        if self.world.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
        for name, engine in engines.items():
            try:
                engine.save(temporary / name)
            except (OSError, LlmctlError) as problem:  # process 0 only: it alone writes
                failure = problem
        if self.world.is_main and failure is None:
            try:
                self._complete(temporary, step, state, config)
            except (OSError, LlmctlError) as problem:
                failure = problem
        if self.world.is_main and failure is not None:
            shutil.rmtree(temporary, ignore_errors=True)
            console.warning(f"no checkpoint of step {step}: {failure}", "free some space; the training goes on")
        return bool(self.world.broadcast(failure is None))

    def _has_space(self, engines: Mapping[str, Engine]) -> bool:
        sizes = [sum(parameter.numel() for parameter in engine.model.parameters()) for engine in engines.values()]
        needed = BYTES_PER_PARAMETER * sum(sizes) * self.world.layout.tp * self.world.layout.pp
        newest = next(iter(self.complete()), None)
        if newest is not None:
            needed = sum(file.stat().st_size for file in newest.rglob("*") if file.is_file())
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if free >= needed:
            return True
        console.warning(
            f"no checkpoint: it needs {needed / 1e9:.2f} GB, and {free / 1e9:.2f} GB are free",
            "free some space; the training goes on",
        )
        return False

    def _complete(self, temporary: Path, step: int, state: dict[str, Any], config: dict[str, Any]) -> None:
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
