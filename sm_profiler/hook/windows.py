"""Windows: the steps at which each collector is on, and how much slower the training is in them."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from sm_profiler.config import CollectorConfig
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.own_work import WINDOW, OwnWork
from sm_profiler.hook.scheduling import waited_ns

if TYPE_CHECKING:
    from sm_profiler.hook.steps import StepTracker

LATE_SECONDS = 1.0  # a shorter delay is that of a usual step
LATE_SHARE = 0.5  # of a short window; if it is over when the training reaches it, it has a single step


def bounds(of: CollectorConfig) -> tuple[float | None, ...]:
    """Return the fields by which two windows are compared."""
    return (of.start_step, of.num_steps, of.start_time, of.duration)


@attrs.define(eq=False)
class Window:
    """Decides, step by step, whether a collector is active.

    A window that ended never reopens; a changed range needs a new object.  Time ranges open by the wall clock and close
    by the monotonic one, so that a clock adjustment neither shortens nor stretches an open window.

    Attributes:
        range: the configured range.
        opened: it has been active.
        prepared: its collector has prepared for it.
        late: seconds from the configured start to the step that opened it.
        active: the last step was inside.
        ended: no later step is inside.
    """

    range: CollectorConfig
    prepared: bool = attrs.field(default=False, init=False)
    late: float = attrs.field(default=0.0, init=False)
    active: bool = attrs.field(default=False, init=False)
    ended: bool = attrs.field(default=False, init=False)
    opened: bool = attrs.field(default=False, init=False)
    _first_step: int | None = attrs.field(default=None, init=False)
    _open_until: float | None = attrs.field(default=None, init=False)
    _only: int | None = attrs.field(default=None, init=False)

    def at_step(self, step: int, now: float, monotonic: float, batches: int = 1) -> bool:
        """Return whether the step that begins now is inside.

        Args:
            step: the global step, counted from 0, never falling.
            now: seconds since the epoch.
            monotonic: seconds of a monotonic clock.
            batches: number of batches that run at once, each with a step number; the window is rounded to whole runs.
        """
        if self.ended:
            self.active = False
            return False
        if self._first_step is None:
            self._first_step = step
        inside = self._by_step(step, batches) if self._counts_steps() else self._by_time(step, now, monotonic)
        if self.active and not inside:
            self.ended = True
        self.active = inside
        self.opened = self.opened or inside
        return inside

    def may_prepare_later(self, step: int) -> bool:
        """Return whether this is the first step, and more follow before the window.

        In the first one, scripts and libraries import what the collector would otherwise import for them.
        """
        start = self.range.start_step
        return self._first_step in (None, step) and start is not None and start > step + 1

    @property
    def is_late(self) -> bool:
        """True if it missed a noticeable part of its time."""
        duration = self.range.duration
        return self.late > LATE_SECONDS or (duration is not None and 0 < LATE_SHARE * duration < self.late)

    def _counts_steps(self) -> bool:
        return self.range.start_step is not None or self.range.num_steps is not None

    def _by_step(self, step: int, batches: int) -> bool:
        start = self._first_step if self.range.start_step is None else self.range.start_step
        count = 1 if self.range.num_steps is None else self.range.num_steps
        if start is None or step >= start + count:
            self.ended = True
            return False
        return start < step + batches

    def _by_time(self, step: int, now: float, monotonic: float) -> bool:
        start, duration = self.range.start_time, self.range.duration
        if start is None and duration is None:
            self.ended = True
            return False
        if self._open_until is not None:
            # The step that opened the window is profiled even if the window was over before the step began.
            return step == self._only or monotonic < self._open_until
        if start is not None and now < start:
            return False
        left = 0.0 if duration is None else duration if start is None else start + duration - now
        self._open_until, self._only = monotonic + left, step
        self.late = 0.0 if start is None else now - start
        return True


class Schedule:
    """The windows of a profile, which turn collectors on and off at step boundaries.

    Attributes:
        windows: collector → its window, for all configured collectors, available or not.
        collectors: collector → object that is turned on and off.
    """

    def __init__(
        self, is_off: Callable[[str], bool], run: Callable[..., bool], note: Callable[[str, str], None]
    ) -> None:
        """Create a schedule without windows.

        Args:
            is_off: whether a collector failed or was shed.
            run: calls a collector's method; returns whether it succeeded.
            note: takes why a collector has partial data.
        """
        self.windows: dict[str, Window] = {}
        self.collectors: dict[str, Collector] = {}
        self.is_off = is_off
        self._run = run
        self._note = note

    def configure(self, ranges: Mapping[str, CollectorConfig]) -> None:
        """Give each collector a window; if its range is unchanged, it keeps its window, whether open or over."""
        for name, given in ranges.items():
            known = self.windows.get(name)
            if known is None or bounds(known.range) != bounds(given):
                if known is not None and known.active and name in self.collectors:
                    known.ended = True
                    self._turn(name, self.collectors[name], known, -1)
                self.windows[name] = Window(given)
        for name in set(self.windows) - set(ranges):
            self.windows[name].ended = True

    def is_ahead(self, name: str) -> bool:
        """Return whether a collector's window is open, or will be."""
        window = self.windows.get(name)
        return window is not None and not window.ended and not self.is_off(name)

    def takes_batch(self, name: str, tracker: StepTracker) -> bool:
        """Return whether a batch that arrives now is inside a window: batches are fetched ahead of their step."""
        if not self.is_ahead(name):
            return False
        step = max(tracker.global_step + (not tracker.is_open), 0)
        return self.windows[name].at_step(step, time.time(), time.monotonic(), tracker.batches)

    def missed(self, name: str, now: float) -> str | None:
        """Return why a collector's window never opened, or None."""
        window = self.windows.get(name)
        if window is None or window.opened or window.ended:
            return None
        start = window.range.start_time
        if start is None:
            return f"missed: the training ended before step {window.range.start_step or 0}"
        if now < start:
            return f"missed: the training ended {start - now:.0f} s before its start"
        return "missed: no step began after its start"

    def at_step(self, step: int, batches: int = 1) -> bool:
        """Turn collectors on and off for the step that begins; return whether all windows are over."""
        over = True
        for name, window in self.windows.items():
            if self.is_off(name):
                window.ended = True
            collector = self.collectors.get(name)
            if collector is not None and (window.active or not window.ended):
                self._turn(name, collector, window, step, batches)
                over = over and window.ended
        return over

    def end(self, name: str) -> None:
        """End a collector's window; the collector has already stopped."""
        window = self.windows.get(name)
        if window is not None:
            window.ended, window.active = True, False

    def active(self) -> list[str]:
        """Return the names of the collectors that are on."""
        return [name for name, window in self.windows.items() if window.active and name in self.collectors]

    def leave(self, name: str, step: int) -> None:
        """End a collector's window early."""
        window, collector = self.windows.get(name), self.collectors.get(name)
        if window is not None and collector is not None and window.active:
            self._run(collector, collector.leave, step)
            self.end(name)

    def close(self) -> None:
        """Leave all open windows."""
        for name, collector in self.collectors.items():
            window = self.windows.get(name)
            if window is not None and window.active and not self.is_off(name):
                self._run(collector, collector.leave, -1)

    def _turn(self, name: str, collector: Collector, window: Window, step: int, batches: int = 1) -> None:
        was = window.active
        if not window.prepared and not was and not window.may_prepare_later(step):
            window.prepared = True
            self._run(collector, collector.prepare)
        now = window.at_step(step, time.time(), time.monotonic(), batches)
        if was is not now and not self._switch(collector, collector.enter if now else collector.leave, step):
            self.end(name)
        elif now and not was and window.is_late:
            self._note(name, f"late: its first step began {window.late:.1f} s after the window's start")

    def _switch(self, collector: Collector, action: Callable[[int], None], step: int) -> bool:
        """Enter or leave a window; it has ended if an exception of the script interrupts this."""
        try:
            return self._run(collector, action, step)
        except BaseException as error:
            self.end(collector.name)
            self._note(collector.name, f"ended early: the script's {type(error).__name__} interrupted it")
            with suppress(Exception):
                collector.failed()
            raise


