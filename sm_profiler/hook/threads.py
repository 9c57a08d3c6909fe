"""Threads of the process: how many its libraries use, and how much they keep each other from running."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from sm_profiler.formats.event_names import THREADS
from sm_profiler.hook.collector import Collector
from sm_profiler.hook.foreign import pass_on
from sm_profiler.hook.steps import Record
from sm_profiler.limits import Limits

BEATS = 5  # between two events
WAITED = Path("/proc/self/schedstat")  # of the main thread: ns on a core, ns of waiting for one, slices
STATUS = Path("/proc/self/status")


class Threads(Collector):
    """Records an event every few seconds, on the recorder's thread."""

    name = "threads"

    def __init__(self, append: Callable[[Record], None], clock: Callable[[], int] = perf_counter_ns) -> None:
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
        args = {
            "threads": running_threads(),
            "library_threads": int(torch.get_num_threads()) if torch is not None else 1,
            "cores": self._cores,
            "waited_ns": now[1] - last[1],
            "switches": now[2] - last[2],
        }
        self._append((THREADS, "threads", last[0], now[0], -1, args))


def usable_cores() -> float:
    """Return the cores that this process may use: those of its affinity, or the container's share if that is less."""
    cores, quota = float(len(os.sched_getaffinity(0))), Limits().cpu_quota
    return min(cores, quota) if quota else cores


def waited_ns() -> int:
    """Return how long the main thread has waited for a core; 0 if the kernel does not count it."""
    try:
        with open(WAITED, "rb", buffering=0) as file:  # a tenth of the time of Path.read_text, in each sample
            return int(file.read(64).split()[1])
    except (OSError, ValueError, IndexError) as error:
        pass_on(error)
        return 0


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
