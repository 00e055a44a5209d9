"""The command line: every command, and the one place where errors become exit statuses."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import llmctl
from llmctl import console
from llmctl.errors import ExitStatus, Interrupted, LlmctlError, RunFailed, UserError, nearest

# In the order in which people use them; each is a short file beside this one with a `register(app)` function.
COMMANDS = (
    "filter",
    "classifier",
    "perplexity",
    "dedup",
    "tokenize",
    "shard",
    "pretrain",
    "sft",
    "merge",
    "rlhf",
    "plan",
    "diagnose",
    "show",
    "generate",
    "eval",
    "demo",
)

# The base class of every mistake that the parser finds; BadParameter is the public name in that family.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]
# What the parser's library makes of Ctrl-C before we see it; no command of ours ends with it.
_STATUS_OF_CTRL_C = 130


def _version(value: bool) -> None:
    if value:
        typer.echo(f"llmctl {llmctl.__version__}")
        raise typer.Exit()


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """From raw text to an aligned language model, one command a stage.

    Each command reads one folder and writes another: llmctl filter raw/ clean/
    """


def build_app() -> typer.Typer:
    """Assemble the command line from the files in this folder."""
    app = typer.Typer(
        name="llmctl",
        callback=_root,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in COMMANDS:
        importlib.import_module(f"llmctl.cli.{name}").register(app)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status; a user's mistake never shows a traceback."""
    if "--json" in arguments:
        console.configure(json_output=True)
    previous = _stop_on_sigterm()
    try:
        return _run(arguments)
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _run(arguments: Sequence[str]) -> int:
    app = build_app()
    try:
        status = app(list(arguments), standalone_mode=False, prog_name="llmctl")
        if status == _STATUS_OF_CTRL_C:
            raise KeyboardInterrupt
        sys.stdout.flush()
        return int(status) if isinstance(status, int) else ExitStatus.DONE
    except _UsageError as failure:
        return _fail(_usage_error(failure, app))
    except LlmctlError as failure:
        return _fail(failure)
    except (KeyboardInterrupt, typer.Abort):
        return _fail(Interrupted("stopped", "the same command goes on from the last finished block or checkpoint"))
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as ending:
        # The parser ends the process by itself when the reader of stdout went away.
        if isinstance(ending.__context__, BrokenPipeError):
            return _reader_left()
        raise
    except OSError as failure:
        if failure.filename is None and failure.errno is None:
            raise
        return _fail(_explained(failure))
    except MemoryError:
        return _fail(RunFailed("out of memory", "use fewer --workers, or a machine with more memory"))


def _reader_left() -> int:
    """End well when the reader of stdout went away (`llmctl … | head`)."""
    # Keep the interpreter from complaining at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitStatus.DONE


def _explained(failure: OSError) -> LlmctlError:
    """Turn an error of the system that nobody has caught (a full disk, a folder that went) into a sentence."""
    from llmctl.artifacts.files import explain_os_error

    explained = explain_os_error(failure, Path(str(failure.filename or "the output")))
    return explained if isinstance(explained, LlmctlError) else RunFailed(str(failure))


def _fail(failure: LlmctlError) -> int:
    console.error(failure)
    return int(failure.status)


def _stop_on_sigterm() -> Any:
    """Let SIGTERM end a command as Ctrl-C does; return the handler it had."""
    try:
        return signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    except ValueError:  # not in the main thread
        return None


def _usage_error(failure: Any, app: typer.Typer) -> LlmctlError:
    message = str(failure.format_message() if hasattr(failure, "format_message") else failure).strip()
    context = getattr(failure, "ctx", None)
    path = getattr(context, "command_path", None) or "llmctl"
    option = getattr(failure, "option_name", None)
    close = None
    if option and context is not None:
        known = [name for parameter in context.command.params for name in [*parameter.opts, *parameter.secondary_opts]]
        close = _known_elsewhere(option) or nearest(option, known)
    elif message.lower().startswith("no such command"):
        close = nearest(message.split("'")[1], COMMANDS) if "'" in message else None
    if not message:
        message = "a command is missing"
    hint = f"did you mean `{close}`?" if close else f"`{path} --help` shows what it takes"
    sentence = message.split(" (Possible options")[0].split(" Did you mean")[0].rstrip(".")
    return UserError(sentence[0].lower() + sentence[1:], hint)


def _known_elsewhere(option: str) -> str | None:
    """Return our flag for a well-known long flag of another tool."""
    from llmctl.cli.foreign_flags import FOREIGN_FLAGS

    return FOREIGN_FLAGS.get(option)
