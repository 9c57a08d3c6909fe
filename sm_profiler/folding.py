"""Folding: a job's windows, one after another or in parts, reduced to states of bounded size.

One pass over a source feeds every fold: a rule, or a part of the report's metrics. A window is a stretch of the job, a
minute by default. A slice holds the folds of an hour of the job. Slices merge two by two, so that other processes can
fold some of them with the same result.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

import attrs
import numpy as np

from sm_profiler.errors import ProfilerError
from sm_profiler.formats.columns import Category, EventColumns, Floats, Ints, Mask, Packed, Rows, SystemColumns, gather
from sm_profiler.formats.layout import MINUTE_US
from sm_profiler.processes import trim_heap

_T = TypeVar("_T")

MAX_PLAUSIBLE_US = 1e17  # three thousand years
LOOK_AHEAD_US = 3 * MINUTE_US  # a file is named after the end of its events: later files may hold events of a window
MAX_TIME_US = 1 << 62
MAX_EMPTY_WINDOWS = 24 * 60  # longer stretches without data are skipped
MAX_SPAN_US = 31 * 24 * 60 * MINUTE_US  # of all windows; a job takes 28 days at most, later rows share one window
MAX_EMPTY_TOTAL = 7 * MAX_EMPTY_WINDOWS  # empty windows of a job; after these, all stretches without data are skipped

# Order in which the managed service passes the timelines to a rule.
TIMELINES = ("pythontimeline", "model_timeline", "trace", "horovod_timeline", "smdataparallel_timeline")

Key = TypeVar("Key", str, int)
LATE_S = 90.0  # a node that still runs uploads a system file every minute
POLL_S = 10.0

SLICE_WINDOWS = 60  # an hour: of less, more is read twice than folded
SLICE_BYTES = 1 << 30  # of files in a slice, on average: what a worker folds at least
TRIM_WINDOWS = 4  # more often takes time to get memory back
_SHORTER = (2, 4, 12)  # shares of an hour


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


class Fold(Protocol):
    """Reduces the windows of a job, one after another, in constant memory."""

    def update(self, window: EvaluationWindow) -> object:
        """Add the next window."""

    def merge(self, other: Any) -> None:
        """Absorb another fold of the same kind that saw other nodes or other minutes of the job."""

    def result(self) -> Any:
        """Return the result for all windows so far; more windows may follow."""


class SourceLike(Protocol):
    """The part of `sm_profiler.source.ProfileSource` that the engine uses."""

    @property
    def finished(self) -> bool:
        """True if no more data will come."""

    @property
    def first_timestamp_us(self) -> int | None:
        """Time of the earliest file, in microseconds."""

    def refresh(self) -> int:
        """Look for new files."""

    def batches(self, *, unsettled: bool = False) -> Iterable[BatchLike]:
        """Return what no earlier call has returned, in the order of time."""


@attrs.define
class Following:
    """Options for following a running job.

    Attributes:
        stop: called between polls; True ends the evaluation as if the job had ended.
        poll_s: seconds between two refreshes of the source.
        sleep: waits; may return early.
        caught_up: called before waiting, once all available data has been evaluated.
    """

    stop: Callable[[], bool] = bool
    poll_s: float = POLL_S
    sleep: Callable[[float], object] = time.sleep
    caught_up: Callable[[], object] = bool


def service_limit_us(source: SourceLike, interval_us: int = MINUTE_US) -> int | None:
    """Return the time before which windows have to start for the managed service to evaluate them.

    That is the last system minute, or the time of the last trace file if that is earlier. While the job runs, the end of
    the window has to lie before it. None if the source has no list of files.
    """
    files = _files_of(source)
    if files is None:
        return None
    last = [int(times.max()) for chosen in (files.is_system, ~files.is_system) if len(times := files.at_us[chosen])]
    return min(last) if source.finished else min(last) - interval_us + 1


def others_may_follow(source: SourceLike) -> bool:
    """Return True if files of other nodes may still come: the first node that is done writes the end marker."""
    files = _files_of(source)
    if files is None or len(np.unique(files.hosts)) < 2:  # with one node there are no others
        return False
    last_us = int((files.at_us + MINUTE_US * files.is_system).max())
    return time.time() < last_us / 1e6 + LATE_S


def _files_of(source: SourceLike) -> Any:
    """Return the list of a source's files, as `sm_profiler.source.OrderedItems`; None if it has none."""
    return getattr(source, "files", None) or None


