"""The profilers of the Python window, each from one start to one stop, and a limit to how long one may run."""

from __future__ import annotations

import contextlib
import cProfile
import ctypes
import marshal
import operator
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

# Seconds that passed without this process having a processor.  No function in Python, which the profiler would call twice a
# call, and inside of which the interpreter likes to take up what Limit asks for: the profiler must not be stopped there.
off_cpu: Callable[[], float] = map(operator.sub, iter(time.perf_counter, None), iter(time.process_time, None)).__next__

TIMERS: dict[str, Callable[[], float]] = {
    "total_time": time.perf_counter,
    "cpu_time": time.process_time,
    "off_cpu_time": off_cpu,
}


class Session(Protocol):
    """One profiler from start to stop."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End; nothing is written yet."""

    def files(self) -> dict[str, bytes]:
        """File name → content."""


_PENDING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_kept: list[Any] = []  # the interpreter holds no reference to what it is to call
AGAIN_SECONDS = 0.05
MAX_TRIES = 1000  # a few microseconds each


def in_profiler(frame: FrameType | None) -> bool:
    """Whether the interpreter is inside a profiler's callback, where that profiler must not be stopped."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("pyinstrument"):
            return True
        frame = frame.f_back
    return False


class Limit:
    """Calls back on the main thread after some time, unless it is cancelled before.

    A profiler is bound to the thread that it watches and can only be stopped there.  A thread that sleeps is the way that
    costs nothing while the profiler runs, and takes no signal from the script.
    """

    def __init__(self, seconds: float, reached: Callable[[], None]) -> None:
        self._seconds = seconds
        self._reached = reached
        self._done = False
        self._over = threading.Lock()  # no more than locks: a fork may find them in any state
        self._over.acquire()
        self._answer = threading.Lock()
        self._answer.acquire()
        self._add = ctypes.PyDLL(None).Py_AddPendingCall  # the main thread calls it between two of its instructions
        self._add.argtypes = (_PENDING, ctypes.c_void_p)
        self._tries = 0
        self._call = _PENDING(self._answered)
        _kept.append(self._call)
        threading.Thread(target=self._run, name="sm-profiler-limit", daemon=True).start()

    def cancel(self) -> None:
        """There is nothing left to end."""
        with contextlib.suppress(RuntimeError):  # cancelled before
            self._over.release()

    def _run(self) -> None:
        """On a thread of its own: wait, and ask until it is done."""
        wait = self._seconds
        while not self._done and not self._over.acquire(timeout=wait):
            wait = AGAIN_SECONDS
            if self._add(self._call, None) == 0:  # otherwise too many calls are waiting already
                self._answer.acquire()

    def _answered(self, _: Any) -> int:
        """On the main thread."""
        if in_profiler(sys._getframe()):  # noqa: SLF001 - the stack is the only witness
            self._tries += 1  # it is left after a few instructions
            if self._tries % MAX_TRIES and self._add(self._call, None) == 0:
                return 0
        else:
            self._done = True
            with contextlib.suppress(Exception):  # nobody there to take it; what is called guards itself
                self._reached()
        self._answer.release()
        return 0


class CProfileSession:
    """The standard library's deterministic profiler."""

    def __init__(self, timer: str) -> None:
        self._profile = cProfile.Profile(TIMERS[timer])

    def start(self) -> None:
        """Begin."""
        self._profile.enable()

    def stop(self) -> None:
        """End."""
        self._profile.disable()

    def files(self) -> dict[str, bytes]:
        """The statistics in pstats' form."""
        self._profile.create_stats()
        return {"python_stats": marshal.dumps(self._profile.stats)}


class PyinstrumentSession:
    """Pyinstrument, version 5 or newer."""

    def __init__(self) -> None:
        from pyinstrument import Profiler  # noqa: PLC0415 - an extra; only where a configuration asks for it

        self._profiler: Any = Profiler(async_mode="disabled")
        self._session: Any = None

    def start(self) -> None:
        """Begin."""
        self._profiler.start()

    def stop(self) -> None:
        """End."""
        self._session = self._profiler.stop()

    def files(self) -> dict[str, bytes]:
        """The session as JSON and as a page."""
        from pyinstrument.renderers import HTMLRenderer, JSONRenderer  # noqa: PLC0415 - as above

        return {
            "python_stats.json": JSONRenderer().render(self._session).encode(),
            "python_stats.html": HTMLRenderer().render(self._session).encode(),
        }
