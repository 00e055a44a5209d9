"""Read ``trainer_state.json`` of the Hugging Face Trainer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from llmctl.diagnosis.columns import columns_of
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.readers.names import METRIC_ALIASES, VALIDATION_ALIASES
from llmctl.errors import UserError
from llmctl.report.logs import last_of_each_step

STATE_NAME = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)$")


def find_trainer_state(folder: Path) -> Path | None:
    """Return the newest ``trainer_state.json`` of an output folder: its own, or its last checkpoint's."""
    if (folder / STATE_NAME).is_file():
        return folder / STATE_NAME
    checkpoints = []
    for path in folder.iterdir():
        match = _CHECKPOINT.match(path.name)
        if match and (path / STATE_NAME).is_file():
            checkpoints.append((int(match.group(1)), path / STATE_NAME))
    return max(checkpoints)[1] if checkpoints else None


def read_trainer_state(path: Path, named: Path) -> Evidence:
    """Read the log history of a trainer's state.

    Args:
        path: the file.
        named: what the user named (the file or its folder).

    Raises:
        UserError: it is no trainer's state, or holds no step.
    """
    try:
        state = json.loads(path.read_bytes())
        history = state["log_history"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            f"{path} is not a trainer state that can be read", "it may be cut off: take the one before it"
        ) from None
    rows = [row for row in history if isinstance(row, dict)] if isinstance(history, list) else []
    # The closing row repeats averages over the whole run (train_loss, train_runtime, …).
    training = [row for row in rows if "train_runtime" not in row and not _is_validation(row)]
    evidence = Evidence(named, "Hugging Face Trainer")
    evidence.metrics = columns_of(last_of_each_step(training), METRIC_ALIASES)
    if not evidence.metrics.by_name:
        raise UserError(f"{path} holds no logged step", "set `logging_steps` lower than the number of steps")
    for name, key in _validation_keys(rows).items():
        picked = [{"step": row["step"], "loss": row[key]} for row in rows if key in row and "step" in row]
        evidence.validation[name] = columns_of(last_of_each_step(picked), VALIDATION_ALIASES)
    evidence.finished = bool(state.get("max_steps")) and state.get("global_step") == state.get("max_steps")
    evidence.config = {key: state[key] for key in ("max_steps", "num_train_epochs", "train_batch_size") if key in state}
    return evidence


def _is_validation(row: dict[str, Any]) -> bool:
    return any(str(key).startswith("eval_") for key in row)


def _validation_keys(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return {validation set: key}: ``eval_loss``, or ``eval_<set>_loss`` with several sets."""
    keys = {}
    for row in rows:
        for key in row:
            if key == "eval_loss":
                keys["validation"] = key
            elif str(key).startswith("eval_") and str(key).endswith("_loss"):
                keys[key[len("eval_") : -len("_loss")]] = key
    return keys