def windows(
    source: SourceLike,
    *,
    follow: bool | Following = False,
    interval_us: int = MINUTE_US,
    before: Callable[[int], object] = bool,
) -> Iterator[EvaluationWindow]:
    """Cut a source into windows; yield each as soon as its rows are complete.

    Args:
        source: the job's data.
        follow: wait for more data until the job is over.
        interval_us: length of a window.
        before: called with the start of each window before it is cut.
    """
    following = Following() if follow is True else follow
    cutter = WindowCutter(source.first_timestamp_us, interval_us, before)
    while True:
        finished = source.finished  # before the rows are read: rows written before the end marker are then complete
        cutter.service_limit_us = service_limit_us(source, interval_us)
        for batch in source.batches(unsettled=not following):
            cutter.add(batch)
            del batch  # its rows are freed as soon as no window needs them
            yield from cutter.ready()
        if not following or (finished and not others_may_follow(source)) or following.stop():
            break
        yield from cutter.ready(eager=True)
        following.caught_up()
        following.sleep(following.poll_s)
        source.refresh()
    if following:
        for batch in source.batches(unsettled=True):
            cutter.add(batch)
    yield from cutter.rest()


def run_folds(
    source: SourceLike,
    folds: Iterable[Fold],
    *,
    follow: bool | Following = False,
    on_window: Callable[[EvaluationWindow], object] | None = None,
    interval_us: int = MINUTE_US,
) -> dict[int, str]:
    """Feed all folds in one pass; `on_window` is called after each window.

    A fold that raises gets no further windows.

    Returns:
        Index of each fold that raised → one line about the error.
    """
    state = Slice(list(folds))
    for window in windows(source, follow=follow, interval_us=interval_us):
        state.update(window)
        if on_window is not None:
            on_window(window)
    return state.broken


@attrs.frozen
class Stored:
    """A fold or rule outside of memory; `load` returns it."""

    load: Callable[[], Any]


def loaded(part: Any) -> Any:
    """Return a part of a state, which may be stored."""
    return part.load() if isinstance(part, Stored) else part


def merge_part(key: Key, mine: Any, theirs: Any, broken: dict[Key, str], theirs_broken: Mapping[Key, str]) -> Any:
    """Return a fold with that of another part of the job.

    Args:
        key: its name or number.
        mine: it; both may be stored.
        theirs: that of the other part.
        broken: errors by key, to which that of merging is added.
        theirs_broken: the other part's, to which loading it may add.
    """
    part, other = loaded(mine), loaded(theirs)
    if key in broken or key in theirs_broken:
        broken.setdefault(key, theirs_broken.get(key, ""))
        return part
    try:
        part.merge(other)
    except Exception as error:  # the error of one must not stop the others
        broken[key] = error_line(error)
    return part


def error_line(error: BaseException) -> str:
    """Describe an error in one line: our own as they are, others with their type and place."""
    if isinstance(error, ProfilerError):
        return str(error)
    frames = inspect.getinnerframes(error.__traceback__, context=0) if error.__traceback__ else []
    place = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return " ".join(f"{type(error).__name__}: {error}{place}".split())[:500]


@attrs.define(eq=False)
class Slice:
    """Folds of a stretch of a job.

    Attributes:
        folds: the folds; a stored one is loaded when it is merged.
        broken: index of each fold that raised → one line about the error.
    """

    folds: list[Any]
    broken: dict[int, str] = attrs.field(factory=dict)

    def update(self, window: EvaluationWindow) -> None:
        """Pass a window to each fold; one that raises gets no further windows."""
        for index, fold in enumerate(self.folds):
            if index not in self.broken:
                try:
                    fold.update(window)
                except Exception as error:  # one fold's error must not stop the others
                    self.broken[index] = error_line(error)

    def load(self, index: int) -> Any:
        """Return a fold, which is in memory from then on."""
        fold = self.folds[index] = loaded(self.folds[index])
        return fold

    def loaded(self) -> Slice:
        for index in range(len(self.folds)):
            self.load(index)
        return self

    def merge(self, later: Slice) -> None:
        """Absorb the stretch that follows, fold by fold: its folds are gone then."""
        for index in range(len(self.folds)):
            self.folds[index] = merge_part(index, self.folds[index], later.folds[index], self.broken, later.broken)
            later.folds[index] = None

    def merge_later(self, later: Slice) -> None:
        """Absorb the stretch that follows, each fold once it is loaded: two whole states need not be in memory."""
        for index in range(len(self.folds)):
            mine, theirs = self.folds[index], later.folds[index]
            self.folds[index] = Stored(partial(merge_part, index, mine, theirs, self.broken, later.broken))
        later.folds = []


