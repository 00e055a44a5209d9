"""Unit functions that worker processes can import."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from llmctl.artifacts.files import atomic_file, write_file
from llmctl.errors import UserError
from llmctl.runtime.pool import Unit, UnitResult


def write_number(unit: Unit, context: dict[str, Any]) -> UnitResult:
    """Write the unit's number, and leave a mark so that a test can count the calls."""
    root = Path(context["root"])
    with open(context["calls"], "a") as calls:
        calls.write(f"{unit.name}\n")
    record = write_file(root, f"data/{unit.name}.txt", str(unit.payload * context["factor"]).encode())
    return UnitResult([record], {"number": unit.payload})


def refuse_third(unit: Unit, context: dict[str, Any]) -> UnitResult:
    """Refuse one unit."""
    if unit.payload == 3:
        raise UserError("number three is wrong", "leave it out")
    return write_number(unit, context)


def die_at_third(unit: Unit, context: dict[str, Any]) -> UnitResult:
    """Die as a process that the system kills for memory."""
    if unit.payload == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return write_number(unit, context)


def die_once_while_writing(unit: Unit, context: dict[str, Any]) -> UnitResult:
    """Be killed with half a file written, the first time that the third unit is worked on."""
    mark = Path(context["calls"] + "-killed")
    if unit.payload == 3 and not mark.exists():
        mark.write_text(str(os.getpid()))
        with atomic_file(Path(context["root"]) / "data" / f"{unit.name}.txt") as out:
            out.write(b"half")
            out.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    return write_number(unit, context)
