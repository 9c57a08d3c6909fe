"""What CPUBottleneck and IOBottleneck share: moments at which a GPU idles while a CPU core is over a threshold."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import attrs
import numpy as np

from sm_profiler.formats.columns import EventColumns, Floats, Ints, Mask, SystemColumns
from sm_profiler.rules.builtin import BuiltinRule
from sm_profiler.rules.nodes import on_node
from sm_profiler.rules.time_breakdown import WhatRan
from sm_profiler.rules.window import Window

SNAP_S = 0.02  # the service: a row later than this after the first row of a data point opens the next one
TICK_S = 0.05  # ours: the families of one sample lie within this; the shortest sampling interval is twice as long
SHOWN = 20_000  # bottlenecks listed in the details; all are counted


@attrs.define
class _Stretch:
    """What one window added."""

    datapoints: int = 0
    bottlenecks: int = 0
    ran: WhatRan | None = None


@attrs.define
class _Judged:
    """The verdict over the first windows of the job."""

    windows: int = 0
    seen: int = 0
    found: int = 0
    triggered: int = 0
    ran: WhatRan = attrs.field(factory=WhatRan)

    def take(self, stretch: _Stretch, is_over: Callable[[int, int], bool]) -> None:
        """Judge the next window."""
        self.windows += 1
        self.seen += stretch.datapoints
        self.found += stretch.bottlenecks
        if is_over(self.found, self.seen):
            self.triggered += 1
            self.ran.merge(stretch.ran or WhatRan())

    def copy(self) -> _Judged:
        """One that can go on by itself."""
        ran = WhatRan()
        ran.merge(self.ran)
        return attrs.evolve(self, ran=ran)


class Bottleneck(BuiltinRule):
    """Base of the two rules; a subclass names the metric and its threshold."""

    dimension: ClassVar[str] = ""

    def start(self) -> None:
        """Nothing has been seen yet."""
        self._low = 0  # data points with an idle GPU
        self._found: dict[tuple[float, str], list[int]] = {}  # moment in seconds, node → idle GPUs, hot cores
        self._count = 0  # bottlenecks, listed or not
        self._snap = 0.0
        self._idle_at: dict[float, set[str]] = {}  # only with compat="service"
        self._hot_at: dict[float, set[str]] = {}
        self._ran = WhatRan()
        self._correlated = False
        self._stretches: dict[int, _Stretch] = {}  # by the window's start
        self._saw_gpu = False
        self._judged = _Judged()

    def hot_threshold(self) -> float:
        """Above it a core counts."""
        raise NotImplementedError

    def update(self, window: Window) -> bool:
        """Count the window's data points and bottlenecks; True if their ratio is above the threshold."""
        if self.service:
            return self._update_as_service(window) if window.looked_at_by_service else False
        stretch = self._stretches.setdefault(window.start_us, _Stretch())
        nodes = window.new_system.node.present()
        for node in nodes:
            rows = window.new_system[window.new_system.node.mask(node)]
            order = np.argsort(rows.timestamp, kind="stable")
            moments = self._count_points(rows[order], tick_starts(rows.timestamp[order]), stretch, node)
            if moments:
                own = on_node(window.events, node, alone=len(nodes) == 1)
                stretch.ran = stretch.ran or WhatRan()
                correlate(stretch.ran, window.events, np.asarray(moments), own)
        self.datapoints += stretch.datapoints
        self._count += stretch.bottlenecks
        return self._is_over(self._count, self.datapoints)

    def _is_over(self, bottlenecks: int, datapoints: int) -> bool:
        limits = self.parameters
        return bool(datapoints > limits.patience and 100 * bottlenecks / datapoints > limits.threshold)

    def _update_as_service(self, window: Window) -> bool:
        stretch = _Stretch()
        starts, self._snap = snap_starts(window.system.timestamp, self._snap)
        moments = self._count_points(window.system, starts, stretch)
        self.datapoints += stretch.datapoints
        self._count = len(self._found)
        fired = self._is_over(self._count, self.datapoints)
        if fired:
            self.triggered += 1
            self._correlated = True
            correlate(self._ran, window.events, np.asarray(moments))
        self._write_details(self._ran)
        return fired

    def _count_points(
        self, rows: SystemColumns, starts: tuple[Ints, Floats, int], stretch: _Stretch, node: str = ""
    ) -> list[float]:
        """Count data points of rows that `starts` parts; returns the moments of the bottlenecks, in their order."""
        point_of_row, moments, opened = starts
        stretch.datapoints += opened
        is_gpu = rows.dimension.mask("GPUUtilization")
        self._saw_gpu = self._saw_gpu or bool(is_gpu.any())
        idle = is_gpu & (rows.value < self.parameters.gpu_threshold)
        hot = rows.dimension.mask(self.dimension) & (rows.value > self.hot_threshold())
        if self.service:
            self._recall(moments, point_of_row, rows, (idle, hot))
            return self._found_as_service(moments, stretch)
        idle_count = names_per_point(rows, point_of_row, idle, len(moments))
        hot_count = names_per_point(rows, point_of_row, hot, len(moments))
        self._low += int((idle_count > 0).sum())
        found = []
        for point in np.flatnonzero((idle_count > 0) & (hot_count > 0)):
            moment = float(moments[point])
            found.append(moment)
            if len(self._found) < SHOWN:
                self._found[moment, node] = [int(idle_count[point]), int(hot_count[point])]
        stretch.bottlenecks += len(found)
        return found

    def _recall(self, moments: Floats, points: Ints, rows: SystemColumns, chosen: tuple[Mask, Mask]) -> None:
        """The service remembers the idle GPUs and hot cores by the moment: nodes that share one to the microsecond share all."""
        for mask, known in zip(chosen, (self._idle_at, self._hot_at), strict=True):
            width = len(rows.name.values) + 1
            for pair in np.unique(points[mask] * width + rows.name.codes[mask]).tolist():
                point, name = divmod(pair, width)
                known.setdefault(float(moments[point]), set()).add(rows.name.values[name])

    def _found_as_service(self, moments: Floats, stretch: _Stretch) -> list[float]:
        self._low = len(self._idle_at)
        both = [
            moment for moment in dict.fromkeys(moments.tolist()) if moment in self._idle_at and moment in self._hot_at
        ]
        for moment in both:
            self._found[moment, ""] = [len(self._idle_at[moment]), len(self._hot_at[moment])]
        stretch.bottlenecks += len(both)
        return both

    def absorb(self, other: Bottleneck) -> None:
        """Take in other nodes or other minutes of the same job."""
        self._low += other._low
        self._count += other._count
        self.datapoints += other.datapoints
        self._saw_gpu = self._saw_gpu or other._saw_gpu
        together = sorted({**self._found, **other._found}.items())
        self._found = dict(together[:SHOWN])
        self._judged = _Judged()
        for start_us, theirs in other._stretches.items():
            mine = self._stretches.setdefault(start_us, _Stretch())
            mine.datapoints += theirs.datapoints
            mine.bottlenecks += theirs.bottlenecks
            if theirs.ran:
                mine.ran = mine.ran or WhatRan()
                mine.ran.merge(theirs.ran)

    def finish(self) -> None:
        """Judge window by window."""
        if self.service:
            self._write_details(self._ran)
            return
        # Windows judged before are not judged again, unless parts were merged: the last one may still have grown.
        starts = sorted(self._stretches)
        for start_us in starts[self._judged.windows : -1]:
            self._judged.take(self._stretches[start_us], self._is_over)
        verdict = self._judged.copy()
        for start_us in starts[verdict.windows :]:
            verdict.take(self._stretches[start_us], self._is_over)
        self.triggered, seen = verdict.triggered, verdict.seen
        self._correlated = self.triggered > 0
        self._write_details(verdict.ran)
        why = None
        if not self._saw_gpu:
            why = "no GPU metrics: a bottleneck is a busy CPU while a GPU waits"
        elif seen <= self.parameters.patience:
            why = f"{seen} data points, patience is {self.parameters.patience}"
        self.not_evaluated(why)

    def _write_details(self, ran: WhatRan) -> None:
        self.violations = self._count
        self.details["low_gpu_utilization"] = self._low
        shown: dict[str, dict[str, int]] = {}
        for (moment, _), (gpus, cpus) in self._found.items():
            each = shown.setdefault(str(moment), {"GPUs": 0, "CPUs": 0})
            each["GPUs"] += gpus
            each["CPUs"] += cpus
        self.details["bottlenecks"] = shown
        if self._correlated:
            ran.write_details(self.details, swapped=self.service)


