"""Garbage collections of a millisecond or more, as events of the timeline."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from sm_profiler.formats.event_names import GARBAGE_COLLECTION
from sm_profiler.hook.collector import Collector
from sm_profiler.hook.steps import Record

MIN_NS = 1_000_000


class GarbageCollector(Collector):
    """Records the runs of Python's garbage collector."""

    name = "garbage collections"

    def __init__(self, append: Callable[[Record], None], clock: Callable[[], int] = perf_counter_ns) -> None:
        self._append = append
        self._clock = clock
        self._began = 0

    def start(self) -> None:
        """Register with the garbage collector."""
        if self._callback not in gc.callbacks:
            gc.callbacks.append(self._callback)

    def close(self) -> None:
        """Unregister."""
        self.failed()

    def failed(self) -> None:
        """Unregister."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._callback)

    def _callback(self, phase: str, info: dict[str, Any]) -> None:
        now = self._clock()
        if phase == "start":
            self._began = now
        elif self._began and now - self._began >= MIN_NS:
            generation = info.get("generation", -1)
            args = {"generation": generation, "collected": info.get("collected", 0)}
            self._append((GARBAGE_COLLECTION, f"generation {generation}", self._began, now, -1, args))
