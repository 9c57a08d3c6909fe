"""Times of backward passes that DistributedDataParallel takes itself: of the first ten, and of each hundredth one."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from sm_profiler.formats.recorded import Synchronization
from sm_profiler.hook.steps import StepTracker

TIMES = 2  # until the next reading, which takes as long as some operators


class Synchronizations:
    """Reads the log on the training thread, before a forward: during a backward pass, torch holds its lock."""

    def __init__(self, tracker: StepTracker) -> None:
        self._tracker = tracker
        self._due = 1

    def read(self, module: Any) -> None:
        """Record what was measured so far, if this model is called, after more and more steps."""
        step = self._tracker.global_step
        if step < self._due or type(module).__name__ != "DistributedDataParallel":
            return
        self._due = TIMES * max(step, 1)
        found = module._get_ddp_logging_data()  # torch has no public name for it
        passes, began_ns = _number(found, "iteration"), _number(found, "backward_compute_time_start")
        if passes <= 0 or began_ns <= 0:
            return
        now = perf_counter_ns()
        record = Synchronization(
            passes=passes,
            at_us=began_ns // 1000,
            backward_us=_number(found, "avg_backward_compute_time") / 1000,
            communication_us=_number(found, "avg_backward_comm_time") / 1000,
            overlap_us=_number(found, "avg_backward_compute_comm_overlap_time") / 1000,
            parameter_bytes=_number(found, "total_parameter_size_bytes"),
            ranks=_number(found, "world_size"),
        )
        self._tracker.append(record.span("DistributedDataParallel", now, now))


def _number(found: dict[str, Any], name: str) -> int:
    value = found.get(name, 0)
    return value if isinstance(value, int) else 0
