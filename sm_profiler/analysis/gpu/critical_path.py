"""The critical path: the chain of work, each link waiting for the one before, that sets the length of a trace."""

from __future__ import annotations

import bisect
from typing import TypeAlias

import numpy as np

from sm_profiler.analysis.gpu.breakdown import CONSECUTIVE_US
from sm_profiler.analysis.gpu.callers import BLOCKING_US, Callers, names_of
from sm_profiler.analysis.gpu.kernels import KINDS, kinds
from sm_profiler.analysis.gpu.launches import launch_rows
from sm_profiler.analysis.gpu.nesting import Numbers
from sm_profiler.analysis.gpu.table import Table
from sm_profiler.formats.kineto_reader import OPERATOR, RUNTIME, KinetoColumns

Link: TypeAlias = tuple[str, str, float, float]  # kind, name, start and duration in µs
HOST, LAUNCH, WAITING = "host", "launch", "waiting"
_CLOSE_US = 50.0  # a wait for the device ends so soon after the kernel it waited for


def critical_path(events: KinetoColumns) -> Table:
    """Return the critical path of one rank, in time order.

    It is followed backwards from the last kernel: a kernel begins when its stream is free and its launch has arrived,
    whichever is later; a call that waits for the device ends with the last kernel before it; the host's other work follows
    its own thread, or, if it is idle, the thread that worked last.

    Returns:
        Columns kind (`computation`, `communication`, `memory`, `host`, `launch`: on the way to the device, `waiting`: nothing
        was recorded), name, start_us, duration_us. The rows do not overlap.
    """
    device_rows = np.flatnonzero(events.on_device)
    links = _Walk(events, device_rows).follow() if len(device_rows) else []
    return Table.of(("kind", "name", "start_us", "duration_us"), links[::-1])


