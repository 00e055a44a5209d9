"""Let the first process prepare what all of them read."""

from __future__ import annotations

from collections.abc import Callable

from llmctl.errors import LlmctlError
from llmctl.training.distributed import World


def prepare_once(world: World, is_done: Callable[[], bool], prepare: Callable[[], None]) -> None:
    """Run `prepare` in the first process unless it is done; the others wait for it.

    Raises:
        LlmctlError: what went wrong, in the first process; the others end with the same status.
    """
    failure: LlmctlError | None = None
    if world.is_main and not is_done():
        try:
            prepare()
        except LlmctlError as problem:
            failure = problem
    (status,) = world.maximum([float(failure.status) if failure is not None else 0.0])
    if failure is not None:
        raise failure
    if status:
        raise SystemExit(int(status))  # the first process has said why
