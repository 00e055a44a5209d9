"""Read TensorBoard event files (protocol buffers; nothing in them is run)."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np

from llmctl.diagnosis.columns import Columns, Series
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.readers.names import METRIC_ALIASES, VALIDATION_ALIASES
from llmctl.errors import UserError

EVENT_FILE_MARK = "tfevents"
MAX_FILES = 1000
_VALIDATION_FOLDER = re.compile(r"(^|[/_-])(val|valid|validation|eval|test)($|[/_-])", re.IGNORECASE)


def find_event_files(folder: Path) -> list[Path]:
    """Return the event files in a folder tree, sorted, at most `MAX_FILES`."""
    found = []
    for path in sorted(folder.rglob(f"*{EVENT_FILE_MARK}*")):
        if path.is_file():
            found.append(path)
        if len(found) == MAX_FILES:
            break
    return found


def read_event_files(files: list[Path], named: Path) -> Evidence:
    """Read scalars from event files; files of one folder are one log.

    Raises:
        UserError: there is no scalar that a rule looks at.
    """
    evidence = Evidence(named, "TensorBoard")
    tags: set[str] = set()
    for folder in dict.fromkeys(path.parent for path in files):
        points = _read_scalars([path for path in files if path.parent == folder])
        tags.update(points)
        relative = folder.relative_to(named).as_posix() if named.is_dir() else ""
        _sort_in(points, bool(_VALIDATION_FOLDER.search(relative)), evidence)
    if not evidence.metrics.by_name and not evidence.validation:
        shown = f": it has {', '.join(sorted(tags)[:8])}" if tags else ""
        raise UserError(
            f"{named} holds no training curve in its event files{shown}",
            "log a scalar named `train/loss` or `loss`",
        )
    return evidence


def _read_scalars(files: list[Path]) -> dict[str, dict[int, float]]:
    """Return {tag: {step: value}}; of a step logged twice the later value counts."""
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    points: dict[str, dict[int, float]] = {}
    for path in files:
        try:
            for event in EventFileLoader(str(path)).Load():
                if not event.HasField("summary"):
                    continue
                for value in event.summary.value:
                    number = None
                    if value.HasField("simple_value"):
                        number = float(value.simple_value)
                    elif value.HasField("tensor"):
                        array = tensor_util.make_ndarray(value.tensor)
                        if array.size == 1 and np.issubdtype(array.dtype, np.number):
                            number = float(array.reshape(-1)[0])
                    if number is not None:
                        points.setdefault(value.tag, {})[int(event.step)] = number
        except Exception:
            continue
    return points


def _sort_in(points: dict[str, dict[int, float]], validation: bool, evidence: Evidence) -> None:
    for tag, values in points.items():
        steps = np.array(sorted(values), dtype=np.int64)
        series = Series(steps, np.array([values[step] for step in steps.tolist()]))
        lowered = tag.lower()
        if lowered in VALIDATION_ALIASES or (validation and METRIC_ALIASES.get(lowered, lowered) == "loss"):
            evidence.validation.setdefault("validation", Columns()).by_name["loss"] = series
        elif not validation:
            evidence.metrics.by_name.setdefault(METRIC_ALIASES.get(lowered, lowered), series)