# The slowdown by open windows, compared with the steps before them.

USUAL_STEPS = 20  # of each mode, before a window
MIN_USUAL = 3
MIN_STEPS = 2  # in a window: the first one pays for its start
FACTOR = 1.5  # times the usual duration of a step
BUDGET_NS = 1_000_000_000  # that a window may cost, at any factor


@attrs.define
class OpenWindow:
    """Steps of a window so far.

    Attributes:
        start_ns: start of its first step.
        stalled_ns: `OwnWork.stalled_ns` at that time.
        steps: number of steps that are over.
        spent_ns: their time from start to start.
        usual_ns: the time that they take without a window.
        known: the usual time of all of them is known.
    """

    start_ns: int
    stalled_ns: int
    steps: int = 0
    spent_ns: int = 0
    usual_ns: float = 0.0
    known: bool = True

    @property
    def excess_ns(self) -> float:
        """Time that the window cost, 0 if unknown."""
        return self.spent_ns - self.usual_ns if self.known else 0.0

    @property
    def factor(self) -> float:
        """Duration of its steps as a multiple of the usual one."""
        return self.spent_ns / self.usual_ns if self.known and self.usual_ns else 1.0

    @property
    def is_too_slow(self) -> bool:
        """True if training is noticeably slower, for longer than the budget."""
        return self.steps >= MIN_STEPS and self.excess_ns > BUDGET_NS and self.factor > FACTOR


