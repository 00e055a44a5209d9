"""Read a table of step, loss and whatever else: comma, semicolon or tab between columns."""

from __future__ import annotations

import csv
from pathlib import Path

from llmctl.diagnosis.columns import columns_of
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.readers.names import METRIC_ALIASES, VALIDATION_ALIASES
from llmctl.errors import UserError
from llmctl.report.logs import last_of_each_step, number_of

TABLE_SUFFIXES = (".csv", ".tsv", ".txt")
STEP_NAMES = ("step", "steps", "iteration", "iter", "global_step", "_step", "train/global_step")


def read_table(path: Path) -> Evidence:
    """Read a table with a line of names (or two columns without: step and loss).

    Raises:
        UserError: it cannot be read, or has no number under a name that a rule looks at.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="", errors="replace") as handle:
            delimiter = _delimiter(handle.readline())
            handle.seek(0)
            lines = list(csv.reader((line.replace("\0", "") for line in handle), delimiter=delimiter))
    except (OSError, csv.Error) as failure:
        raise UserError(
            f"cannot read {path} as a table: {failure}", "give a CSV with the columns step and loss"
        ) from None
    lines = [line for line in lines if any(cell.strip() for cell in line)]
    if not lines:
        raise UserError(f"{path} is empty", "give a CSV with the columns step and loss")
    names = [cell.strip().lower() for cell in lines[0]]
    if all(number_of(cell) is not None for cell in names):
        names = ["step", "loss"] if len(names) == 2 else []
    else:
        lines = lines[1:]
    names = ["step" if name in STEP_NAMES else name for name in names]
    rows = [_row(names, line) for line in lines]
    broken = sum(row is None for row in rows)
    good = last_of_each_step([row for row in rows if row])
    metrics = columns_of(good, METRIC_ALIASES)
    inline = [{"step": row["step"], **{k: row[k] for k in VALIDATION_ALIASES if k in row}} for row in good]
    validation = columns_of([row for row in inline if len(row) > 1], VALIDATION_ALIASES)
    evidence = Evidence(path, "CSV", metrics)
    if validation.by_name:
        evidence.validation["validation"] = validation
    if not (
        {"loss", "grad_norm", "step_time_s", "tokens_per_s", "reward_mean"} & set(metrics.names) or validation.by_name
    ):
        raise UserError(f"{path} has no column named loss", "name the columns in the first line: step,loss")
    if broken:
        evidence.notes.append(f"{path.name}: {broken} lines could not be read")
    return evidence


def _delimiter(line: str) -> str:
    return max(",;\t", key=line.count) if any(mark in line for mark in ",;\t") else ","


def _row(names: list[str], line: list[str]) -> dict[str, float] | None:
    """Return the cells with a number; None for a line with another number of cells or none with a number."""
    if len(line) != len(names):
        return None
    row = {}
    for name, cell in zip(names, line, strict=True):
        number = number_of(cell.strip())
        if number is not None:
            row[name] = number
    return row if len(row) > 1 or (row and "step" not in row) else None
