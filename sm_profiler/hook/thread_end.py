"""The end of a thread: frameworks that train on a thread of their own (Ray Train) kill the process soon after it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

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
