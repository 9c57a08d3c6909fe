"""A deadline for one attempt to send something: timeouts of sockets are for each read, however many there are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from sm_profiler.errors import SourceError

ATTEMPT_S = 60.0
_Answer = TypeVar("_Answer")


def within(seconds: float, action: Callable[[], _Answer]) -> _Answer:
    """Return the result of an action, or raise its error.

    The action runs in a thread, which is abandoned at the deadline; it ends with the process.

    Raises:
        SourceError: it takes longer.
    """
    results: list[_Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="sm-profiler-export", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise SourceError(f"no answer within {seconds:g} s")
    return results[0]