def snap_starts(times: Floats, snap: float) -> tuple[tuple[Ints, Floats, int], float]:
    """Part rows into data points as the service does, in their order.

    Returns (point of each row, moment of each point, number of points that were opened) and the last moment.
    """
    if len(times) == 0:
        return (np.empty(0, np.int64), np.empty(0), 0), snap
    changes = np.flatnonzero(np.diff(times, prepend=np.nan) != 0)
    moments, points = [], np.empty(len(changes), np.int64)
    opened = 0
    for index, moment in enumerate(times[changes].tolist()):
        if abs(moment - snap) > SNAP_S:
            snap = moment
            moments.append(snap)
            opened += 1
        elif not moments:
            moments.append(snap)  # goes on from the window before
        points[index] = len(moments) - 1
    lengths = np.diff(changes, append=len(times))
    return (np.repeat(points, lengths), np.asarray(moments), opened), snap


def tick_starts(times: Floats) -> tuple[Ints, Floats, int]:
    """Part one node's rows, in time order, into samples.

    Returns (sample of each row, moment of each sample, number of samples).
    """
    if len(times) == 0:
        return np.empty(0, np.int64), np.empty(0), 0
    opens: Mask = np.diff(times, prepend=-np.inf) > TICK_S
    firsts = times[opens][np.cumsum(opens) - 1]
    if (times - firsts).max() > TICK_S:  # rows denser than samples can be: part them by their distance from the first
        first = -np.inf
        for index, moment in enumerate(times.tolist()):
            opens[index] = moment - first > TICK_S
            first = moment if opens[index] else first
    return np.cumsum(opens) - 1, times[opens], int(opens.sum())


