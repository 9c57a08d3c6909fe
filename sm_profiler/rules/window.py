"""Windows: a stretch of a job (a minute, by default) as every rule sees it, cut from a stream of columns in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import attrs
import numpy as np

from sm_profiler.formats.columns import EventColumns, Floats, Mask, SystemColumns

MINUTE_US = 60_000_000
LOOK_AHEAD_US = 3 * MINUTE_US  # an event is filed under its end: for so long later files may hold events of a window
EMPTY_STRETCH = 24 * 60  # so many windows without any data are walked through with compat="service"; more are skipped

# The order in which the managed service hands the timelines to a rule.
TIMELINES = ("pythontimeline", "model_timeline", "trace", "horovod_timeline", "smdataparallel_timeline")


class BatchLike(Protocol):
    """Rows that a source delivers together: whole files, earlier ones first."""

    @property
    def system(self) -> SystemColumns:
        """System rows."""

    @property
    def events(self) -> EventColumns:
        """Trace events."""

    @property
    def minute_us(self) -> int | None:
        """The minute that the files are filed under."""


@attrs.frozen(eq=False)
class Window:
    """One stretch of a job.

    Attributes:
        start_us, end_us: microseconds since the epoch.
        system: the system rows within, both ends included, in the order of the files.
        events: the events that overlap the window, both ends included, in the order pythontimeline, model timeline,
            framework profiler, Horovod, SMDDP; within a timeline in the order of the files.
        new_system: the rows that count here: every row of a job is in exactly one window's `new_system`.
        new_events: likewise for events: an event counts where it starts, or, if it arrived late, where it arrived.
        looked_at_by_service: whether the managed service evaluates this window: it leaves out a job's last ones.
    """

    start_us: int
    end_us: int
    system: SystemColumns
    events: EventColumns
    new_system: SystemColumns = attrs.field()
    new_events: EventColumns = attrs.field()
    looked_at_by_service: bool = True

    @new_system.default
    def _all_rows(self) -> SystemColumns:
        return self.system

    @new_events.default
    def _all_events(self) -> EventColumns:
        return self.events


def _with_time(table: Any, moments: Floats) -> Any:
    finite = np.isfinite(moments)
    return table if finite.all() else table[finite]


def in_timeline_order(events: EventColumns) -> EventColumns:
    """The events with the timelines in the service's order; the order within each is kept."""
    ranks = np.asarray([_rank(kind) for kind in events.kind.values], np.int8)
    if len(events) == 0 or len(set(ranks)) < 2:  # noqa: PLR2004 - one timeline is in order already
        return events
    order = np.argsort(ranks[events.kind.codes], kind="stable")
    sorted_events: EventColumns = events[order]
    return sorted_events


def _rank(kind: str) -> int:
    return next((rank for rank, name in enumerate(TIMELINES) if kind.startswith(name)), len(TIMELINES))


