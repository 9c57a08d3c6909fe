"""Parts that the detailed windows of all frameworks share: steps by time, and the conversion of the trace."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, TypeAlias

from sm_profiler.hook import conversion
from sm_profiler.hook.collector import Collector
from sm_profiler.hook.own_work import BACKGROUND

if TYPE_CHECKING:
    from sm_profiler.hook.modes import ModeKeys
    from sm_profiler.hook.session import Session

DETAILED = "detailed"
MAX_STEPS = 100  # a longer trace takes too much of the training's memory, and is too large to view
Steps: TypeAlias = list[tuple[int, int]]  # number within the mode, start in microseconds since the epoch; -1 is the end


class DetailedWindow(Collector):
    """Runs a framework's own profiler over whole steps, and converts its trace in a process of its own."""

    name = DETAILED

    def __init__(self, session: Session) -> None:
        self._session = session
        self._prepared = False
        self._first_step = 0
        self._steps: Steps = []
        self._children: list[subprocess.Popen[bytes]] = []
        self._converting: list[tuple[subprocess.Popen[bytes], int]] = []  # and when each began

    @property
    def is_open(self) -> bool:
        """True while the profiler runs."""
        raise NotImplementedError

    def step_begins(self, step: int, mode: ModeKeys) -> bool:  # a trace carries the mode's own number
        """Note the start of a step; end a window that is too long."""
        if not self.is_open:
            return True
        session = self._session
        self._steps.append((session.tracker.number, session.timebase.now_us()))
        if len(self._steps) > MAX_STEPS:
            session.note(DETAILED, f"cut after {MAX_STEPS} steps")
            self.leave(-1)
            session.schedule.end(DETAILED)
        return False

    def beat(self) -> None:
        """Record conversions that have ended: on a machine without a free core, they compete with the training."""
        for child, start_ns in [one for one in self._converting if one[0].poll() is not None]:
            self._converting.remove((child, start_ns))
            work = self._session.work
            work.record(f"{DETAILED} window is converted", start_ns, perf_counter_ns(), BACKGROUND)

    def finish(self) -> None:
        """Wait for conversions."""
        for child in self._children:
            if not conversion.finish(child):
                self._session.note(DETAILED, "the conversion of the trace took too long")

    def _export_later(self, export: Callable[[int, Steps], None]) -> None:
        """Export the trace of the steps so far on the recorder's thread."""
        first, steps = self._first_step, self._steps

        def task() -> None:
            with self._session.work.doing(f"{DETAILED} window is exported", BACKGROUND):
                export(first, steps)

        self._session.later(task)

    def _convert(self, module: str, first: int, steps: Steps, **order: str) -> None:
        """Start the conversion of a trace.

        Args:
            module: what converts it.
            first: global step that opened the window.
            steps: its steps.
            order: the trace's file, and what else the module needs.
        """
        session = self._session
        common = {"root": str(session.root), "source": session.source, "pid": os.getpid(), "first_step": first}
        process = {"collector": DETAILED, "process": session.describe()}
        child = conversion.start(module, {**order, **common, "steps": steps, **process})
        self._children.append(child)
        self._converting.append((child, perf_counter_ns()))
