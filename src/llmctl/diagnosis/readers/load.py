"""Find out what the user named, and read it."""

from __future__ import annotations

import json
from pathlib import Path

from llmctl.artifacts.manifest import MANIFEST_NAME, STATE_FOLDER
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.readers.huggingface import find_trainer_state, read_trainer_state
from llmctl.diagnosis.readers.run_folder import METRICS_NAME, read_run_folder
from llmctl.diagnosis.readers.table import TABLE_SUFFIXES, read_table
from llmctl.diagnosis.readers.tensorboard import EVENT_FILE_MARK, find_event_files, read_event_files
from llmctl.errors import UserError, nearest

READABLE = (
    "give a run of llmctl (metrics.jsonl), a trainer_state.json, TensorBoard event files, or a CSV with step and loss"
)


def load_evidence(path: Path) -> Evidence:
    """Read a run: a folder or one of its log files, of llmctl or of another tool.

    Raises:
        UserError: nothing there, or nothing in it that can be judged.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist", _sibling(path) or READABLE)
    try:
        return _load_folder(path) if path.is_dir() else _load_file(path)
    except PermissionError as failure:
        raise UserError(f"cannot read {failure.filename}: {failure.strerror}", "check its permissions") from None


def _sibling(path: Path) -> str | None:
    parent = path.parent
    try:
        close = nearest(path.name, [item.name for item in parent.iterdir()])
    except OSError:
        return None
    return f"did you mean {parent / close}?" if close else None


def _load_folder(path: Path) -> Evidence:
    if (path / METRICS_NAME).is_file():
        return read_run_folder(path)
    state = find_trainer_state(path)
    if state is not None:
        return read_trainer_state(state, path)
    stage = _stage_of(path)
    if stage and not stage.startswith(("pretrain", "sft", "rlhf")):
        raise UserError(f"{path} was written by `llmctl {stage}`, which is no training run", READABLE)
    if (path / STATE_FOLDER).is_dir():
        raise UserError(f"{path} has not logged a step yet", "wait for the run's first step, then try again")
    files = find_event_files(path)
    if files:
        return read_event_files(files, path)
    tables = [item for item in sorted(path.iterdir()) if item.suffix.lower() in (".csv", ".tsv")]
    if len(tables) == 1:
        return read_table(tables[0])
    if not any(path.iterdir()):
        raise UserError(f"{path} is empty", READABLE)
    inner = [item for item in sorted(path.iterdir()) if (item / METRICS_NAME).is_file()]
    if inner:
        raise UserError(f"{path} holds several runs, and none itself", f"name one of them: {inner[0]}")
    raise UserError(f"{path} holds no log of a training run", READABLE)


def _load_file(path: Path) -> Evidence:
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty", READABLE)
    if EVENT_FILE_MARK in path.name:
        return read_event_files([path], path)
    if path.suffix == ".jsonl":
        return read_run_folder(path.parent, path)
    if path.suffix == ".json":
        return read_trainer_state(path, path)
    if path.suffix.lower() in TABLE_SUFFIXES:
        return read_table(path)
    raise UserError(f"{path} is no log that llmctl can read", READABLE)


def _stage_of(path: Path) -> str | None:
    try:
        loaded = json.loads((path / MANIFEST_NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return str(loaded["stage"]) if isinstance(loaded, dict) and loaded.get("stage") else None
