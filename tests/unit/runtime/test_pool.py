"""Units of work: same results for any number of workers, finished units survive, failures are told."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from llmctl.artifacts.inputs import open_input
from llmctl.artifacts.output import open_output
from llmctl.config.common import RunOptions
from llmctl.config.schema import Opt
from llmctl.errors import RunFailed, UserError
from llmctl.runtime.pool import Unit, run_units

# Worker processes import the functions by name, so they need a module of their own on the path.
sys.path.insert(0, str(Path(__file__).parent))
import units_for_tests as functions


@dataclass
class Config:
    """Nothing to configure."""

    factor: Annotated[int, Opt("Factor.")] = 2


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    return folder


def _run(tmp_path: Path, source: Path, function: Any, *, workers: int, count: int = 6, key: str = "same"):
    context = {"root": str(tmp_path / "out"), "factor": 2, "calls": str(tmp_path / "calls")}
    units = (Unit(f"{n:03d}", n, 1, key) for n in range(count))
    with open_output(
        tmp_path / "out",
        kind="documents",
        stage="test",
        config=Config(),
        inputs=[open_input(source)],
        options=RunOptions(workers=workers),
    ) as out:
        return run_units(function, units, context, out, phase="p", label="test")


def _calls(tmp_path: Path) -> list[str]:
    path = tmp_path / "calls"
    return sorted(path.read_text().split()) if path.exists() else []


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_units(tmp_path: Path, source: Path, workers: int) -> None:
    results = _run(tmp_path, source, functions.write_number, workers=workers)
    assert [(unit.name, result.data["number"]) for unit, result in results] == [(f"{n:03d}", n) for n in range(6)]
    assert [(tmp_path / "out" / result.files[0].path).read_text() for _, result in results] == [
        str(2 * n) for n in range(6)
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_keeps_what_is_finished(tmp_path: Path, source: Path, workers: int) -> None:
    with pytest.raises(UserError) as caught:
        _run(tmp_path, source, functions.refuse_third, workers=workers)
    assert (caught.value.problem, caught.value.hint) == ("number three is wrong", "leave it out")
    before = _calls(tmp_path)
    assert {"000", "001"} <= set(before)
    results = _run(tmp_path, source, functions.write_number, workers=workers)
    assert len(results) == 6
    recorded_before = {"000", "001"} if workers == 1 else set()
    repeated = [name for name in _calls(tmp_path) if _calls(tmp_path).count(name) > 1]
    assert not recorded_before & set(repeated)


def test_another_key_is_worked_on_again(tmp_path: Path, source: Path) -> None:
    _run(tmp_path, source, functions.write_number, workers=1, count=2, key="one")
    _run(tmp_path, source, functions.write_number, workers=1, count=2, key="one")
    assert _calls(tmp_path) == ["000", "001"]
    _run(tmp_path, source, functions.write_number, workers=1, count=2, key="two")
    assert _calls(tmp_path) == ["000", "000", "001", "001"]


def test_a_unit_whose_file_was_cut_is_worked_on_again(tmp_path: Path, source: Path) -> None:
    _run(tmp_path, source, functions.write_number, workers=1, count=2)
    (tmp_path / "out" / "data" / "001.txt").write_text("")
    _run(tmp_path, source, functions.write_number, workers=1, count=2)
    assert _calls(tmp_path) == ["000", "001", "001"]
    assert (tmp_path / "out" / "data" / "001.txt").read_text() == "2"


def test_a_worker_that_dies_is_told(tmp_path: Path, source: Path) -> None:
    with pytest.raises(RunFailed, match="a worker process died") as caught:
        _run(tmp_path, source, functions.die_at_third, workers=2)
    assert "finished blocks are kept" in str(caught.value.hint)


def test_no_units_is_no_work(tmp_path: Path, source: Path) -> None:
    assert _run(tmp_path, source, functions.write_number, workers=2, count=0) == []


def test_module_of_functions_is_importable_by_workers() -> None:
    assert importlib.util.find_spec("units_for_tests") is not None
