"""Evaluation windows: a stretch of a job (a minute, by default), cut from a stream of columns in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

import attrs
import numpy as np

from sm_profiler.formats.columns import Category, EventColumns, Floats, Ints, Mask, Packed, Rows, SystemColumns, gather

_T = TypeVar("_T")

MINUTE_US = 60_000_000
MAX_PLAUSIBLE_US = 1e17  # three thousand years
LOOK_AHEAD_US = 3 * MINUTE_US  # a file is named after the end of its events: later files may hold events of a window
MAX_TIME_US = 1 << 62
MAX_EMPTY_WINDOWS = 24 * 60  # longer stretches without data are skipped
MAX_SPAN_US = 31 * 24 * 60 * MINUTE_US  # of all windows; a job takes 28 days at most, later rows share one window
MAX_EMPTY_TOTAL = 7 * MAX_EMPTY_WINDOWS  # empty windows of a job; after these, all stretches without data are skipped

# Order in which the managed service passes the timelines to a rule.
TIMELINES = ("pythontimeline", "model_timeline", "trace", "horovod_timeline", "smdataparallel_timeline")


class BatchLike(Protocol):
    """Rows that a source delivers together: whole files in the order of time."""

    @property
    def system(self) -> SystemColumns:
        """System rows."""

    @property
    def events(self) -> EventColumns:
        """Trace events."""

    @property
    def minute_us(self) -> int | None:
        """Start of the minute in the files' names; None if they have none."""


class Later(Generic[_T]):
    """Rows that are made for each reader; readers at the same time share them."""

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._made: Callable[[], _T | None] = lambda: None

    def __call__(self) -> _T:
        """Return the rows."""
        made = self._made()
        if made is None:
            made = self._make()
            self._made = ref(made)
        return made


@attrs.frozen(eq=False)
class EvaluationWindow:
    """One stretch of a job.

    Attributes:
        start_us, end_us: microseconds since the epoch.
        system: the system rows in the window, both ends included, in the order of the files.
        events: the events that overlap the window, both ends included, by timeline (Python, model, framework profiler,
            Horovod, SMDDP); within a timeline in the order of the files.
        new_system: the rows to count: every row of a job is in the `new_system` of exactly one window.
        new_events: the events to count: an event counts where it starts, or where it arrived if it was late.
        evaluated_by_service: False for the last windows of a job, which the managed service leaves out.
    """

    start_us: int
    end_us: int
    _system: SystemColumns | Later[SystemColumns]
    _events: EventColumns | Later[EventColumns]
    new_system: SystemColumns = attrs.field()
    new_events: EventColumns = attrs.field()
    evaluated_by_service: bool = True

    @property
    def system(self) -> SystemColumns:
        """The rows in the window."""
        return self._system() if isinstance(self._system, Later) else self._system

    @property
    def events(self) -> EventColumns:
        """The events that overlap the window."""
        return self._events() if isinstance(self._events, Later) else self._events

    @new_system.default
    def _all_rows(self) -> SystemColumns:
        return self.system

    @new_events.default
    def _all_events(self) -> EventColumns:
        return self.events


def _plausible(table: Any, limit: float, *columns: Floats) -> Any:
    """Drop rows with a damaged time or duration: sums of them would overflow."""
    plausible = np.all([np.abs(times) <= limit for times in columns], axis=0)  # False for NaN
    return table if plausible.all() else table[plausible]


def in_timeline_order(events: EventColumns) -> EventColumns:
    """Sort events by timeline, in the service's order; the order within each timeline is kept."""
    order = _timeline_order(events.kind)
    sorted_events: EventColumns = events if order is None else events[order]
    return sorted_events


def _timeline_order(kind: Category) -> Ints | None:
    """Return the row numbers in the order of timelines; None if there is one timeline."""
    ranks = np.asarray([_rank(text) for text in kind.values], np.int8)
    if len(kind) == 0 or len(set(ranks)) < 2:  # one timeline is sorted already
        return None
    return np.argsort(ranks[kind.codes], kind="stable")


def _rank(kind: str) -> int:
    return next((rank for rank, name in enumerate(TIMELINES) if kind.startswith(name)), len(TIMELINES))


