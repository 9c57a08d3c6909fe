"""MaxInitializationTime: much time passes before the first step."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from sm_profiler.formats.event_names import STEP
from sm_profiler.rules.builtin import BuiltinRule
from sm_profiler.rules.parameters import positive
from sm_profiler.rules.time_breakdown import whole
from sm_profiler.rules.window import Window

US_PER_MINUTE = 60e6


@attrs.frozen
class MaxInitializationTimeParameters:
    """`threshold` in minutes."""

    threshold: float = positive(20)


class MaxInitializationTime(BuiltinRule):
    """Fires in each window that ends with no step so far and more than `threshold` minutes of the job passed."""

    description = "Time from the start of the job to its first step: loading and copying of data, compilation."
    recommendation = "Stream the data instead of copying it first (fast file or pipe mode), and cache what is prepared."
    Parameters = MaxInitializationTimeParameters

    def start(self) -> None:
        """Nothing has been seen yet."""
        self._start_s: float | None = None
        self._saw_events = False
        self._end_s: float | None = None
        self._first_step_us: float | None = None
        self._last_step_us: float | None = None
        self._ends: dict[
            int, float
        ] = {}  # by the window's end: last moment in it, in seconds, of windows before any step

    def update(self, window: Window) -> bool:
        """Take the window's times; True while there is no step and too much time has passed."""
        if self.service and not window.looked_at_by_service:
            return False
        system, events = (window.system, window.events) if self.service else (window.new_system, window.new_events)
        if len(system):
            start_s, end_s = float(system.timestamp.min()), float(system.timestamp.max())
            self._start_s = start_s if self._start_s is None else min(start_s, self._start_s)
            self._end_s = end_s if self._end_s is None else max(end_s, self._end_s)
            if self._first_step_us is None:
                self._ends[window.end_us] = max(end_s, self._ends.get(window.end_us, end_s))
        self._saw_events = self._saw_events or len(events) > 0
        steps = np.flatnonzero(events.name.mask(lambda name: STEP in name))
        if len(steps):
            self.datapoints += len(steps)
            starts = events.start_us[steps]
            first, last = (starts[0], starts[-1]) if self.service else (starts.min(), starts.max())
            if self._first_step_us is None or (not self.service and first < self._first_step_us):
                self._first_step_us = float(first)
            self._last_step_us = (
                float(last) if self.service or self._last_step_us is None else max(float(last), self._last_step_us)
            )
        self.finish()
        return self._first_step_us is None and self.triggered > 0

    def absorb(self, other: MaxInitializationTime) -> None:
        """Take in other nodes or other minutes of the same job."""
        self.datapoints += other.datapoints
        self._saw_events = self._saw_events or other._saw_events
        self._start_s, self._end_s = _of(min, self._start_s, other._start_s), _of(max, self._end_s, other._end_s)
        self._first_step_us, self._last_step_us = (
            _of(min, self._first_step_us, other._first_step_us),
            _of(max, self._last_step_us, other._last_step_us),
        )
        for end_us, end_s in other._ends.items():
            self._ends[end_us] = max(end_s, self._ends.get(end_us, end_s))

    def finish(self) -> None:
        """Count the windows that fired, and write the job's times."""
        steps: dict[str, Any] = {}
        if self._first_step_us is not None and self._last_step_us is not None:
            steps = {"first": whole(self._first_step_us), "last": whole(self._last_step_us)}
        self.details["step_num"] = steps
        if self._start_s is not None:
            self.details["job_start"], self.details["job_end"] = self._start_s, self._end_s
        if self.service:
            return
        self.triggered = 0
        for end_us, end_s in self._ends.items():
            waited_us = (end_s - (self._start_s or 0.0)) * 1e6
            before_steps = self._first_step_us is None or end_us <= self._first_step_us
            fires = self._saw_events and before_steps and waited_us > self.parameters.threshold * US_PER_MINUTE
            self.triggered += bool(fires)
        self.violations = self.triggered
        if self._start_s is None:
            self.not_evaluated("no system metrics")
        else:
            self.not_evaluated(None if self._saw_events else "no framework data: nothing tells when the first step ran")


def _of(choose: Any, one: float | None, other: float | None) -> float | None:
    found = [value for value in (one, other) if value is not None]
    return choose(found) if found else None
