"""The profiler's own doing: what the hook does on a thread of the training, and the collections that this causes.

A report must not blame the script for the time that its windows take.  Each such moment becomes a record, and garbage
collections that the hook's objects caused are marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from time import perf_counter_ns
from typing import Any, TypeVar

from sm_profiler.formats.recorded import Profiling
from sm_profiler.formats.trace_writer import Span
from sm_profiler.hook.scheduling import THIS_THREAD, waited_ns

Result = TypeVar("Result")
MIN_NS = 50_000  # shorter work is counted and not recorded
STALL, BACKGROUND, WINDOW = "stall", "background", "window"  # kinds of records


class OwnWork:
    """Distinguishes the hook's work from the script's.

    Attributes:
        stalled_ns: time for which the training waited for the hook, besides the callbacks of each step; without the time
            for which other processes kept it from running.
    """

    def __init__(
        self,
        append: Callable[[Span], None],
        clock: Callable[[], int] = perf_counter_ns,
        waited: Callable[[], int] = waited_ns,
    ) -> None:
        self.stalled_ns = 0
        self._kept = (0, 0)  # ns by the clock for which the training was kept; the start of what keeps it now, or 0
        self._append = append
        self._clock = clock
        self._waited = waited  # of the main thread, for a core
        self._threads: dict[int, int] = {}  # thread → how many blocks of own work it is in
        self._waited_elsewhere = 0  # ns for which other threads, for which this block waits, had no core

    def reset(self) -> None:
        """Start over, in a forked child, which has one thread."""
        self._threads.clear()
        self.stalled_ns = 0
        self._kept = (0, 0)

    def is_own(self, thread: int | None = None) -> bool:
        """Return whether a thread, by default this one, is doing the hook's work."""
        return (get_ident() if thread is None else thread) in self._threads

    def kept_ns(self, now_ns: int) -> int:
        """Return the nanoseconds by the clock for which the training has waited for the hook's work until now."""
        ended, start = self._kept
        return ended + (max(now_ns - start, 0) if start else 0)

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Count everything inside the block on this thread as the hook's work."""
        thread = get_ident()
        self._threads[thread] = self._threads.get(thread, 0) + 1
        try:
            yield
        finally:
            depth = self._threads.get(thread, 1) - 1
            if depth:
                self._threads[thread] = depth
            else:
                self._threads.pop(thread, None)

    @contextmanager
    def doing(self, what: str, kind: str = STALL) -> Iterator[None]:
        """Record the block as the hook's work.

        Args:
            what: name of the record, such as "Python window starts".
            kind: STALL if the training waits for it, BACKGROUND if it runs on another thread.
        """
        start = self._clock()
        outermost = not self.is_own()
        stalls = outermost and kind == STALL
        waited = self._waited() if stalls else 0
        if stalls:
            self._waited_elsewhere = 0
            self._kept = self._kept[0], start
        try:
            with self.unrecorded():
                yield
        finally:
            end = self._clock()
            if end - start >= MIN_NS:
                self.record(what, start, end, kind)
            if stalls:
                self._kept = self._kept[0] + end - start, 0
                without_core = self._waited() - waited + self._waited_elsewhere
                self.stalled_ns += max(end - start - without_core, 0)

    @contextmanager
    def holding(self, what: str) -> Iterator[None]:
        """Record a call on the recorder's thread that holds the interpreter, so that the training waits for it.

        It adds nothing to `stalled_ns`: its CPU time is counted as that of its thread.
        """
        start = self._clock()
        with self.unrecorded():
            yield
        end = self._clock()
        self._kept = self._kept[0] + end - start, self._kept[1]
        self.record(what, start, end, STALL)

    def elsewhere(self, action: Callable[[], Result]) -> Result:
        """Run an action on another thread, for which a block of own work waits; that thread's waits for a core are no stall.

        They replace those of the main thread in this time: the two may have waited for a core at once, and no time is
        subtracted twice.
        """
        own, main = waited_ns(THIS_THREAD), self._waited()
        try:
            return action()
        finally:
            self._waited_elsewhere += (waited_ns(THIS_THREAD) - own) - (self._waited() - main)

    def record(self, what: str, start_ns: int, end_ns: int, kind: str, **more: Any) -> None:
        """Record a span of the hook's work."""
        self._append(Profiling(kind=kind, **more).span(what, start_ns, end_ns))


class Aside:
    """Callbacks, saving and logging on the training thread: what they launch is not the work of the step around them.

    Attributes:
        depth: calls that run, one inside the other.
        ns: nanoseconds of the outermost calls that ended.
    """

    def __init__(self) -> None:
        self.depth = self.ns = 0

    def leave(self, taken_ns: int) -> None:
        """Record the end of a call."""
        self.depth -= 1
        if self.depth == 0:
            self.ns += taken_ns
