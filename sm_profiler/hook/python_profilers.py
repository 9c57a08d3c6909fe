"""Profilers of the Python window, each used for one run, and a time limit for such a run."""

from __future__ import annotations

import contextlib
import cProfile
import ctypes
import marshal
import operator
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Protocol

from sm_profiler.hook.python_stats import marshalled

# Seconds during which this process had no processor.  Not a Python function: the profiler would call it twice per call,
# and the interpreter tends to run pending calls (see TimeLimit) inside it, where the profiler must not be stopped.
off_cpu: Callable[[], float] = map(operator.sub, iter(time.perf_counter, None), iter(time.process_time, None)).__next__

TIMERS: dict[str, Callable[[], float]] = {  # besides total_time, which cProfile measures itself, at half the cost
    "cpu_time": time.process_time,
    "off_cpu_time": off_cpu,
}


class PythonProfiler(Protocol):
    """One run of a profiler.

    Attributes:
        name: in requests and in paths.
    """

    name: str

    def start(self) -> None:
        """Start."""

    def stop(self) -> None:
        """Stop; writes nothing."""

    def files(self) -> dict[str, bytes]:
        """Return the results: file name → content."""


RAW_SESSION = "python_stats.session"

_PENDING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_kept: list[Any] = []  # the interpreter holds no reference to pending calls
AGAIN_SECONDS = 0.05
MAX_TRIES = 1000  # a few microseconds each


def in_profiler(frame: FrameType | None) -> bool:
    """Return whether the interpreter is inside a profiler's callback, where that profiler must not be stopped."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("pyinstrument"):
            return True
        frame = frame.f_back
    return False


class TimeLimit:
    """Calls a function on the main thread after some time, unless cancelled.

    A profiler is bound to the thread that it profiles and can only be stopped there.  A sleeping thread costs nothing
    while the profiler runs, and leaves the script's signals alone.
    """

    def __init__(self, seconds: float, reached: Callable[[], None]) -> None:
        self._seconds = seconds
        self._reached = reached
        self._done = False
        self._over = threading.Lock()  # locks only: a fork may happen in any state
        self._over.acquire()
        self._answer = threading.Lock()
        self._answer.acquire()
        self._add = ctypes.PyDLL(None).Py_AddPendingCall  # the main thread runs pending calls between two instructions
        self._add.argtypes = (_PENDING, ctypes.c_void_p)
        self._tries = 0
        self._call = _PENDING(self._answered)
        _kept.append(self._call)
        threading.Thread(target=self._run, name="sm-profiler-limit", daemon=True).start()

    def cancel(self) -> None:
        """Do not call the function."""
        with contextlib.suppress(RuntimeError):  # already cancelled
            self._over.release()

    def _run(self) -> None:
        """Wait, then schedule the call until it has run; on a thread of its own."""
        wait = self._seconds
        while not self._done and not self._over.acquire(timeout=wait):
            wait = AGAIN_SECONDS
            if self._add(self._call, None) == 0:  # otherwise too many calls are pending
                self._answer.acquire()

    def _answered(self, _: Any) -> int:
        """Run on the main thread, as a pending call."""
        if in_profiler(sys._getframe()):  # only the stack shows it
            self._tries += 1  # the callback returns after a few instructions
            if self._tries % MAX_TRIES and self._add(self._call, None) == 0:
                return 0
        else:
            self._done = True
            with contextlib.suppress(Exception):  # no caller could handle it; the function guards itself
                self._reached()
        self._answer.release()
        return 0


class _Place:
    """The place of this thread's profiler: the script may put one of its own there while ours runs."""

    def __init__(self) -> None:
        self._own = sys.getprofile()  # called after ours has started

    @contextlib.contextmanager
    def cleared(self) -> Iterator[None]:
        """Let our profiler stop, which clears the place even of another one, and put the script's back."""
        there: Any = sys.getprofile()
        try:
            yield
        finally:
            if there is not None and there is not self._own and sys.getprofile() is not there:
                if isinstance(there, cProfile.Profile):
                    there.enable()
                else:
                    sys.setprofile(there)


class CProfile:
    """The standard library's deterministic profiler."""

    name = "cprofile"

    def __init__(self, timer: str) -> None:
        self._profile = cProfile.Profile(TIMERS[timer]) if timer in TIMERS else cProfile.Profile()

    def start(self) -> None:
        """Start."""
        self._profile.enable()
        self._place = _Place()

    def stop(self) -> None:
        """Stop."""
        with self._place.cleared():
            self._profile.disable()

    def files(self) -> dict[str, bytes]:
        """Return the statistics in the format of pstats."""
        return {"python_stats": marshalled(self._profile.getstats())}


class Pyinstrument:
    """Pyinstrument, version 5 or newer."""

    name = "pyinstrument"

    def __init__(self) -> None:
        from pyinstrument import Profiler  # an optional dependency

        self._profiler: Any = Profiler(async_mode="disabled")
        self._session: Any = None

    def start(self) -> None:
        """Start."""
        self._profiler.start()
        self._place = _Place()

    def stop(self) -> None:
        """Stop."""
        with self._place.cleared():
            self._session = self._profiler.stop()

    def files(self) -> dict[str, bytes]:
        """Return the raw session, which `render_pyinstrument` renders: that takes seconds for a profile of imports."""
        return {RAW_SESSION: marshal.dumps(self._session.to_json())}
