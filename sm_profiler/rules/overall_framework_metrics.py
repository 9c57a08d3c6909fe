"""OverallFrameworkMetrics: where the training loop's time goes; it never fires."""

from __future__ import annotations

import attrs
import numpy as np

from sm_profiler.formats.columns import EventColumns, Ints
from sm_profiler.rules.builtin import BuiltinRule
from sm_profiler.rules.time_breakdown import STEP, WhatRan, classes
from sm_profiler.rules.window import Window

OTHERS = "others"


@attrs.define
class _Loop:
    """The training loop of one process: from its first step to the end of its last."""

    start_us: float
    end_us: float
    in_steps_us: float = 0.0

    def widen(self, start_us: float, end_us: float, in_steps_us: float) -> None:
        """Take in more steps."""
        self.start_us, self.end_us = min(self.start_us, start_us), max(self.end_us, end_us)
        self.in_steps_us += in_steps_us


class OverallFrameworkMetrics(BuiltinRule):
    """Shares of training and evaluation steps, of passes, operators and everything else that was recorded."""

    description = "Where the time of the training loop goes: steps, passes, operators, data loading, collectives."
    recommendation = (
        "Look at the largest shares first; a large share outside every step points to logging, checkpoints or metrics."
    )

    def start(self) -> None:
        """Nothing has been seen yet."""
        self._ran = WhatRan()
        self._loops: dict[str, _Loop] = {}
        self._loop_start_us: float | None = None

    def update(self, window: Window) -> bool:
        """Take the window's events."""
        if self.service:
            if window.looked_at_by_service:
                self._update_as_service(window.events)
            return False
        events = window.new_events
        self._ran.add(events)
        steps = np.flatnonzero(classes(events) == STEP)
        codes = events.node.codes[steps]
        for code in np.unique(codes):
            own = steps[codes == code]
            start_us, end_us = float(events.start_us[own].min()), float(events.end_us[own].max())
            loop = self._loops.setdefault(events.node.values[code], _Loop(start_us, end_us))
            loop.widen(start_us, end_us, float(events.duration_us[own].sum()))
        return False

    def _update_as_service(self, events: EventColumns) -> None:
        """As the service does: after each step `others` is worked out anew, its own last value taken for a step."""
        gpu_phases = len(self._ran.gpu_phases)
        steps = dict(self._ran.steps)
        self._ran.add(events)
        gpu_phases_at, found = self._gpu_phases_at(events, gpu_phases)
        rows = np.flatnonzero(found == STEP)
        in_steps = sum(value for name, value in steps.items() if name != OTHERS)
        others = steps.get(OTHERS, 0.0)
        starts, durations, ends = (
            column[rows].tolist() for column in (events.start_us, events.duration_us, events.end_us)
        )
        for start_us, duration_us, end_us, gpus in zip(
            starts, durations, ends, gpu_phases_at[rows].tolist(), strict=True
        ):
            self._loop_start_us = start_us if self._loop_start_us is None else self._loop_start_us
            in_steps += duration_us
            others = (end_us - self._loop_start_us) - (in_steps + others) / max(gpus, 1)
        if len(rows):
            names = [name for name in self._ran.steps if name != OTHERS]
            place = names if OTHERS in steps else [names[0], OTHERS, *names[1:]]
            values = {**self._ran.steps, OTHERS: others}
            order = list(steps) + [name for name in place if name not in steps]
            self._ran.steps = {name: values[name] for name in order}
        self._ran.write_details(self.details)

    def _gpu_phases_at(self, events: EventColumns, before: int) -> tuple[Ints, Ints]:
        """How many GPU phases had been seen at each event, and the events' classes."""
        found = classes(events)
        fresh = np.zeros(len(events), np.int64)
        for name in list(self._ran.gpu_phases)[before:]:
            fresh[int(np.argmax(events.phase.mask(name)))] += 1
        return before + np.cumsum(fresh), found

    def absorb(self, other: OverallFrameworkMetrics) -> None:
        """Take in other nodes or other minutes of the same job."""
        self._ran.merge(other._ran)
        for process, loop in other._loops.items():
            self._loops.setdefault(process, _Loop(loop.start_us, loop.end_us)).widen(
                loop.start_us, loop.end_us, loop.in_steps_us
            )

    def finish(self) -> None:
        """Write the shares; `others` is the time of the loops outside every step."""
        if self.service:
            if not self.details:
                self._ran.write_details(self.details)
            return
        steps = dict(self._ran.steps)
        outside_us = sum(max(loop.end_us - loop.start_us - loop.in_steps_us, 0.0) for loop in self._loops.values())
        if steps:
            self._ran.steps = {**steps, OTHERS: outside_us}
        self.details = {}
        self._ran.write_details(self.details)
        self._ran.steps = steps
        anything = any(vars(self._ran).values())
        self.not_evaluated(None if anything else "no framework data")
