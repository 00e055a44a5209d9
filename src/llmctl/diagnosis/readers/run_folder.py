"""Read the folder of a run of llmctl, finished or not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl.artifacts.manifest import CONFIG_NAME, MANIFEST_NAME, STATE_FOLDER
from llmctl.diagnosis.columns import Columns, Series, columns_of
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.readers.fast import read_fast
from llmctl.diagnosis.readers.names import METRIC_ALIASES, VALIDATION_ALIASES
from llmctl.errors import UserError
from llmctl.report.logs import Log, flatten, last_of_each_step, number_of, read_log

if TYPE_CHECKING:
    from llmctl.training.hang import Stuck

METRICS_NAME = "metrics.jsonl"
VALIDATION_NAME = "validation.jsonl"
EVENTS_FOLDER = "events"
HIDDEN_EXCHANGE = "dp_hidden_wait_s"
_RANK = re.compile(r"rank-0*(\d+)")


def read_run_folder(folder: Path, metrics_file: Path | None = None) -> Evidence:
    """Read a run of llmctl (or any folder with a ``metrics.jsonl``).

    Raises:
        UserError: there is not one readable step in the log.
    """
    path = metrics_file or folder / METRICS_NAME
    log = read_log(path)
    if not log.rows:
        raise _nothing_in(path, log)
    evidence = Evidence(metrics_file or folder, "llmctl")
    evidence.restarts = _restarts(log.rows)
    rows = last_of_each_step(log.rows)
    evidence.metrics = columns_of(rows, METRIC_ALIASES)
    if not evidence.metrics.by_name:
        raise UserError(f"{path} holds no numbers", 'each line should look like {"step": 1, "loss": 9.2}')
    evidence.notes += _notes(path.name, log)
    _read_validation(folder, rows, evidence)
    _read_events(folder, evidence)
    for columns in (evidence.metrics, *evidence.ranks.values()):
        _untangle(columns)
    evidence.hosts = _read_hosts(folder)
    evidence.hang = _read_hang(folder, evidence)
    evidence.config, evidence.stage = _read_description(folder)
    evidence.finished = (folder / MANIFEST_NAME).is_file() and not (folder / STATE_FOLDER).is_dir()
    return evidence


def _nothing_in(path: Path, log: Log) -> UserError:
    if log.broken_lines or log.cut:
        return UserError(f"{path} holds no line of JSON", 'each line should look like {"step": 1, "loss": 9.2}')
    return UserError(f"{path} is empty: the run has not finished a step", "wait for its first step, then try again")


def _notes(name: str, log: Log) -> list[str]:
    notes = []
    if log.broken_lines:
        shown = ", ".join(str(number) for number in log.broken_lines[:5]) + (", …" if len(log.broken_lines) > 5 else "")
        notes.append(f"{name}: {len(log.broken_lines)} lines could not be read (line {shown})")
    if log.cut:
        notes.append(f"{name}: the last line is cut off, as after a kill or while the run goes on")
    return notes


def _restarts(rows: list[dict[str, Any]]) -> list[int]:
    """Return the steps at which the log goes back to an earlier step."""
    restarts = []
    last: float | None = None
    for row in rows:
        step = number_of(row.get("step"))
        if step is None:
            continue
        if last is not None and step <= last:
            restarts.append(int(step))
        last = step
    return restarts


def _read_validation(folder: Path, metric_rows: list[dict[str, Any]], evidence: Evidence) -> None:
    log = read_log(folder / VALIDATION_NAME)
    evidence.notes += _notes(VALIDATION_NAME, log)
    by_set: dict[str, list[dict[str, Any]]] = {}
    for row in log.rows:
        name = next((str(row[key]) for key in ("set", "name", "dataset", "source") if row.get(key)), "validation")
        by_set.setdefault(name, []).append(row)
    for name, rows in by_set.items():
        columns = columns_of(last_of_each_step(rows), VALIDATION_ALIASES)
        if columns.by_name:
            evidence.validation[name] = columns
    if not evidence.validation:
        wanted = [{"step": row["step"], **{k: row[k] for k in VALIDATION_ALIASES if k in row}} for row in metric_rows]
        inline = columns_of([row for row in wanted if len(row) > 1], VALIDATION_ALIASES)
        if inline.by_name:
            evidence.validation["validation"] = inline


def _read_events(folder: Path, evidence: Evidence) -> None:
    root = folder / EVENTS_FOLDER
    if not root.is_dir():
        return
    broken = 0
    for path in sorted(root.iterdir()):
        match = _RANK.match(path.name)
        if match is None or not path.is_file():
            continue
        fast = read_fast(path)
        if fast is not None:
            evidence.ranks[int(match.group(1))] = fast
            continue
        log = read_log(path)
        broken += len(log.broken_lines)
        columns = columns_of(last_of_each_step([row for row in log.rows if "step" in row]))
        if columns.by_name:
            evidence.ranks[int(match.group(1))] = columns
    if broken:
        evidence.notes.append(f"{EVENTS_FOLDER}: {broken} lines could not be read")


def _untangle(columns: Columns) -> None:
    """Count the exchange of gradients that lies under the backward pass as communication, not as computing."""
    hidden = columns.series(HIDDEN_EXCHANGE)
    backward, talk = columns.series("backward_s"), columns.series("communication_s")
    if not len(hidden) or not np.array_equal(hidden.steps, backward.steps):
        return
    moved = np.minimum(hidden.values, backward.values)
    columns.by_name["backward_s"] = Series(backward.steps, backward.values - moved)
    if np.array_equal(talk.steps, backward.steps):
        moved = moved + talk.values
    columns.by_name["communication_s"] = Series(backward.steps, moved)


def _read_hosts(folder: Path) -> dict[int, str]:
    hosts = {}
    for path in sorted((folder / EVENTS_FOLDER).glob("host-*.json")):
        described = _json(path)
        number = path.stem.removeprefix("host-")
        if number.isdigit() and described:
            hosts[int(number)] = str(described.get("address") or described.get("host"))
    return hosts


def _read_hang(folder: Path, evidence: Evidence) -> list[Stuck]:
    """Read where the processes stood when the run hung; nothing if it has gone on since."""
    from llmctl.training.hang import read_evidence

    stuck = read_evidence(folder)
    last = evidence.metrics.last_step or 0
    return stuck if stuck and max(item.step for item in stuck) >= last else []


def _read_description(folder: Path) -> tuple[dict[str, Any], str | None]:
    """Return the configuration (flat) and the stage, from whichever of the run's own files has them."""
    import yaml

    config: Any = {}
    stage = None
    for path in (folder / MANIFEST_NAME, folder / STATE_FOLDER / "claim.json"):
        described = _json(path)
        if described:
            stage = str(described["stage"]) if described.get("stage") else None
            config = described.get("config")
            break
    try:
        loaded = yaml.safe_load((folder / CONFIG_NAME).read_text(encoding="utf-8"))
        config = loaded if isinstance(loaded, dict) else config
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        pass
    return (flatten(config) if isinstance(config, dict) else {}), stage


def _json(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def has_columns(columns: Columns) -> bool:
    """Tell whether a log holds anything that a rule looks at."""
    return any(name in columns for name in ("loss", "grad_norm", "step_time_s", "tokens_per_s", "reward_mean"))
