"""What the hook costs, measured while it runs: its own time on the training thread and on its background thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sm_profiler.hook.steps import METER_EVERY, StepTracker

SHARE = 0.01  # of a step
MIN_US = 30.0  # a step
PATIENCE = 5  # beats in a row over budget before something is shed
FEWEST_STEPS = METER_EVERY  # fewer steps say nothing


class Meter:
    """Reads, once a beat, what the tracker metered; belongs to the background thread."""

    def __init__(
        self,
        tracker: StepTracker,
        *,
        clock: Callable[[], float] = time.perf_counter,
        own_cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._tracker = tracker
        self._clock = clock
        self._own_cpu = own_cpu
        self._last: tuple[float, float, int, int] | None = None
        self._over = 0

    def read(self) -> dict[str, Any] | None:
        """Own time since the last reading, scaled from the metered steps to all; None where no step passed."""
        tracker = self._tracker
        now = (self._clock(), self._own_cpu(), tracker.global_step, tracker.own_ns)
        last, self._last = self._last, now
        if last is None or now[2] <= last[2]:
            return None
        steps = now[2] - last[2]
        training_us = (now[3] - last[3]) / 1000 * METER_EVERY
        background_us = max(now[1] - last[1], 0.0) * 1e6
        each = (training_us + background_us) / steps
        budget = max(MIN_US, SHARE * (now[0] - last[0]) * 1e6 / steps)
        # The background thread's fixed work (a beat a second) is no matter of steps, so few steps are not judged.
        self._over = self._over + 1 if steps >= FEWEST_STEPS and each > budget else 0
        return {"steps": steps, "training_us": round(training_us, 1), "background_us": round(background_us, 1)}

    def is_over_budget(self) -> bool:
        """Whether the hook has cost more than its budget for a while; asking starts the count anew."""
        if self._over < PATIENCE:
            return False
        self._over = 0
        return True
