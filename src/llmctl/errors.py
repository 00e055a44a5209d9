"""What can go wrong, and the exit status each kind of failure gets."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit statuses of every command. Scripts rely on these numbers."""

    DONE = 0
    FAILED = 1
    USER_ERROR = 2
    LIMIT_PASSED = 3
    INTERRUPTED = 75  # EX_TEMPFAIL: state is saved, run the same command again


class LlmctlError(Exception):
    """A failure told to the user as one sentence and, where there is one, a next step.

    Args:
        problem: one sentence that names the file, flag or value.
        hint: what to do next; printed after ``hint:``.
    """

    status = ExitStatus.FAILED

    def __init__(self, problem: str, hint: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint

    def __reduce__(self):
        # Exceptions cross process borders; the default would drop the hint.
        return type(self), (self.problem, self.hint)


class UserError(LlmctlError):
    """The user can put it right: a wrong path, flag, value or input folder."""

    status = ExitStatus.USER_ERROR


class RunFailed(LlmctlError):
    """The work could not be finished, and no change of the command line would help by itself."""

    status = ExitStatus.FAILED


class LimitPassed(LlmctlError):
    """A limit that the user set was passed; everything else has been written."""

    status = ExitStatus.LIMIT_PASSED


class Interrupted(LlmctlError):
    """Stopped by a signal with the state saved: the same command goes on from here."""

    status = ExitStatus.INTERRUPTED


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like `name`, or None if nothing is close."""
    candidates = list(known)
    lowered = {candidate.lower(): candidate for candidate in candidates}
    match = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return lowered[match[0]] if match else None


def unknown_name(what: str, name: str, known: Iterable[str]) -> UserError:
    """Build the error for an unknown name, with the nearest known one as the hint.

    Args:
        what: the kind of thing, e.g. ``"filter rule"``.
        name: what the user wrote.
        known: every name that would have been right.
    """
    names = sorted(known)
    close = nearest(name, names)
    if close is not None:
        hint = f"did you mean `{close}`?"
    elif len(names) <= 20:
        hint = f"known: {', '.join(names)}" if names else f"there is no {what} to choose from"
    else:
        hint = f"{len(names)} are known, e.g. {', '.join(names[:8])}, …"
    return UserError(f"unknown {what} `{name}`", hint)