class _Walk:
    """Follows the path backwards."""

    def __init__(self, events: KinetoColumns, device_rows: Numbers) -> None:
        self._events = events
        device = events[device_rows]
        self._launch = launch_rows(events, device)
        self._kind = [KINDS[kind] for kind in kinds(device)]
        self._name = names_of(events, device_rows)
        self._start, self._end = device.start_us.tolist(), device.end_us.tolist()
        self._previous = _previous_of_stream(device)
        by_end = np.argsort(device.end_us, kind="stable")
        self._by_end, self._ends = by_end.tolist(), device.end_us[by_end].tolist()
        top = _outermost_work(events)
        self._host_start, self._host_end = events.start_us[top].tolist(), events.end_us[top].tolist()
        self._host_thread, self._host_name = events.thread[top].tolist(), names_of(events, top)
        order = np.argsort(events.end_us[top], kind="stable")
        self._host_by_end, self._host_ends = order.tolist(), events.end_us[top][order].tolist()
        waits = np.flatnonzero(
            (events.category == RUNTIME)
            & (events.duration_us >= BLOCKING_US)
            & events.name.mask(lambda name: name.endswith("Synchronize"))
        )
        self._waits = {
            thread: (events.end_us[rows].tolist(), events.start_us[rows].tolist())
            for thread in np.unique(events.thread[waits]).tolist()
            if len(rows := waits[events.thread[waits] == thread])
        }

    def follow(self) -> list[Link]:
        """Return the links, the last one first."""
        links: list[Link] = []
        kernel: int | None = int(np.argmax(self._end))
        now, thread = self._end[kernel], -1
        for _ in range(4 * (len(self._start) + len(self._host_start)) + 4):
            if kernel is not None:
                start = min(self._start[kernel], now)
                links.append((self._kind[kernel], self._name[kernel], start, now - start))
                now, kernel, thread = self._before_kernel(kernel, start, links)
            else:
                now, kernel, thread = self._before_host(now, thread, links)
            if now == -np.inf:
                break
        return [link for link in links if link[3] > 0]

    def _before_kernel(self, kernel: int, now: float, links: list[Link]) -> tuple[float, int | None, int]:
        launch, previous = int(self._launch[kernel]), self._previous[kernel]
        launched = float(self._events.end_us[launch]) if launch >= 0 else -np.inf
        launched = min(launched, now)
        free = self._end[previous] if previous >= 0 else -np.inf
        if free == launched == -np.inf:
            return -np.inf, None, -1
        if now - max(free, launched) > CONSECUTIVE_US:  # it was queued, and waited for another stream
            other = self._kernel_ending(now)
            if other is not None and other != kernel and self._end[other] > max(free, launched):
                free, previous = self._end[other], other
        if launched <= free <= now:
            if now > free:
                links.append((LAUNCH, self._name[kernel], free, now - free))
            return free, previous, -1
        if now > launched:
            links.append((LAUNCH, self._name[kernel], launched, now - launched))
        return launched, None, int(self._events.thread[launch])

    def _before_host(self, now: float, thread: int, links: list[Link]) -> tuple[float, int | None, int]:
        waited = self._wait_ending(thread, now)
        if waited is not None:
            kernel = self._kernel_ending(now)
            if kernel is not None and self._end[kernel] > waited:
                end = self._end[kernel]
                if now > end:
                    links.append((HOST, "return from waiting for the device", end, now - end))
                return end, kernel, -1
        row = self._host_work(now, thread)
        if row is None:
            return -np.inf, None, -1
        end, start = min(self._host_end[row], now), self._host_start[row]
        if now > end:
            links.append((WAITING, "", end, now - end))
        # a wait for the device inside this operator hands the path over to the device
        own = self._host_thread[row]
        inner = self._last_wait(own, end)
        if inner is not None and inner > start:
            links.append((HOST, self._host_name[row], inner, end - inner))
            return inner, None, own
        links.append((HOST, self._host_name[row], start, end - start))
        return start if start < end else np.nextafter(end, -np.inf), None, own

    def _last_wait(self, thread: int, now: float) -> float | None:
        """Return the end of the last wait of a thread that ended before a moment."""
        ends, _ = self._waits.get(thread, ([], []))
        at = bisect.bisect_left(ends, now) - 1
        return ends[at] if at >= 0 else None

    def _wait_ending(self, thread: int, now: float) -> float | None:
        """Return the start of the wait of a thread that ends at a moment; None if there is none."""
        ends, starts = self._waits.get(thread, ([], []))
        at = bisect.bisect_left(ends, now)
        return starts[at] if at < len(ends) and ends[at] == now else None

    def _kernel_ending(self, now: float) -> int | None:
        at = bisect.bisect_right(self._ends, now) - 1
        return self._by_end[at] if at >= 0 and now - self._ends[at] <= _CLOSE_US else None

    def _host_work(self, now: float, thread: int) -> int | None:
        """Return the operator that runs on the thread at a moment, or the last one of any thread before it."""
        at = bisect.bisect_left(self._host_start, now) - 1
        for row in range(at, max(at - 64, -1), -1):
            if self._host_thread[row] == thread and self._host_end[row] >= now:
                return row
        at = bisect.bisect_left(self._host_ends, now) - 1
        return self._host_by_end[at] if at >= 0 else None


def _previous_of_stream(device: KinetoColumns) -> list[int]:
    """Return the number of the previous event of the same stream, -1 for the first."""
    order = np.lexsort((device.start_us, device.stream, device.device))
    previous = np.full(len(device), -1)
    same = (device.stream[order][1:] == device.stream[order][:-1]) & (
        device.device[order][1:] == device.device[order][:-1]
    )
    previous[order[1:]] = np.where(same, order[:-1], -1)
    return [int(row) for row in previous]


def _outermost_work(events: KinetoColumns) -> Numbers:
    """Return the rows of the operators and calls that no operator encloses, in time order."""
    rows = np.flatnonzero((events.category == OPERATOR) | (events.category == RUNTIME))
    outer = Callers(events).outermost(rows)
    found: Numbers = rows[(outer < 0) | (outer == rows)]
    return found
