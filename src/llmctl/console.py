"""The one place that prints.

stdout is data, stderr is talk: results go to stdout (one JSON object with ``--json``), while progress,
warnings and hints go to stderr. On a terminal progress is a bar; in a pipe it is a plain line now and then.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmctl.errors import LlmctlError

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN_PROGRESS_INTERVAL_S = 5.0


@dataclass
class _State:
    json_output: bool = False
    quiet: bool = False
    printed_json: bool = False
    names: dict[str, str] = field(default_factory=dict)


_state = _State()


def configure(*, json_output: bool = False, quiet: bool = False) -> None:
    """Set how this process prints; called once by the command line."""
    _state.json_output = json_output
    _state.quiet = quiet
    _state.printed_json = False
    _state.names = {}


def show_as(path: str, name: str) -> None:
    """Print `name` wherever `path` would be printed: the address of a folder instead of its copy here."""
    _state.names[path] = name


def _named(text: str) -> str:
    for path, name in _state.names.items():
        text = text.replace(path, name)
    return text


def is_json() -> bool:
    """Tell whether stdout carries one JSON object and nothing else."""
    return _state.json_output


def is_quiet() -> bool:
    """Tell whether only warnings and errors are said."""
    return _state.quiet


def is_terminal() -> bool:
    """Tell whether a person watches stderr."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _talk(line: str) -> None:
    try:
        print(_named(line), file=sys.stderr, flush=True)
    except BrokenPipeError:
        # The reader of our talk went away; the work goes on.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - lives as long as the process


def info(message: str) -> None:
    """Say something on stderr, unless ``--quiet``."""
    if not _state.quiet:
        _talk(message)


def warning(message: str, hint: str | None = None) -> None:
    """Say on stderr that something needs a look, with what to do about it."""
    _talk(f"warning: {message}")
    if hint:
        _talk(f"  hint: {hint}")


def error(failure: LlmctlError) -> None:
    """Print a failure: one sentence, then the hint; as JSON too with ``--json``."""
    _talk(f"error: {failure.problem}")
    if failure.hint:
        _talk(f"hint: {failure.hint}")
    if _state.json_output and not _state.printed_json:
        _print_json({"error": {"problem": failure.problem, "hint": failure.hint, "exit_status": int(failure.status)}})


def result(text: str, **data: Any) -> None:
    """Print a command's result: `text` for people, or `data` as one JSON object with ``--json``."""
    if _state.json_output:
        _print_json(data)
    else:
        print(_named(text), flush=True)


def _print_json(data: Mapping[str, Any]) -> None:
    # A command prints one object; NaN is not JSON, so it becomes null.
    print(_named(json.dumps(_finite(data), ensure_ascii=False, default=str)), flush=True)
    _state.printed_json = True


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, to_stdout: bool = False) -> None:
    """Print a table to stderr (to stdout when the table is the result). With ``--json`` stdout is left alone.

    Columns whose cells are all numbers are right-aligned.
    """
    if _state.quiet and not to_stdout:
        return
    if to_stdout and _state.json_output:
        return
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    stream = sys.stdout if to_stdout else sys.stderr
    width = None if stream.isatty() else 160
    rich_table = Table(title=escape(title) if title else None, title_justify="left", box=box.SIMPLE)
    for position, name in enumerate(columns):
        numeric = bool(rows) and all(_is_number(row[position]) for row in rows)
        rich_table.add_column(escape(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        rich_table.add_row(*(escape(_cell(value)) for value in row))
    Console(file=stream, width=width, highlight=False).print(rich_table)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or value is None:
        return value is None
    return isinstance(value, (int, float)) or str(value).replace(",", "").replace(".", "").rstrip("%×").isdigit()


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


class Progress:
    """A running count of work done. `advance` is cheap enough to call for every block or step."""

    def __init__(self, label: str, total: float | None, unit: str, done: float = 0.0) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done = self._before = done
        self.detail = ""
        self._started = time.monotonic()
        self._last_line = self._started
        self._bar: Any = None
        self._task: Any = None
        if is_terminal() and not _state.quiet:
            self._start_bar()

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[detail]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(self.label, total=self.total, rate="", detail="")
        self._bar.start()

    def rate_text(self) -> str:
        """Return the rate so far, such as ``12.3 MB/s``."""
        elapsed = max(time.monotonic() - self._started, 1e-9)
        rate = (self.done - self._before) / elapsed
        if self.unit == "bytes":
            return f"{rate / 1e6:.1f} MB/s"
        return f"{rate:,.1f} {self.unit}/s"

    def advance(self, amount: float = 1.0, detail: str = "") -> None:
        """Add `amount` of finished work, in the unit of this progress."""
        self.done += amount
        self.detail = detail or self.detail
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, rate=self.rate_text(), detail=self.detail)
        elif not _state.quiet and time.monotonic() - self._last_line >= PLAIN_PROGRESS_INTERVAL_S:
            self._last_line = time.monotonic()
            _talk(self._line())

    def _line(self) -> str:
        amount = f"{self.done / 1e6:.1f} MB" if self.unit == "bytes" else f"{self.done:,.0f} {self.unit}"
        if not self.total:
            return f"{self.label}: {amount}, {self.rate_text()} {self.detail}".rstrip()
        elapsed = time.monotonic() - self._started
        left = elapsed / max(self.done - self._before, 1e-9) * max(self.total - self.done, 0)
        share = 100 * self.done / self.total
        return f"{self.label}: {share:.0f}% ({amount}), {self.rate_text()}, {left:.0f} s left {self.detail}".rstrip()

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


@contextmanager
def progress(label: str, total: float | None = None, unit: str = "bytes", done: float = 0.0) -> Iterator[Progress]:
    """Show progress of long work: a bar with rate and time left on a terminal, plain lines in a pipe.

    Args:
        label: what is being done.
        total: the whole amount in `unit`, if known.
        unit: ``"bytes"`` (shown as MB) or any noun, such as ``"steps"``.
        done: what an earlier attempt has done already; it does not count for the rate.
    """
    shown = Progress(label, total, unit, done)
    try:
        yield shown
    finally:
        shown.close()
