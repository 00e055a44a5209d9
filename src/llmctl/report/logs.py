"""Read the JSON-lines logs of a run as they are found: half a last line, NaN, repeated steps after a resume."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A line longer than this is not a log line; reading it whole would let a foreign file fill the memory.
MAX_LINE_BYTES = 4_000_000


@dataclass
class Log:
    """The rows of a JSON-lines file.

    Attributes:
        rows: the objects, flattened: ``{"comm": {"dp": 1}}`` gives the key ``comm.dp``.
        broken_lines: numbers (from 1) of lines that hold no JSON object.
        cut: the last line has no end, as after a kill or while the run is going on.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    broken_lines: list[int] = field(default_factory=list)
    cut: bool = False


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, with the keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def read_log(path: Path) -> Log:
    """Read a JSON-lines log; a missing or unreadable file is an empty log."""
    log = Log()
    for number, line in _lines(path):
        row = _parse(line)
        if row is not None:
            log.rows.append(flatten(row) if any(isinstance(value, dict) for value in row.values()) else row)
        elif not line.endswith(b"\n"):
            log.cut = True
        elif line.strip():
            log.broken_lines.append(number)
    return log


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with open(path, "rb") as handle:
            number = 0
            while line := handle.readline(MAX_LINE_BYTES):
                number += 1
                yield number, line
    except OSError:
        return


def _parse(line: bytes) -> dict[str, Any] | None:
    import orjson

    try:
        row = orjson.loads(line)
    except ValueError:
        try:
            row = json.loads(line)  # takes NaN and Infinity, which strict JSON does not have
        except (ValueError, RecursionError):
            return None
    return row if isinstance(row, dict) else None


def number_of(value: Any) -> float | None:
    """Return a logged value as a number: ``"NaN"`` and ``"inf"`` too; None if it is no number."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def last_of_each_step(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop what a resumed run has written again: of rows with the same step the last one counts, in order of steps.

    Rows without a step keep their place in the file as their step (from 1).
    """
    by_step: dict[int, dict[str, Any]] = {}
    for position, row in enumerate(rows, start=1):
        step = number_of(row.get("step", position))
        if step is None or not math.isfinite(step):
            continue
        by_step[int(step)] = row
    return [{**by_step[step], "step": step} for step in sorted(by_step)]


def curve(rows: list[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    """Return (step, value) of every row that has a number under `key`; a null stands for NaN."""
    points = []
    for row in rows:
        if key not in row:
            continue
        value = math.nan if row[key] is None else number_of(row[key])
        if value is not None:
            points.append((float(row["step"]), value))
    return points
