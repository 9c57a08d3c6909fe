"""Threads of this process: how many there are, how long they wait for a core, and how much that delays the training.

JAX and TensorFlow compute on threads of the library while the training thread waits for the result.  On a shared
machine those threads wait for a core, which the training thread's own statistics do not show.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from sm_profiler import threads
from sm_profiler.descriptors import moved_up
from sm_profiler.formats import recorded
from sm_profiler.formats.trace_writer import Span
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.guard import pass_on
from sm_profiler.limits import Limits

BEATS = 5  # between two events
THIS_THREAD = "/proc/thread-self/schedstat"
WAITED = Path("/proc/self/schedstat")  # of the main thread: ns on a core, ns of waiting for a core, slices
STATUS = Path("/proc/self/status")
PROCESSES = Path("/proc")
TASKS = Path("/proc/self/task")
TICKS = os.sysconf("SC_CLK_TCK")  # a second


class Threads(Collector):
    """Records an event every few seconds, on the recorder's thread."""

    name = "threads"

    def __init__(self, append: Callable[[Span], None], clock: Callable[[], int] = perf_counter_ns) -> None:
        self._append = append
        self._clock = clock
        self._beats = 0
        self._last: tuple[int, int, int] | None = None  # time, waited, switches
        self._cores = usable_cores()  # not in start(), which may be called inside a region that torch.compile traces

    def start(self) -> None:
        """Begin a measurement."""
        self._beats = 0
        self._last = (self._clock(), waited_ns(), switches())

    def beat(self) -> None:
        """Record the threads of the last seconds."""
        self._beats += 1
        if self._beats % BEATS == 0:
            self._record()

    def close(self) -> None:
        """Record the last seconds."""
        self._record()

    def forked(self) -> None:
        """Forget the parent's measurement."""
        self._last = None

    def _record(self) -> None:
        now = (self._clock(), waited_ns(), switches())
        last, self._last = self._last, now
        if last is None or now[0] <= last[0]:
            return
        torch: Any = sys.modules.get("torch")
        found = recorded.Threads(
            threads=running_threads(),
            library_threads=int(torch.get_num_threads()) if torch is not None else 1,
            cores=self._cores,
            waited_ns=now[1] - last[1],
            switches=now[2] - last[2],
        )
        self._append(found.span("threads", last[0], now[0]))


def usable_cores() -> float:
    """Return the cores that this process may use: those of its affinity, or the container's share if that is less."""
    cores, quota = float(len(os.sched_getaffinity(0))), Limits().cpu_quota
    return min(cores, quota) if quota else cores


def waited_ns(file: str | Path | None = None) -> int:
    """Return how long a thread, by default the main thread, has waited for a core; 0 if the kernel does not count it."""
    try:
        with open(file or WAITED, "rb", buffering=0) as statistics:  # a tenth of the time of Path.read_text
            return int(statistics.read(64).split()[1])
    except (OSError, ValueError, IndexError) as error:
        pass_on(error)
        return 0


def children_cpu_s(processes: Path = PROCESSES) -> float:
    """Return the CPU seconds of the processes that this one started, such as a loader's workers, whether they have ended or not."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = 0
    for thread in python_threads():
        for child in _text(processes / "self" / "task" / str(thread) / "children").split()[:MAX_FOLLOWED]:
            times = _text(processes / child.decode() / "stat").rpartition(b")")[2].split()[11:13]  # user, system
            ticks += sum(map(int, times))
    return ended.ru_utime + ended.ru_stime + ticks / TICKS


def _text(file: Path) -> bytes:
    try:
        with open(file, "rb", buffering=0) as found:
            return found.read(_TEXT * MAX_FOLLOWED)
    except OSError:  # the process has ended, or the kernel does not list children
        return b""


def switches() -> int:
    """Return the context switches of all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_nvcsw + used.ru_nivcsw