def names_per_point(rows: SystemColumns, points: Ints, chosen: Mask, size: int) -> Ints:
    """How many different names the chosen rows have in each data point, shape (size,)."""
    width = len(rows.name.values) + 1
    pairs = np.unique(points[chosen] * width + rows.name.codes[chosen])
    return np.bincount(pairs // width, minlength=size)


def correlate(ran: WhatRan, events: EventColumns, moments: Floats, among: Ints | None = None) -> None:
    """Add each event (of the rows `among`) once for each moment (in seconds) that lies strictly within it."""
    if len(events) == 0 or len(moments) == 0:
        return
    moments_us = moments * 1e6
    order = np.argsort(moments_us, kind="stable")
    ascending = moments_us[order]
    starts, durations = events.start_us, events.duration_us
    if among is not None:
        starts, durations = starts[among], durations[among]
    begin = np.searchsorted(ascending, starts, side="right")
    end = np.searchsorted(ascending, starts + durations, side="left")
    rows = np.flatnonzero(end > begin)
    begin, end = begin[rows], end[rows]
    # The report's keys stand in the order in which they were met: moment by moment, event by event.
    first = order[begin]
    if (np.diff(order) < 0).any():  # moments of several nodes: the first one met need not be the earliest
        first = np.asarray([order[a:b].min() for a, b in zip(begin, end, strict=True)], np.int64)
    met = np.argsort(first, kind="stable")
    chosen = rows[met] if among is None else among[rows[met]]
    ran.add(events, chosen, (end - begin)[met])