class WindowCutter:
    """Cuts batches into windows; holds no more than the rows that a later window can still need.

    `add` takes a batch; `ready` yields the windows that are complete; `rest` yields what remains when nothing more
    will come.
    """

    def __init__(self, first_us: int | None = None, length_us: int = MINUTE_US) -> None:
        """`first_us`: where the first window starts; default: the minute of the first batch that says one."""
        self.length_us = length_us
        self._next_us = None if first_us is None else first_us - first_us % MINUTE_US
        self._system, self._events = SystemColumns.empty(), EventColumns.empty()
        self._system_parts: list[SystemColumns] = []
        self._event_parts: list[EventColumns] = []
        self._counted: Mask = np.empty(0, np.bool_)  # for each held event: has a window counted it
        self._filed_us = -1  # all files up to here have been delivered
        self._last_minute_us: int | None = None  # of the last system file
        self._last_event_us: float | None = None  # end of the last event: what the last trace file is named by
        self.service_limit_us: float | None = None

    def add(self, batch: BatchLike) -> None:
        """Take a batch; batches come in the order of their minutes.  Rows without a finite time are left out."""
        system, events = _with_time(batch.system, batch.system.timestamp), _with_time(batch.events, batch.events.end_us)
        if len(system):
            self._system_parts.append(system)
            first_us, last_us = system.timestamp.min() * 1e6, system.timestamp.max() * 1e6
            minute_us = int(last_us // MINUTE_US * MINUTE_US) if batch.minute_us is None else batch.minute_us
            self._last_minute_us = max(minute_us, self._last_minute_us or 0)
            if self._next_us is None:
                self._next_us = int(first_us // MINUTE_US * MINUTE_US)
        if len(events):
            self._event_parts.append(events)
            self._last_event_us = max(float(events.end_us.max()), self._last_event_us or 0.0)
            if self._next_us is None:
                self._next_us = int(events.start_us.min() // MINUTE_US * MINUTE_US)
        if batch.minute_us is not None:
            self._filed_us = max(self._filed_us, batch.minute_us)

    def ready(self, look_ahead_us: int = LOOK_AHEAD_US) -> Iterator[Window]:
        """Yield the windows whose rows have all come, as far as the files' times tell."""
        while self._next_us is not None and self._next_us + self.length_us + look_ahead_us <= self._filed_us:
            yield from self._cut_next()

    def rest(self) -> Iterator[Window]:
        """Yield all remaining windows: the job is over, or nobody waits for more."""
        while self._held():
            yield from self._cut_next(everything=True)

    def _by_service(self, start_us: int) -> bool:
        """The service evaluates windows that start before the last system minute and the last trace file's time.

        Both are known where all files have been listed (`service_limit_us`); else as far as the rows tell.
        """
        ends = [end for end in (self._last_minute_us, self._last_event_us) if end is not None]
        return start_us < (min(ends, default=0.0) if self.service_limit_us is None else self.service_limit_us)

    def _held(self) -> bool:
        self._join()
        return bool(len(self._system) or not self._counted.all())

    def _join(self) -> None:
        if self._system_parts:
            self._system = SystemColumns.concat([self._system, *self._system_parts])
            self._system_parts = []
        if self._event_parts:
            came = sum(len(part) for part in self._event_parts)
            self._events = EventColumns.concat([self._events, *self._event_parts])
            self._counted = np.concatenate([self._counted, np.zeros(came, np.bool_)])
            self._event_parts = []

    def _cut_next(self, *, everything: bool = False) -> Iterator[Window]:
        """Cut the next window, and jump over a long stretch that holds nothing."""
        self._join()
        if self._next_us is None:  # nothing has come yet
            return
        start_us = self._next_us
        end_us = start_us + self.length_us
        moments_us = self._system.timestamp * 1e6
        late = moments_us < end_us
        events, ends_us = self._events, self._events.end_us
        starts_before_end = events.start_us < end_us
        fresh = starts_before_end & ~self._counted
        if not late.any() and not fresh.any():
            jump_us = self._next_data_us(moments_us)
            if jump_us is None or jump_us - start_us > EMPTY_STRETCH * self.length_us:
                self._next_us = end_us if jump_us is None else jump_us
                if jump_us is None and everything:
                    self._counted[:] = True
                return
        inside = (moments_us >= start_us) & (moments_us <= end_us)
        overlaps = (events.start_us <= end_us) & (ends_us >= start_us)
        system, new_system = self._system[inside], self._system[late]
        window_events = in_timeline_order(events[overlaps])
        new_events = in_timeline_order(events[fresh])
        self._counted = self._counted | fresh
        keep = ~(self._counted & (ends_us < end_us))
        self._system = self._system[~late]
        self._events, self._counted = events[keep], self._counted[keep]
        self._next_us = end_us
        yield Window(start_us, end_us, system, window_events, new_system, new_events, self._by_service(start_us))

    def _next_data_us(self, moments_us: Floats) -> int | None:
        """The start of the window that holds the earliest data not yet counted; None where there is none."""
        firsts = [moments.min() for moments in (moments_us, self._events.start_us[~self._counted]) if len(moments)]
        if not firsts or self._next_us is None:
            return None
        return self._next_us + int((min(firsts) - self._next_us) // self.length_us) * self.length_us
