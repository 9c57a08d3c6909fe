"""MaxInitializationTime: a long time passes before the first step."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from sm_profiler.folding.window import EvaluationWindow
from sm_profiler.formats.columns import EventColumns, Floats, SystemColumns
from sm_profiler.formats.event_names import STEP
from sm_profiler.rules.base import BuiltinRule
from sm_profiler.rules.parameters import positive
from sm_profiler.rules.results import RuleResult
from sm_profiler.rules.time_breakdown import int_if_whole

US_PER_MINUTE = 60e6


@attrs.frozen
class MaxInitializationTimeParameters:
    """`threshold` in minutes."""

    threshold: float = positive(20)


class MaxInitializationTime(BuiltinRule):
    """Fires in each window that ends before the first step and more than `threshold` minutes after the start of the job."""

    Parameters = MaxInitializationTimeParameters

    def start(self) -> None:
        """Set up the state of the fold."""
        self._job_s: tuple[float, float] | None = None
        self._steps_us: tuple[float, float] | None = None
        self._steps = 0
        self._saw_events = False
        self._last_sample_s: dict[int, float] = {}  # of windows before the first step, by their end

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Take the window's times; return True if there is no step yet and too much time has passed."""
        system, events = self.rows(window)
        self._add_samples(system)
        if len(system) and self._steps_us is None:
            end_s = float(system.timestamp.max())
            self._last_sample_s[window.end_us] = max(end_s, self._last_sample_s.get(window.end_us, end_s))
        self._saw_events = self._saw_events or len(events) > 0
        starts_us = step_starts(events)
        if len(starts_us):
            self._steps += len(starts_us)
            self._steps_us = self._extended(starts_us)
        return self._steps_us is None and self._windows_too_late() > 0

    def _extended(self, starts_us: Floats) -> tuple[float, float]:
        """Return the first and the last step."""
        if not self.differs.file_order:
            return _span(self._steps_us, (float(starts_us.min()), float(starts_us.max())))
        return (float(starts_us[0]) if self._steps_us is None else self._steps_us[0]), float(starts_us[-1])

    def _add_samples(self, system: SystemColumns) -> None:
        if len(system):
            self._job_s = _span(self._job_s, (float(system.timestamp.min()), float(system.timestamp.max())))

    def _windows_too_late(self) -> int:
        """Return the number of windows that ended without a step and after the threshold."""
        if self._job_s is None or not self._saw_events or self.differs.never:
            return 0
        first_step_us = np.inf if self._steps_us is None else self._steps_us[0]
        limit_us = self.parameters.threshold * US_PER_MINUTE
        start_s = self._job_s[0]
        return sum(
            end_us <= first_step_us and (end_s - start_s) * 1e6 > limit_us
            for end_us, end_s in self._last_sample_s.items()
        )

    def absorb(self, other: MaxInitializationTime) -> None:
        """Add the state of another part of the job."""
        self._steps += other._steps
        self._saw_events = self._saw_events or other._saw_events
        self._job_s = _span(self._job_s, other._job_s) if other._job_s else self._job_s
        self._steps_us = _span(self._steps_us, other._steps_us) if other._steps_us else self._steps_us
        for end_us, end_s in other._last_sample_s.items():
            self._last_sample_s[end_us] = max(end_s, self._last_sample_s.get(end_us, end_s))

    def result(self) -> RuleResult:
        """Return the number of windows that ended too late without a step."""
        triggered = self._windows_too_late()
        not_evaluated = None
        if self._job_s is None:
            not_evaluated = "no system metrics"
        elif not self._saw_events:
            not_evaluated = "no framework data: the time of the first step is unknown"
        details: dict[str, Any] = {"step_num": {}}
        if self._steps_us is not None:
            details["step_num"] = {"first": int_if_whole(self._steps_us[0]), "last": int_if_whole(self._steps_us[1])}
        if self._job_s is not None:
            details |= {"job_start": self._job_s[0], "job_end": self._job_s[1]}
        return self._result(triggered, triggered, self._steps, details, not_evaluated)


def step_starts(events: EventColumns) -> Floats:
    """Return the starts of all steps in microseconds, in the order of the rows."""
    return events.start_us[events.name.mask(lambda name: STEP in name)]


def _span(one: tuple[float, float] | None, other: tuple[float, float]) -> tuple[float, float]:
    return other if one is None else (min(one[0], other[0]), max(one[1], other[1]))