class Slowdown:
    """Times steps while windows are open or expected, from the start of one step to the start of the next.

    Waits for a core are left out: a median of some steps has fewer of them than a sum.
    """

    def __init__(self, work: OwnWork, is_open: Callable[[], list[str]], waited: Callable[[], int] = waited_ns) -> None:
        """Start without any steps.

        Args:
            work: records the windows.
            is_open: returns the names of the windows that are open.
            waited: returns how long the main thread has waited for a core, in ns.
        """
        self._waited = waited
        self._work = work
        self._is_open = is_open
        self._usual: dict[ModeKeys, deque[int]] = {}
        self._last: tuple[int, int, ModeKeys] | None = None  # step, start less waits, mode
        self._windows: dict[str, OpenWindow] = {}

    def reset(self) -> None:
        """Start over, in a forked child."""
        self._usual.clear()
        self._windows.clear()
        self._last = None

    def usual_ns(self, mode: ModeKeys) -> float | None:
        """Return the median duration of the steps before the windows, or None if too few are known."""
        known = self._usual.get(mode, ())
        return statistics.median(known) if len(known) >= MIN_USUAL else None

    def step_begins(self, step: int, mode: ModeKeys, now_ns: int) -> list[str]:
        """Account the step that ended, and return the windows that are to be closed because they cost too much."""
        now_ns -= self._waited()
        last, self._last = self._last, (step, now_ns, mode)
        if last is None or step != last[0] + 1:  # steps in between were not reported
            return []
        took = now_ns - last[1]
        if not self._windows:
            self._usual.setdefault(last[2], deque(maxlen=USUAL_STEPS)).append(took)
            return []
        usual = self.usual_ns(last[2])
        for window in self._windows.values():
            window.steps += 1
            window.spent_ns += took
            window.usual_ns += usual or 0.0
            window.known = window.known and usual is not None
        return [name for name, window in self._windows.items() if window.is_too_slow]

    def windows_turned(self, now_ns: int) -> None:
        """Note which windows opened, and record those that closed; called when all had their turn at a step's start."""
        names = self._is_open()
        for name in self._windows.keys() - names:
            self._record(name, self._windows.pop(name), now_ns)
        for name in names:
            if name not in self._windows:
                self._windows[name] = OpenWindow(now_ns, self._work.stalled_ns)

    def close(self, now_ns: int) -> None:
        """Record the windows that are still open."""
        for name, window in self._windows.items():
            self._record(name, window, now_ns)
        self._windows.clear()

    def factor(self, name: str) -> float:
        """Return the duration of an open window's steps as a multiple of the usual one."""
        return self._windows[name].factor

    def _record(self, name: str, window: OpenWindow, now_ns: int) -> None:
        known = window.known and window.steps > 0
        stalls = self._work.stalled_ns - window.stalled_ns  # counted already
        self._work.stalled_ns += max(int(window.excess_ns) - stalls, 0)
        self._work.record(
            f"{name} window", window.start_ns, now_ns, WINDOW,
            window=name, steps=window.steps, slower=round(window.factor, 2) if known else None,
        )  # fmt: skip
