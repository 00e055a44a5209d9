"""stdout is data, stderr is talk; errors carry a hint and survive a process border."""

from __future__ import annotations

import json
import pickle

import pytest

from llmctl import console
from llmctl.errors import ExitStatus, Interrupted, LimitPassed, RunFailed, UserError, nearest, unknown_name


@pytest.fixture(autouse=True)
def _plain():
    yield
    console.configure()


def test_result_is_text_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    console.configure()
    console.result("kept 812", kept=812)
    console.info("talk")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("kept 812\n", "talk\n")


def test_result_is_one_json_object_with_nan_as_null(capsys: pytest.CaptureFixture[str]) -> None:
    console.configure(json_output=True)
    console.table("reasons", ["a"], [[1]], to_stdout=True)
    console.result("text", loss=float("nan"), inner={"values": [1.0, float("inf")]}, name="中")
    assert json.loads(capsys.readouterr().out) == {"loss": None, "inner": {"values": [1.0, None]}, "name": "中"}


def test_quiet_keeps_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    console.configure(quiet=True)
    console.info("talk")
    console.table("t", ["a"], [[1]])
    console.warning("look here", "do this")
    assert capsys.readouterr().err == "warning: look here\n  hint: do this\n"


def test_progress_in_a_pipe_prints_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PLAIN_PROGRESS_INTERVAL_S", 0.0)
    with console.progress("reading", total=4e6) as shown:
        shown.advance(1e6)
        shown.advance(1e6, "half")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("reading: 25% (1.0 MB)")
    assert lines[1].startswith("reading: 50% (2.0 MB)")
    assert "left half" in lines[1]
    assert "\x1b" not in "".join(lines)


def test_table_escapes_markup(capsys: pytest.CaptureFixture[str]) -> None:
    console.table("[red]title", ["name"], [["[bold]x[/bold]"]])
    assert "[bold]x[/bold]" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "status"), [(UserError, 2), (RunFailed, 1), (LimitPassed, 3), (Interrupted, 75)])
def test_errors_keep_hint_and_status_across_processes(kind: type, status: int) -> None:
    failure = pickle.loads(pickle.dumps(kind("problem", "hint")))
    assert (failure.problem, failure.hint, int(failure.status)) == ("problem", "hint", status)
    assert ExitStatus(status) is failure.status


def test_nearest_name() -> None:
    assert nearest("treshold", ["threshold", "num_perm"]) == "threshold"
    assert nearest("zzz", ["threshold"]) is None


def test_unknown_name_lists_a_few() -> None:
    assert unknown_name("rule", "zzz", ["b", "a"]).hint == "known: a, b"
    assert str(unknown_name("rule", "zzz", [f"rule{n:02d}" for n in range(30)]).hint).startswith("30 are known, e.g.")
