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


@attrs.define(eq=False)
class _Part:
    """Rows that came together, and which of them a window still needs.

    Attributes:
        rows: the table.
        starts_us, ends_us: of each row; for system rows the same.
        counted: whether a window has counted the row; None: none of them has been.
    """

    rows: Any
    starts_us: Floats
    ends_us: Floats
    counted: Mask | None = None
    first_us: float = attrs.field()
    last_us: float = attrs.field()

    @first_us.default
    def _first(self) -> float:
        return float(self.starts_us.min())

    @last_us.default
    def _last(self) -> float:
        return float(self.ends_us.max())

    def select(self, start_us: int, end_us: int) -> tuple[Any, Any]:
        """The rows that overlap a window, and those that it counts: not counted yet, and starting before its end."""
        if self.first_us > end_us:
            return None, None
        overlaps = (self.starts_us <= end_us) & (self.ends_us >= start_us)
        fresh = self.starts_us < end_us
        if self.counted is None:
            self.counted = fresh
        else:
            fresh &= ~self.counted
            self.counted |= fresh
        within = _chosen(self.rows, overlaps)
        return within, within if np.array_equal(fresh, overlaps) else _chosen(self.rows, fresh)

    def is_done(self, end_us: int) -> bool:
        """Whether no later window needs any row."""
        return self.last_us < end_us and self.counted is not None and bool(self.counted.all())

    def next_us(self) -> float | None:
        """The start of the earliest row not counted."""
        if self.counted is None:
            return self.first_us
        left = self.starts_us[~self.counted]
        return float(left.min()) if len(left) else None


def _chosen(rows: Any, mask: Mask) -> Any:
    return rows if mask.all() else rows[mask]


class WindowCutter:
    """Cuts batches into windows; holds no more than the rows that a later window can still need.

    `add` takes a batch; `ready` yields the windows that are complete; `rest` yields what remains when nothing more
    will come.

    Attributes:
        service_limit_us: the time before which the service evaluates windows, if the list of files tells; else it is
            taken from the rows.
    """

    def __init__(self, first_us: int | None = None, length_us: int = MINUTE_US) -> None:
        """`first_us`: where the first window starts; default: the minute of the first batch."""
        self.length_us = length_us
        self.service_limit_us: float | None = None
        self._next_us = None if first_us is None else first_us - first_us % MINUTE_US
        self._system: list[_Part] = []
        self._events: list[_Part] = []
        self._filed_system_us = self._filed_events_us = -1  # files up to here have been delivered
        self._last_minute_us: int | None = None  # of the last system file
        self._last_event_us: float | None = None  # end of the last event: what the last trace file is named by

    def add(self, batch: BatchLike) -> None:
        """Take a batch; batches come in the order of their minutes.  Rows without a finite time are left out."""
        system, events = _with_time(batch.system, batch.system.timestamp), _with_time(batch.events, batch.events.end_us)
        if len(system):
            moments_us = system.timestamp * 1e6
            part = _Part(system, moments_us, moments_us)
            self._system.append(part)
            minute_us = int(part.last_us // MINUTE_US * MINUTE_US) if batch.minute_us is None else batch.minute_us
            self._last_minute_us = max(minute_us, self._last_minute_us or 0)
            self._begin(part.first_us)
        if len(events):
            part = _Part(events, events.start_us, events.end_us)
            self._events.append(part)
            self._last_event_us = max(part.last_us, self._last_event_us or 0.0)
            self._begin(part.first_us)
        if batch.minute_us is not None and len(system):
            self._filed_system_us = max(self._filed_system_us, batch.minute_us)
        if batch.minute_us is not None and len(events):
            self._filed_events_us = max(self._filed_events_us, batch.minute_us)

    def _begin(self, first_us: float) -> None:
        if self._next_us is None:
            self._next_us = int(first_us // MINUTE_US * MINUTE_US)

    def ready(self, *, eager: bool = False) -> Iterator[Window]:
        """Yield the windows whose rows have all come, as far as the files' times tell.

        `eager`: as soon as there are later files of both kinds; else any event that is filed late is waited for.
        """
        while self._next_us is not None:
            end_us = self._next_us + self.length_us
            come = max(self._filed_system_us, self._filed_events_us)
            both = self._filed_system_us >= end_us and (self._last_event_us is None or self._filed_events_us >= end_us)
            if come < end_us + LOOK_AHEAD_US and not (eager and both):
                return
            yield from self._cut_next()

    def rest(self) -> Iterator[Window]:
        """Yield all remaining windows: the job is over, or nobody waits for more."""
        while self._next_data_us() is not None:
            yield from self._cut_next()

    def _by_service(self, start_us: int) -> bool:
        """The service evaluates windows that start before the last system minute and the last trace file's time.

        Both are known where all files have been listed (`service_limit_us`); else as far as the rows tell.
        """
        ends = [end for end in (self._last_minute_us, self._last_event_us) if end is not None]
        return start_us < (min(ends, default=0.0) if self.service_limit_us is None else self.service_limit_us)

    def _cut_next(self) -> Iterator[Window]:
        """Cut the next window, or jump over a long stretch that holds nothing."""
        if self._next_us is None:  # nothing has come yet
            return
        start_us, end_us = self._next_us, self._next_us + self.length_us
        data_us = self._next_data_us()
        if data_us is None or data_us - start_us > EMPTY_STRETCH * self.length_us:
            self._next_us = (
                end_us if data_us is None else start_us + int((data_us - start_us) // self.length_us) * self.length_us
            )
            return
        system = [part.select(start_us, end_us) for part in self._system]
        events = [part.select(start_us, end_us) for part in self._events]
        self._system = [part for part in self._system if not part.is_done(end_us)]
        self._events = [part for part in self._events if not part.is_done(end_us)]
        self._next_us = end_us
        inside, new_rows = _joined(SystemColumns, system)
        window_events, new_events = _joined(EventColumns, events)
        ordered = in_timeline_order(window_events)
        new_events = ordered if new_events is window_events else in_timeline_order(new_events)
        yield Window(start_us, end_us, inside, ordered, new_rows, new_events, self._by_service(start_us))

    def _next_data_us(self) -> float | None:
        """The earliest row not yet counted; None where there is none."""
        found = [part.next_us() for part in (*self._system, *self._events)]
        return min((moment for moment in found if moment is not None), default=None)


def _joined(kind: Any, selected: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """All rows within a window, and those that count in it; one table where both are the same."""
    pairs = [(within, fresh) for within, fresh in selected if within is not None]
    within = kind.concat([one for one, _ in pairs if len(one)])
    if all(one is other for one, other in pairs):
        return within, within
    return within, kind.concat([other for _, other in pairs if len(other)])
