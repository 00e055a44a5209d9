"""Signals that ask a run to stop: noted at once, acted on between two steps."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STOPPING = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)
)  # SIGUSR1: what schedulers send as a warning


class StopRequest:
    """Whether a signal has asked this process to stop."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def note(self, number: int, frame: Any = None) -> None:
        """Note a signal; a second Ctrl-C stops at once."""
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Note stopping signals within the block instead of acting on them."""
    request = StopRequest()
    previous = {}
    try:
        for number in STOPPING:
            previous[number] = signal.signal(number, request.note)
    except ValueError:  # not in the main thread: signals are someone else's
        pass
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
