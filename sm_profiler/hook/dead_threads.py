"""Threads of the script that ended with an exception: what a hang may wait for.

Python hands such an exception to `threading.excepthook`.  It is noted as text and then goes to the function that was there
before, so the log has the same traceback.  A script that puts its own function in this place afterwards is not followed.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

from sm_profiler.formats.process_end import error_line
from sm_profiler.hook.patches import Patches
from sm_profiler.hook.process_end import place_of
from sm_profiler.hook.secrets import masked

MAX_THREADS = 16  # the latest


@attrs.frozen
class DeadThread:
    """A thread that ended with an exception.

    Attributes:
        name: its name.
        error: the exception's type and the first line of its message.
        where: the innermost line of the script that the exception passed, as `train.py:12`; "" if there is none.
        at: when that was, seconds of the clock.
    """

    name: str
    error: str
    where: str
    at: float


class DeadThreads:
    """Notes them from `install` to `remove`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: deque[DeadThread] = deque(maxlen=MAX_THREADS)
        self._patches = Patches(lambda _error: None)

    def install(self) -> None:
        """Begin."""
        self._patches.replace(threading, "excepthook", self._noting)

    def remove(self) -> None:
        """End, and restore the function that was there before."""
        self._patches.remove()

    def forget(self) -> None:
        """Start over in a forked child, which has none of these threads."""
        self._found.clear()

    def as_args(self) -> list[dict[str, Any]]:
        """Return them for a record, the latest first; `ago` is in seconds."""
        now = self._clock()
        return [
            {"name": one.name, "error": one.error, "where": one.where, "ago": round(max(now - one.at, 0.0), 1)}
            for one in reversed(self._found.copy())
        ]

    def _noting(self, before: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(before)
        def excepthook(args: Any) -> Any:
            with contextlib.suppress(Exception):  # fail open: the script's own function must be called
                self._note(args.exc_value, args.thread)
            return before(args)

        return excepthook

    def _note(self, error: BaseException | None, thread: threading.Thread | None) -> None:
        name = thread.name if thread is not None else ""
        if error is None or isinstance(error, SystemExit) or name.startswith("sm-profiler"):
            return
        self._found.append(DeadThread(name, masked(error_line(error)), place_of(error), self._clock()))
