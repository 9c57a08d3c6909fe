"""Events that signal handlers may set.

`threading.Event.set` takes a lock. A handler runs in the main thread between two instructions, so if it calls `set` while
the main thread is inside a method of the same event, it waits for itself forever. The handlers of this package therefore
only write a byte to a pipe, which takes no lock.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import weakref
from typing import Protocol


class StopEvent(Protocol):
    """The part of `threading.Event` that a loop needs to end in time."""

    def is_set(self) -> bool:
        """Return whether the loop must end."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set, for `timeout` seconds at most; return whether it is."""


class SignalEvent:
    """An event with the methods of `threading.Event`, any of which may be interrupted by a handler that calls `set`.

    The event is set while its pipe holds a byte.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._close = weakref.finalize(self, _close, self._read, self._write)

    def set(self) -> None:
        """Set the event."""
        with contextlib.suppress(BlockingIOError):  # a full pipe is set already
            os.write(self._write, b"\0")

    def clear(self) -> None:
        """Reset the event."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set, for `timeout` seconds at most; return whether it is."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        return bool(poll.poll(None if timeout is None else 1000 * max(timeout, 0.0)))

    def fileno(self) -> int:
        """Return the file descriptor that is readable while the event is set."""
        return self._read

    def set_on(self, *numbers: signal.Signals) -> None:
        """Set the event whenever one of these signals arrives; must be called in the main thread."""
        for number in numbers:
            signal.signal(number, lambda *_: self.set())


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