class SliceTree:
    """Slices of a job, merged pair by pair as they arrive, in any order.

    Sums of floats depend on the order of their terms, so the shape of the tree depends on the slices' numbers alone:
    numbers 2n and 2n + 1 of a level become number n of the next. All ways to fold the slices give the same digits.
    """

    def __init__(self, put_away: Callable[[Slice], Callable[[], Slice]] | None = None) -> None:
        """Create a tree.

        Args:
            put_away: stores the state of a slice that waits for the next one outside of memory, which is for its rows,
                and returns a function that loads it; default: states stay in memory.
        """
        self._put_away = put_away
        self._waiting: dict[tuple[int, int], Callable[[], Slice]] = {}

    def add(self, level: int, number: int, state: Slice) -> None:
        while (load := self._waiting.pop((level, number ^ 1), None)) is not None:
            other = load()
            first, second = (other, state) if number % 2 else (state, other)
            if self._put_away is None:
                first.merge(second)
            else:
                first.merge_later(second)
            level, number, state = level + 1, number // 2, first
        self._waiting[level, number] = self._put_away(state) if self._put_away is not None else lambda: state

    def parts(self) -> Iterator[tuple[int, int, Slice]]:
        """Yield level, number and state of what is merged so far, in the order of time."""
        for level, number in sorted(self._waiting, key=lambda place: place[1] << place[0]):
            yield level, number, self._waiting[level, number]().loaded()

    def whole(self) -> Slice | None:
        """Return the state of all slices; None without any. A number without a slice merges as if it had an empty one."""
        waiting, level = dict(self._waiting), 0
        nodes = dict[int, Callable[[], Slice]]()
        while waiting or len(nodes) > 1:
            nodes |= {number: waiting.pop((at, number)) for at, number in list(waiting) if at == level}
            pairs = {number // 2: (nodes.get(number & ~1), nodes.get(number | 1)) for number in nodes}
            nodes = {number: partial(_merged, *pair) for number, pair in pairs.items()}
            level += 1
        return next(iter(nodes.values()))().loaded() if nodes else None


def _merged(first: Callable[[], Slice] | None, second: Callable[[], Slice] | None) -> Slice:
    """Return a pair of slices, of which one may not exist, each fold merged once it is loaded."""
    later = second() if second is not None else None
    if first is None:
        return later if later is not None else Slice([])
    state = first()
    if later is not None:
        state.merge_later(later)
    return state


def slice_windows(source: SourceLike, interval_us: int = MINUTE_US) -> int:
    """Return the number of windows of a slice: an hour's, fewer if many ranks fill an hour with more than SLICE_BYTES.

    It depends on the list of files alone, so that all ways to fold a job cut it into the same slices.
    """
    files = _files_of(source)
    if files is None:
        return SLICE_WINDOWS
    span_us = int(files.at_us.max() - files.at_us.min()) + MINUTE_US
    of_window = int(files.sizes.sum()) * interval_us / span_us
    lengths = [SLICE_WINDOWS, *(max(SLICE_WINDOWS // share, 1) for share in _SHORTER)]
    return next((length for length in lengths if length * of_window <= SLICE_BYTES), lengths[-1])


def run_sliced(
    source: SourceLike,
    folds: Callable[[], list[Any]],
    *,
    interval_us: int = MINUTE_US,
    length: int | None = None,
    put_away: Callable[[Slice], Callable[[], Slice]] | None = None,
) -> Slice:
    """Feed folds in one pass, new ones for each slice of the job, and return all of them merged.

    Args:
        source: the job's data.
        folds: makes the folds of a slice.
        interval_us: length of a window.
        length: windows of a slice; default: see `slice_windows`.
        put_away: as of `SliceTree`.
    """
    tree, state, number = SliceTree(put_away), Slice(folds()), 0
    first_us = source.first_timestamp_us
    begin_us = None if first_us is None else first_us // MINUTE_US * MINUTE_US
    slice_us = (length or slice_windows(source, interval_us)) * interval_us

    def close(start_us: int) -> None:
        """End the slice before a window, while its rows are not selected yet; those of a gap do not exist."""
        nonlocal begin_us, state, number
        begin_us = start_us if begin_us is None else begin_us
        if start_us >= begin_us + (number + 1) * slice_us:
            tree.add(0, number, state)
            state, number = Slice(folds()), (start_us - begin_us) // slice_us
            trim_heap()

    for count, window in enumerate(windows(source, interval_us=interval_us, before=close), 1):
        state.update(window)
        del window  # before the next is cut
        if not count % TRIM_WINDOWS:
            trim_heap()
    tree.add(0, number, state)
    del state
    trim_heap()
    whole = tree.whole()
    return whole if whole is not None else Slice(folds())
