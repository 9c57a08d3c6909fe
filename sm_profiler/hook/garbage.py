"""Garbage collections of a millisecond or more, as events of the timeline."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable
from time import perf_counter_ns
from types import FrameType
from typing import Any

from sm_profiler.formats.event_names import GARBAGE_COLLECTION
from sm_profiler.hook import guard
from sm_profiler.hook.collector import Collector
from sm_profiler.hook.guard import pass_on, uninterrupted
from sm_profiler.hook.own_work import OwnWork
from sm_profiler.hook.steps import Record

MIN_NS = 1_000_000
FULL = 2  # the oldest generation
_OWN = (__file__, guard.__file__)


class GarbageCollector(Collector):
    """Records the runs of Python's garbage collector, and marks those that the hook caused.

    The hook caused a collection that ran while it worked, and a full one for which it allocated more than the script
    since the last full one: the interpreter starts it when enough objects have survived the younger generations.
    """

    name = "garbage collections"

    def __init__(
        self,
        append: Callable[[Record], None],
        work: OwnWork,
        clock: Callable[[], int] = perf_counter_ns,
        *,
        on_collection: Callable[[FrameType | None, float], None] | None = None,
        is_due: Callable[[], bool] | None = None,
    ) -> None:
        self._append = append
        self._work = work
        self._clock = clock
        self._survived = [0, 0]  # collections of generation 1 since the last full one: the script's, the hook's
        self._is_due = is_due or full_is_due
        self._on_collection = on_collection  # takes the frame that caused it, and its seconds
        self._phase, self._now = "", 0
        self._callback = uninterrupted(self._take)  # Python ignores what a callback raises, an interrupt included
        self._began = 0
        self._due = False  # the interpreter started the collection, and no call of gc.collect()

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

    def _take(self, value: str | dict[str, Any]) -> None:
        """Take the arguments of the collector's callback in turn: the phase, then what is known about it."""
        if isinstance(value, str):
            self._phase, self._now = value, self._clock()
        else:
            self._collects(self._phase, value, self._now)

    def _collects(self, phase: str, info: dict[str, Any], now: int) -> None:
        if phase == "start":
            self._began = now
            self._due = self._is_due()
        elif self._began:
            generation = info.get("generation", -1)
            if generation == 0 and now - self._began < MIN_NS:
                return
            own = during = self._work.is_own()
            if generation == 1:
                self._survived[own] += 1
            elif generation == FULL:
                scripts, hooks = self._survived
                own = own or (self._due and hooks > scripts)
                self._survived = [0, 0]
            if now - self._began >= MIN_NS:
                self._record(generation, info.get("collected", 0), now, own=own, during=during)

    def _record(self, generation: int, collected: int, now: int, *, own: bool, during: bool) -> None:
        args: dict[str, Any] = {"generation": generation, "collected": collected}
        if own:
            args["own"] = True
            if not during:  # otherwise part of the work during which it ran
                self._work.stalled_ns += now - self._began
        self._append((GARBAGE_COLLECTION, f"generation {generation}", self._began, now, -1, args))
        if self._on_collection is not None and not own:
            try:
                self._on_collection(_collecting(), (now - self._began) / 1e9)
            except Exception as error:  # an extra
                pass_on(error)


def _collecting() -> FrameType | None:
    """Return the frame in which the collection began: the innermost outside of the hook."""
    frame: FrameType | None = sys._getframe(1)  # the caller's line
    while frame is not None and frame.f_code.co_filename in _OWN:
        frame = frame.f_back
    return frame


def full_is_due() -> bool:
    """Return whether a full collection is due, so that the collection that starts is not a call of gc.collect()."""
    return gc.get_count()[FULL] > gc.get_threshold()[FULL]
