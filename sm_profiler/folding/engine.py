"""The engine: one pass over a source feeds every fold.

A fold is anything that reduces the windows of a job: a rule, or a part of the report's metrics. A slice holds the folds of
an hour of the job. Slices merge two by two, so that other processes can fold some of them with the same result.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

import attrs
import numpy as np

from sm_profiler.errors import ProfilerError
from sm_profiler.folding.window import MINUTE_US, BatchLike, EvaluationWindow, WindowCutter
from sm_profiler.processes import trim_heap

Key = TypeVar("Key", str, int)
LATE_S = 90.0  # a node that still runs uploads a system file every minute
POLL_S = 10.0


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
        """Return the slice with all folds in memory."""
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
        """Add a slice (level 0), or a merged pair of the level below."""
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


SLICE_WINDOWS = 60  # an hour: of less, more is read twice than folded
SLICE_BYTES = 1 << 30  # of files in a slice, on average: what a worker folds at least
TRIM_WINDOWS = 4  # more often takes time to get memory back
_SHORTER = (2, 4, 12)  # shares of an hour


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