@attrs.define(eq=False)
class _Rows:
    """Rows of one batch that windows still need; those of several minutes wait at any time.

    Attributes:
        table: the rows.
        times: computes the first and the last moment of each row, which take as much memory as all the rest.
        first_us, last_us: of all rows.
        counted: True for each row that a window has counted; None if none has been.
        next_us: start of the earliest row that has not been counted; None if all have.
    """

    table: Packed
    times: Callable[[Packed], tuple[Floats, Floats]]
    first_us: float
    last_us: float
    counted: Mask | None = None
    next_us: float | None = attrs.field()

    @next_us.default
    def _first(self) -> float:
        return self.first_us

    @classmethod
    def of(cls, columns: Any, times: Callable[[Packed], tuple[Floats, Floats]]) -> _Rows:
        """Pack rows."""
        table = Packed(columns)
        starts_us, ends_us = times(table)
        return cls(table, times, float(starts_us.min()), float(ends_us.max()))

    def select(self, start_us: int, end_us: int) -> tuple[Rows, Rows] | None:
        """Return the rows that overlap a window, and those that it counts: not yet counted and starting before its end.

        None if all rows are later; the same object twice if both are the same.
        """
        if self.first_us > end_us:
            return None
        starts_us, ends_us = self.times(self.table)
        overlaps = (starts_us <= end_us) & (ends_us >= start_us)
        new = starts_us < end_us
        if self.counted is None:
            self.counted = new.copy()
        else:
            new &= ~self.counted
            self.counted |= new
        left_us = starts_us[~self.counted]
        self.next_us = float(left_us.min()) if len(left_us) else None
        within = _chosen(overlaps)
        return within, within if np.array_equal(new, overlaps) else _chosen(new)

    def is_done(self, end_us: int) -> bool:
        """Return True if no later window needs any row."""
        return self.last_us < end_us and self.next_us is None


def _chosen(mask: Mask) -> Rows:
    return slice(None) if mask.all() else np.flatnonzero(mask)


def _moments(system: Packed) -> tuple[Floats, Floats]:
    moments_us = system.floats("timestamp") * 1e6
    return moments_us, moments_us


def _spans(events: Packed) -> tuple[Floats, Floats]:
    starts_us = events.floats("start_us")
    return starts_us, starts_us + events.floats("duration_us")


