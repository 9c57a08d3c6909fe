"""Garbage collections that take a millisecond or more stand in the timeline."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from sm_profiler.formats.event_names import GARBAGE_COLLECTION
from sm_profiler.hook.steps import Record

MIN_NS = 1_000_000


class GarbageWatch:
    """Listens to the collector."""

    def __init__(self, append: Callable[[Record], None], clock: Callable[[], int] = perf_counter_ns) -> None:
        self._append = append
        self._clock = clock
        self._began = 0

    def start(self) -> None:
        """Begin to listen."""
        if self._hear not in gc.callbacks:
            gc.callbacks.append(self._hear)

    def stop(self) -> None:
        """Stop listening."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._hear)

    def _hear(self, phase: str, info: dict[str, Any]) -> None:
        now = self._clock()
        if phase == "start":
            self._began = now
        elif self._began and now - self._began >= MIN_NS:
            generation = info.get("generation", -1)
            args = {"generation": generation, "collected": info.get("collected", 0)}
            self._append((GARBAGE_COLLECTION, f"generation {generation}", self._began, now, -1, args))
