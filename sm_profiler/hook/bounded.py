"""Run a call that may hang, such as one to a network or a disk, for a limited time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_bounded(action: Callable[[], Result], seconds: float, message: str) -> Result:
    """Run an action on a daemon thread, and return its result.

    Args:
        action: a call that may hang; it is abandoned then, and must not hold locks that others need.
        seconds: how long to wait for it.
        message: text of the error if it takes longer.

    Raises:
        TimeoutError: it took longer.
        Exception: what the action raised.
    """
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((True, action()))
        except Exception as error:  # raised again by the caller's thread
            outcome.extend((False, error))

    thread = threading.Thread(target=run, name="sm-profiler-bounded", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is shutting down and starts no threads
        return action()
    thread.join(seconds)
    if not outcome:
        raise TimeoutError(message)
    succeeded, result = outcome
    if not succeeded:
        raise result
    return result  # type: ignore[no-any-return] # of the action's type