class WindowCutter:
    """Cuts batches into windows; keeps only rows that a later window can still need.

    Attributes:
        service_limit_us: time before which windows have to start for the service to evaluate them; None to derive it
            from the rows.
    """

    def __init__(
        self, first_us: int | None = None, length_us: int = MINUTE_US, before: Callable[[int], object] = bool
    ) -> None:
        """Create a cutter.

        Args:
            first_us: start of the first window; default: the minute of the first row.
            length_us: length of a window.
            before: called with the start of each window before it is cut.
        """
        self.length_us = length_us
        self._before = before
        self.service_limit_us: float | None = None
        self._next_us = None if first_us is None else first_us - first_us % MINUTE_US
        self._system: list[_Rows] = []
        self._events: list[_Rows] = []
        self._filed_system_us = self._filed_events_us = -1  # names of the last files delivered
        self._last_minute_us: int | None = None  # of system files
        self._windows = 0  # cut so far
        self._empty_windows = 0  # without new data, so far
        self._last_event_us: float | None = None  # end of the last event: the last trace file is named after it

    def add(self, batch: BatchLike) -> None:
        """Add a batch; batches come in the order of their minutes. Rows with a damaged time are dropped."""
        system, events = (
            _plausible(batch.system, MAX_PLAUSIBLE_US / 1e6, batch.system.timestamp),
            _plausible(batch.events, MAX_PLAUSIBLE_US, batch.events.start_us, batch.events.duration_us),
        )
        if len(system):
            part = _Rows.of(system, _moments)
            self._system.append(part)
            minute_us = int(part.last_us // MINUTE_US * MINUTE_US) if batch.minute_us is None else batch.minute_us
            self._last_minute_us = max(minute_us, self._last_minute_us or 0)
            self._begin(part.first_us)
        if len(events):
            part = _Rows.of(events, _spans)
            self._events.append(part)
            self._last_event_us = max(part.last_us, self._last_event_us or 0.0)
            self._begin(part.first_us)
        if batch.minute_us is not None and len(system):
            self._filed_system_us = max(self._filed_system_us, batch.minute_us)
        if batch.minute_us is not None and len(events):
            self._filed_events_us = max(self._filed_events_us, batch.minute_us)

    def start_at(self, start_us: int) -> None:
        """Cut the next window at this time: earlier rows belong to earlier windows."""
        self._next_us = start_us

    @property
    def latest_us(self) -> int:
        """Start of the minute in the names of the latest files that were added; -1 without any."""
        return max(self._filed_system_us, self._filed_events_us)

    def until(self, end_us: int) -> Iterator[EvaluationWindow]:
        """Yield the remaining windows that start before a time, those without data too: later rows were not added."""
        while self._next_us is not None and self._next_us < end_us:
            yield from self._cut_next()

    def _begin(self, first_us: float) -> None:
        if self._next_us is None:
            self._next_us = int(first_us // MINUTE_US * MINUTE_US)

    def ready(self, *, eager: bool = False) -> Iterator[EvaluationWindow]:
        """Yield the windows that are complete, judging by the times in the files' names.

        Args:
            eager: yield a window as soon as there are later files of both kinds, instead of waiting for late events.
        """
        while self._next_us is not None:
            end_us = self._next_us + self.length_us
            latest_us = max(self._filed_system_us, self._filed_events_us)
            both = self._filed_system_us >= end_us and (self._last_event_us is None or self._filed_events_us >= end_us)
            if latest_us < end_us + LOOK_AHEAD_US and not (eager and both):
                return
            if self._next_data_us() is None:
                return  # the names of files promise later data than they contain
            yield from self._cut_next()

    def passed(self, minute_us: int) -> Iterator[EvaluationWindow]:
        """Yield the windows that are complete, those without data too, once some file of this minute has been read.

        For a cutter that gets the rows of some nodes only: files of the others are its clock.
        """
        while self._next_us is not None and minute_us >= self._next_us + self.length_us + LOOK_AHEAD_US:
            yield from self._cut_next()

    def rest(self) -> Iterator[EvaluationWindow]:
        """Yield all remaining windows: no more rows will be added."""
        while self._next_data_us() is not None:
            yield from self._cut_next()

    def _by_service(self, start_us: int) -> bool:
        """Return True if a window starts before the last system minute and the time of the last trace file."""
        ends = [end for end in (self._last_minute_us, self._last_event_us) if end is not None]
        return start_us < (min(ends, default=0.0) if self.service_limit_us is None else self.service_limit_us)

    def _cut_next(self) -> Iterator[EvaluationWindow]:
        """Cut the next window, or skip a long stretch without data."""
        if self._next_us is None:
            return
        start_us, end_us = self._next_us, self._next_us + self.length_us
        data_us = self._next_data_us()
        empty = 0 if data_us is None else int((data_us - start_us) // self.length_us)
        if empty > MAX_EMPTY_WINDOWS or (empty > 0 and self._empty_windows >= MAX_EMPTY_TOTAL):
            self._next_us = start_us + empty * self.length_us
            return
        self._empty_windows += empty > 0
        self._before(start_us)
        yield self._window(start_us, end_us)

    def _window(self, start_us: int, end_us: int) -> EvaluationWindow:
        """Return the window; what making it needs is freed before anybody reads it."""
        self._windows += 1
        if self._windows * self.length_us > MAX_SPAN_US:
            last_us = max((part.last_us for part in (*self._system, *self._events)), default=0.0)
            end_us = max(end_us, int(min(last_us, MAX_TIME_US)) + 1)
        system = _selected(self._system, start_us, end_us)
        events = _selected(self._events, start_us, end_us)
        self._system = [part for part in self._system if not part.is_done(end_us)]
        self._events = [part for part in self._events if not part.is_done(end_us)]
        self._next_us = end_us
        inside, new_rows = _both(SystemColumns, system)
        happened, new_events = _both(EventColumns, events, ("kind", _timeline_order))
        return EvaluationWindow(start_us, end_us, inside, happened, new_rows, new_events, self._by_service(start_us))

    def _next_data_us(self) -> float | None:
        """Return the time of the earliest row that has not been counted; None if all have."""
        found = [part.next_us for part in (*self._system, *self._events)]
        return min((moment for moment in found if moment is not None), default=None)


def _selected(parts: list[_Rows], start_us: int, end_us: int) -> list[tuple[Packed, Rows, Rows]]:
    """Return the tables with rows in a window, each with those that overlap it and those that it counts."""
    found = [(part.table, part.select(start_us, end_us)) for part in parts]
    return [(table, *rows) for table, rows in found if rows is not None]


def _both(kind: Any, selected: list[tuple[Packed, Rows, Rows]], order: Any = None) -> tuple[Any, Any]:
    """Return the rows in a window, which few rules read, to be made later, and those that it counts."""

    def gathered(chosen: list[tuple[Packed, Rows]]) -> Any:
        return gather(kind, [(table, rows) for table, rows in chosen if isinstance(rows, slice) or len(rows)], order)

    new = gathered([(table, rows) for table, _, rows in selected])
    if all(within is rows for _, within, rows in selected):
        return new, new
    return Later(lambda: gathered([(table, within) for table, within, _ in selected])), new
