"""Slowdown of the training by open windows, compared with the steps before them."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

import attrs

from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.own_work import WINDOW, OwnWork

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
    """Times steps while windows are open or expected, from the start of one step to the start of the next."""

    def __init__(self, work: OwnWork, is_open: Callable[[], list[str]]) -> None:
        """Start without any steps.

        Args:
            work: records the windows.
            is_open: returns the names of the windows that are open.
        """
        self._work = work
        self._is_open = is_open
        self._usual: dict[ModeKeys, deque[int]] = {}
        self._last: tuple[int, int, ModeKeys] | None = None  # step, start, mode
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
