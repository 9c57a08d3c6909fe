"""Fail open: an internal error costs the collector in which it happened and one log line, and nothing else.

Also what keeps calls that may hang (networks, disks) and threads that end early from harming the training.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from sm_profiler.hook.foreign import pass_on
from sm_profiler.printable import logger_for

logger = logger_for("sm_profiler")


@attrs.define(eq=False)
class Guard:
    """Failures of collectors: the first is logged as a warning, all are listed in the report.

    Attributes:
        failures: collector → its first error, in one line.
        count: number of errors caught.
    """

    failures: dict[str, str] = attrs.field(factory=dict)
    count: int = 0

    def failed(self, collector: str, error: BaseException) -> None:
        """Switch a collector off; an error of the script that passed through the hook is raised again."""
        pass_on(error)
        self.count += 1
        if collector not in self.failures:
            self.failures[collector] = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
            text = f"{collector} switched off, training continues: {self.failures[collector]}"
            if len(self.failures) == 1:
                self.warn(text)
            else:  # a log full of warnings helps less than one; the report lists them all
                logger.info("sm-profiler: %s", text)

    def warn(self, text: str) -> None:
        """Log one line; an error in a log handler counts and is otherwise ignored."""
        try:
            logger.warning("sm-profiler: %s", text)
        except Exception as error:  # a user's handler may raise anything
            pass_on(error)
            self.count += 1

    def is_off(self, collector: str) -> bool:
        """Return whether a collector has failed."""
        return collector in self.failures


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


_local = threading.local()


class _Last:
    """Calls an action when the thread's own variables are deleted, which is the last that it does."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be shutting down
            self._action()


def at_thread_end(action: Callable[[], None]) -> None:
    """Call an action at the end of this thread, on it; a further action replaces the first."""
    last = getattr(_local, "last", None)
    if last is not None:
        last._action = action  # of this module; deleting it would call it
    else:
        _local.last = _Last(action)