def running_threads() -> int:
    """Return the number of threads of this process."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError as error:
        pass_on(error)
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Threads:")), 0)


SCHEDULER = "schedstat"  # of a thread: ns on a core, ns of waiting for a core, slices
MAX_FOLLOWED = 16  # threads that are read each time, those that run most
MAX_LISTED = 256  # threads among which these are chosen
FIRST_NS, AGAIN_NS = 2_000_000_000, 10_000_000_000  # between choices: while threads may still start, and later
EARLY = 5  # choices after which no more threads are likely to start
_TEXT = 64  # bytes of such a file


class Helpers:
    """Follows the busiest threads of the process that Python did not start.

    Args:
        tasks: the folder of the process' threads.
        python: returns the ids of Python's threads.
    """

    def __init__(self, tasks: Path = TASKS, python: Callable[[], set[int]] | None = None) -> None:
        self._tasks = tasks
        self._python = python or python_threads
        self._files: dict[int, int] = {}  # thread → its open file
        self._reset()

    def _reset(self) -> None:
        self._main = os.getpid()
        self._last: dict[int, tuple[int, int]] = {}  # of the threads that are followed, and the main thread
        self._active: dict[int, int] = {}  # thread → ns on a core or waiting for a core, when they were last chosen
        self._last_ns = 0
        self._due_ns = 0
        self._choices = 0

    def delay(self, now_ns: int) -> int:
        """Return the ns since the last call by which the main thread waited longer because these threads had no core.

        Threads that compute at the same time also wait at the same time: the part of their active time that they wait
        is that of the time for which the main thread is blocked.
        """
        elapsed, self._last_ns = now_ns - self._last_ns, now_ns
        ran = waited = own = 0
        for thread, file in list(self._files.items()):
            found = _read(file)
            if found is None:
                self._leave(thread)
                continue
            before, self._last[thread] = self._last[thread], found
            if thread == self._main:
                own = found[0] - before[0] + found[1] - before[1]
            else:
                ran, waited = ran + found[0] - before[0], waited + found[1] - before[1]
        if now_ns >= self._due_ns:
            self._choose(now_ns)
        blocked = max(elapsed - own, 0)
        active = ran + waited
        if waited <= 0 or self._main not in self._files:
            return 0
        return min(int(waited * min(blocked / active, 1.0)), blocked)

    def close(self) -> None:
        """Close the files; also in a forked child, where they are still the parent's."""
        for thread in list(self._files):
            self._leave(thread)

    def forked(self) -> None:
        """Start over in a forked child."""
        self.close()
        self._reset()

    def _choose(self, now_ns: int) -> None:
        """Follow the threads that were most active since the last choice."""
        self._choices += 1
        self._due_ns = now_ns + (FIRST_NS if self._choices <= EARLY else AGAIN_NS)
        try:
            names = [task.name for task in islice(self._tasks.iterdir(), MAX_LISTED)]
        except OSError:
            return
        python, before, self._active = self._python(), self._active, {}
        for name in names:
            thread = int(name) if name.isdecimal() else self._main
            if thread != self._main and thread not in python and (found := self._look(thread)) is not None:
                self._active[thread] = sum(found)
        busiest = sorted(self._active, key=lambda thread: before.get(thread, 0) - self._active[thread])
        wanted = {
            self._main,
            *(thread for thread in busiest[:MAX_FOLLOWED] if self._active[thread] > before.get(thread, 0)),
        }
        for thread in set(self._files) - wanted:
            self._leave(thread)
        for thread in wanted - set(self._files):
            self._follow(thread)

    def _look(self, thread: int) -> tuple[int, int] | None:
        if thread in self._files:
            return self._last[thread]
        file = self._open(thread)
        if file is None:
            return None
        try:
            return _read(file)
        finally:
            os.close(file)

    def _follow(self, thread: int) -> None:
        file = self._open(thread)
        if file is not None:
            file = self._files[thread] = moved_up(file)
            self._last[thread] = _read(file) or (0, 0)

    def _leave(self, thread: int) -> None:
        self._last.pop(thread, None)
        with contextlib.suppress(OSError):
            os.close(self._files.pop(thread))

    def _open(self, thread: int) -> int | None:
        try:
            return os.open(self._tasks / str(thread) / SCHEDULER, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None


def python_threads() -> set[int]:
    """Return the ids of the threads that Python started, ours among them."""
    return {thread.native_id for thread in threading.enumerate() if thread.native_id is not None} | set(
        threads.running()
    )


def _read(file: int) -> tuple[int, int] | None:
    """Return the ns that a thread ran and waited for a core; None if it has ended, or nothing is counted."""
    try:
        ran, waited = os.pread(file, _TEXT, 0).split()[:2]
        return int(ran), int(waited)
    except (OSError, ValueError):
        return None
