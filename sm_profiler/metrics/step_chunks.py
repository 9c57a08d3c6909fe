"""Steps of all processes in a window, each with the time of each part of the loop."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category, EventColumns, Floats, Ints, Mask
from sm_profiler.metrics import parts
from sm_profiler.metrics.parts import Covered, PartTable, contains_any, not_covered_before, without_inner
from sm_profiler.metrics.step_rows import (
    COMMUNICATION,
    DECLARED,
    DECLARED_IN_STEP,
    GC,
    LOADER,
    OWN,
    OWN_IN_STEP,
    OWN_WORK,
    QUEUED,
    RESULTS,
    STEP,
    TRAIN,
    StepRows,
    column,
    columns,
    modes_of,
)
from sm_profiler.metrics.step_sample import StepSample, stretch_of, thin

# Times are multiples of 1/4 µs, which is as exact as floats since the epoch are, and durations of 1/1024 µs: their sums
# are exact, and the same in any order, up to 100 days.
_FRACTION = 1024
_LIMIT = 1 << 51  # of a time in µs up to which quarters are exact


@attrs.frozen(eq=False)
class Chunk:
    """Steps of one process and window, with the times that belong to steps of the neighbouring windows.

    No part of it changes, so that copies of a fold share their chunks.
    """

    rows: StepRows
    before: Floats  # shape (columns,): phases of the last step of the previous window
    after: Floats  # shape (columns,): waits for the first step of the next window
    first_us: float  # earliest event of the loop
    last_us: float
    declared: dict[str, float]  # the script's own phases: name → µs in training
    collected: dict[str, float]  # garbage collections: part of the loop → µs
    stretch: NDArray[np.int8]  # of each step, as in StepSample
    sample: StepSample | None = None  # None: all steps are in `rows`
    late: bool = False  # some arrived after later ones

    def __deepcopy__(self, _: dict[int, Any]) -> Chunk:
        return self

    def thinned(self, level: int, limit: int) -> Chunk:
        """Return the chunk with the steps that a level keeps."""
        rows, sample = thin(self.rows, self.sampled, level, limit)
        return attrs.evolve(self, rows=rows, stretch=sample.stretch, sample=sample)

    @property
    def sampled(self) -> StepSample:
        """The sample, which may hold all steps."""
        return StepSample.of(self.rows, self.stretch) if self.sample is None else self.sample


def exact(duration_us: Floats) -> Floats:
    """Return durations whose sums do not depend on the order of their terms."""
    return np.asarray(np.rint(duration_us * _FRACTION) / _FRACTION)


def pairs_of(nodes: Category, numbers: Ints, rows: Ints) -> Iterator[tuple[str, int]]:
    """Yield each process of some rows with each of its numbers, in any order."""
    codes, numbers = nodes.codes[rows], numbers[rows]
    changes = (np.diff(codes, prepend=-1) != 0) | (np.diff(numbers, prepend=-2) != 0)
    for code, number in set(zip(codes[changes].tolist(), numbers[changes].tolist(), strict=True)):
        yield nodes.values[code], number


def chunks_of(events: EventColumns, kinds: NDArray[np.int8], rows: Ints) -> Iterator[tuple[str, Chunk]]:
    """Yield each process of a window with its steps.

    Args:
        events: of the window.
        kinds: of each event, as `classify` returns them.
        rows: numbers of the events of training loops.
    """
    if not len(rows):
        return
    codes = events.node.codes[rows]
    present = np.flatnonzero(np.bincount(codes))
    start = np.rint(events.start_us[rows] * 4) / 4
    end = np.rint((start + exact(events.duration_us[rows])) * 4) / 4
    base = float(min(start.min(), end.min()))
    width = float(max(start.max(), end.max())) - base + 2
    if width * len(present) < _LIMIT:
        yield from _Loops(events, kinds, rows, start - base, end - base, (base, width), present).chunks()
        return
    for code in present:  # with a time of long ago, as damaged files have
        own = codes == code
        one = _Loops(events, kinds, rows[own], start[own] - base, end[own] - base, (base, width), np.asarray([code]))
        yield from one.chunks()


@cache
def _groups() -> tuple[NDArray[np.bool_], ...]:
    """Return which kinds overlap on one thread: recorded parts, collections, communication; and which come before a step."""
    recorded = [column(part.key) for part in parts.recorded() if part.kind is not parts.Kind.DECLARED]
    each = (recorded, [column(GC)], [column(COMMUNICATION)], [column("wait"), column(LOADER)])
    return tuple(np.isin(np.arange(128), numbers) for numbers in each)


class _Loops:
    """Events of the training loops of several processes.

    The times of each process lie behind those of the one before, so that one search or running maximum serves all.

    Attributes:
        first: number of the first step of each process; count: number of its steps.
        padded: shape (steps + 2 a process, columns): before and after the steps of each process, there is a row for
            what belongs to steps of the neighbouring windows.
    """

    def __init__(  # of one call
        self,
        events: EventColumns,
        kinds: NDArray[np.int8],
        rows: Ints,
        start: Floats,
        end: Floats,
        span: tuple[float, float],
        present: Ints,
    ) -> None:
        """Sort the events by process and time.

        Args:
            events: of the window.
            kinds: of each event.
            rows: numbers of the events.
            start: their starts.
            end: their ends.
            span: base and width of all times.
            present: codes of the processes.
        """
        self._events, self._present = events, present
        self._base, self._width = span
        process = np.zeros(len(events.node.values), np.int64)
        process[present] = np.arange(len(present))
        process = process[events.node.codes[rows]]
        shift = process * self._width
        start, end = start + shift, end + shift
        order = np.argsort(start, kind="stable")
        kinds = kinds[rows][order]
        self._rows, self._process, self._start, self._end = rows[order], process[order], start[order], end[order]
        is_step = kinds == STEP
        self._steps = np.flatnonzero(is_step)
        self._own, self._declared = np.flatnonzero(kinds == OWN_WORK), np.flatnonzero(kinds == DECLARED)
        self._others = np.flatnonzero(kinds < STEP)
        self._kinds = kinds[self._others].astype(np.int64)
        self.count = np.bincount(self._process[self._steps], minlength=len(present))
        self.first = np.cumsum(self.count) - self.count
        self._modes = modes_of(events.name[self._rows[self._steps]])
        self._step_start = self._start[self._steps]
        self._step_end = np.maximum.accumulate(self._end[self._steps])
        self.padded = np.zeros((len(self._steps) + 2 * len(present), len(columns())))
        self._row_before = self.first + 2 * np.arange(len(present))
        self._profiler = Covered.by(self._start[self._own], self._end[self._own])

    def chunks(self) -> Iterator[tuple[str, Chunk]]:
        """Yield each process with its steps."""
        kinds, own = self._kinds, self._others
        start, end, process = self._start[own], self._end[own], self._process[own]
        late = kinds > column(COMMUNICATION)  # a GPU runs behind the host, which may be some steps ahead
        row = self._place(start, process, late)
        begin = self._counted_once(start, end)
        times = np.maximum(end - begin - np.where(late, 0.0, self._by_profiler(begin, end)), 0.0)
        self._add(row, kinds, times)
        self.padded[:, column("compiled")] += self.padded[:, column(RESULTS)] + self.padded[:, column(QUEUED)]
        first, last = self._ends(start, end, process)
        self._add_own(first)
        declared = self._add_declared(start, end)
        gc_in_wait = self._collected_in_waits(start, end, process)
        collected = self._collected(row, times, process)
        numbers = np.flatnonzero(self.padded.any(axis=0)).tolist()
        table = {number: np.ascontiguousarray(self.padded[:, number]) for number in numbers}
        step_rows = self._rows[self._steps]
        each = np.repeat(np.arange(len(self._present)), self.count)
        starts = self._step_start - each * self._width + self._base
        durations, steps = exact(self._events.duration_us[step_rows]), self._events.step[step_rows]
        active = np.bincount(self._process, minlength=len(self._present)) > 0
        for at in np.flatnonzero(active).tolist():
            count, of_steps = int(self.count[at]), slice(self.first[at], self.first[at] + self.count[at])
            before = int(self._row_before[at])
            inside = slice(before + 1, before + 1 + count)
            used = {number: values[inside] for number, values in table.items() if values[inside].any()}
            rows = StepRows(
                starts[of_steps], durations[of_steps], steps[of_steps], self._modes[of_steps],
                PartTable(count, self.padded.shape[1], used), gc_in_wait[inside],
            )  # fmt: skip
            shift = self._base - at * self._width
            yield self._events.node.values[self._present[at]], Chunk(
                rows, self.padded[before].copy(), self.padded[before + count + 1].copy(), float(first[at] + shift),
                float(last[at] + shift), declared.get(at, {}), collected.get(at, {}),
                np.full(count, stretch_of(count), np.int8),
            )  # fmt: skip

    def _add(self, row: Ints, kinds: Ints, times: Floats) -> None:
        width = self.padded.shape[1]
        self.padded += np.bincount(row * width + kinds, times, self.padded.size).reshape(self.padded.shape)

    def _place(self, start: Floats, process: Ints, late: Mask) -> Ints:
        """Return the padded row that each event belongs to.

        A phase belongs to the last step started before it, a wait to the next one started after it, and a collection to
        the iteration it interrupts: to the first step that ends after it.
        """
        ahead = _groups()[3][self._kinds]
        row = np.searchsorted(self._step_start, start + np.where(ahead, 0.0, 0.5), side="right") + ahead + 2 * process
        collections = np.flatnonzero(self._kinds == column(GC))
        if len(collections):
            at = process[collections]
            begun = start[collections] >= self._first_steps()[at]
            holder = np.searchsorted(self._step_end, start[collections], side="right") + 1 + 2 * at
            row[collections] = np.where(begun, holder, self._row_before[at])
        for at in np.unique(process[late]).tolist():
            mine = np.flatnonzero(late & (process == at))
            row[mine] = self._row_before[at] + self._rows_by_number(at, start[mine], self._others[mine])
        return row

    def _first_steps(self) -> Floats:
        """Return the start of the first step of each process; infinite without steps."""
        return np.append(self._step_start, np.inf)[np.where(self.count > 0, self.first, len(self._steps))]

    def _rows_by_number(self, at: int, start: Floats, places: Ints) -> Ints:
        """Return the row of the step with each event's number, of several (one per mode) the last one started; else 0."""
        mine = slice(self.first[at], self.first[at] + self.count[at])
        steps, numbers = self._step_start[mine], self._events.step[self._rows[self._steps[mine]]]
        if not len(steps):
            return np.zeros(len(start), np.int64)
        wanted = self._events.step[self._rows[places]]

        def keys(
            number: Ints, moments: Floats
        ) -> Ints:  # number, then time; 34 bits of µs hold more hours than a window
            since = np.clip(moments - steps[0], 0, (1 << 34) - 1).astype(np.int64)
            found: Ints = (number << 34) + since
            return found

        known = keys(numbers, steps)
        order = np.argsort(known, kind="stable")
        found = order[np.maximum(np.searchsorted(known[order], keys(wanted, start), side="right") - 1, 0)]
        return np.where((numbers[found] == wanted) & (steps[found] <= start), found + 1, 0)

    def _counted_once(self, start: Floats, end: Floats) -> Floats:
        """Return from where on each event counts: what overlaps on one thread is the same time, the earlier one's."""
        begin = start.copy()
        for group in _groups()[:3]:
            rows = np.flatnonzero(group[self._kinds])
            begin[rows] = not_covered_before(start[rows], end[rows])
        return begin

    def _by_profiler(self, start: Floats, end: Floats) -> Any:
        """Return how much of each span was the profiler's own work."""
        return self._profiler.within(start, end) if len(self._own) else 0.0

    def _ends(self, start: Floats, end: Floats, process: Ints) -> tuple[Floats, Floats]:
        """Return the earliest and the latest moment of each loop; imports collect garbage long before it."""
        of_loop = np.flatnonzero(self._kinds != column(GC))
        steps = self._process[self._steps], self._start[self._steps], self._end[self._steps]
        first, last = np.full(len(self._present), np.inf), np.full(len(self._present), -np.inf)
        for at, *edges in (steps, (process[of_loop], start[of_loop], end[of_loop])):
            count = np.bincount(at, minlength=len(first))
            filled = count > 0
            begins = (np.cumsum(count) - count)[filled]
            for edge in edges if len(begins) else ():
                first[filled] = np.minimum(first[filled], np.minimum.reduceat(edge, begins))
                last[filled] = np.maximum(last[filled], np.maximum.reduceat(edge, begins))
        return first, last

    def _add_own(self, first: Floats) -> None:
        """Add the profiler's own work to each iteration, which is the time from the end of a step to the end of the next."""
        if not len(self._own) or not len(self._steps):
            return
        filled = np.flatnonzero(self.count)
        begin = np.roll(self._step_end, 1)
        begin[self.first[filled]] = first[filled]
        rows = np.arange(len(self._steps)) + 2 * self._process[self._steps] + 1
        within = self._profiler.within
        self.padded[rows, column(OWN)] += within(begin, self._step_end)
        self.padded[rows, column(OWN_IN_STEP)] += within(self._step_start, self._end[self._steps])
        after = self._row_before[filled] + self.count[filled] + 1
        until = np.asarray((filled + 1) * self._width - 1, np.float64)
        self.padded[after, column(OWN)] += within(self._step_end[self.first[filled] + self.count[filled] - 1], until)

    def _add_declared(self, others_start: Floats, others_end: Floats) -> dict[int, dict[str, float]]:
        """Add the script's own phases to their iterations, without the recorded parts inside them.

        A phase around a whole step is a frame for the others and no activity of its own.

        Returns:
            Process → name → time.
        """
        at = self._declared[self.count[self._process[self._declared]] > 0]
        steps = self._step_start, self._end[self._steps]
        at = at[~contains_any(self._start[at], self._end[at], steps)] if len(at) else at
        if not len(at):
            return {}
        start, end, process = self._start[at], self._end[at], self._process[at]
        recorded = np.flatnonzero(_groups()[0][self._kinds])
        in_parts = Covered.by(others_start[recorded], others_end[recorded])
        times = without_inner(start, end) - in_parts.within(start, end) - self._by_profiler(start, end)
        times = np.maximum(times, 0.0)
        begins = self._first_steps()
        np.minimum.at(begins, self._process[self._others[recorded]], others_start[recorded])
        holder = np.searchsorted(self._step_end, start, side="right")
        known = start >= begins[process]
        ended = holder >= (self.first + self.count)[process]
        step = np.minimum(np.where(known, holder, self.first[process]), len(self._steps) - 1)
        inside = start >= np.where(ended & known, np.inf, self._step_start[step])
        row = np.where(known, holder + 1 + 2 * process, self._row_before[process])
        self.padded[:, column(parts.DECLARED)] += np.bincount(row, times, len(self.padded))
        self.padded[:, column(DECLARED_IN_STEP)] += np.bincount(row, times * inside, len(self.padded))
        trained = known & ((self._modes[step] == TRAIN) | ended)
        found: dict[int, dict[str, float]] = {}
        codes = self._events.phase.codes[self._rows[at]]
        for which in np.unique(process[trained]).tolist():
            mine = trained & (process == which)
            spent = np.bincount(codes[mine], times[mine])
            found[which] = {self._events.phase.values[code]: float(spent[code]) for code in np.flatnonzero(spent > 0)}
        return found

    def _collected_in_waits(self, start: Floats, end: Floats, process: Ints) -> Floats:
        """Return the collections inside waits, summed by the padded row of the step that waited."""
        waits, collections = np.flatnonzero(self._kinds == column("wait")), np.flatnonzero(self._kinds == column(GC))
        if not len(waits) or not len(collections):
            return np.zeros(len(self.padded))
        holder = np.searchsorted(start[waits], start[collections], side="right") - 1
        inside = (holder >= 0) & (start[collections] < end[waits][np.maximum(holder, 0)])
        collections = collections[inside]
        row = np.searchsorted(self._step_start, start[collections], side="right") + 1 + 2 * process[collections]
        spent = exact(self._events.duration_us[self._rows[self._others[collections]]])
        return np.bincount(row, spent, len(self.padded)).astype(np.float64)

    def _collected(self, row: Ints, times: Floats, process: Ints) -> dict[int, dict[str, float]]:
        """Return process → part of the loop → garbage collections that interrupt it."""
        rows = np.flatnonzero((self._kinds == column(GC)) & (row > self._row_before[process]))
        if not len(rows):
            return {}
        at = process[rows]
        step = self.first[at] + np.minimum(row[rows] - self._row_before[at], self.count[at]) - 1
        modes = np.append(self._modes, np.int8(TRAIN))[np.where(self.count[at] > 0, step, len(self._modes))]
        evaluated = modes != TRAIN
        found: dict[int, dict[str, float]] = {}

        def note(key: str, of: Ints, spent: Floats) -> None:
            for which, total in enumerate(np.bincount(of, spent).tolist()):
                if total > 0:
                    found.setdefault(which, {})[key] = total

        trained = self._others[rows[~evaluated]]
        left = self._end[trained] - self._start[trained]
        kinds = {part.key: self._others[self._kinds == column(part.key)] for part in parts.recorded()}
        for key, frames in {**kinds, parts.DECLARED: self._declared, "between": self._steps}.items():
            covered = Covered.by(self._start[frames], self._end[frames])
            inside = np.minimum(covered.within(self._start[trained], self._end[trained]), left)
            left = left - inside
            note(key, self._process[trained], inside)
        note("outside", self._process[trained], left)
        note("evaluation", at[evaluated], times[rows[evaluated]])
        return found


def joined(chunks: list[Chunk]) -> Chunk:
    """Join chunks of one process in time order; times beyond a window's edge are added to their step."""
    edges = np.flatnonzero(np.any([edge != 0 for chunk in chunks for edge in (chunk.before, chunk.after)], axis=0))
    table = PartTable.concat([PartTable.of(chunk.rows.parts) for chunk in chunks], map(int, edges))
    before, after = chunks[0].before.copy(), np.zeros(len(columns()))
    end = 0  # of the rows so far
    for index, chunk in enumerate(chunks):
        if index and end:
            table.add(end - 1, chunk.before)
        elif index:
            before += chunk.before
        if len(chunk.rows):
            table.add(end, after)
            after = chunk.after.copy()
            end += len(chunk.rows)
        else:
            after = after + chunk.after

    def column(name: str) -> Any:
        return np.concatenate([getattr(chunk.rows, name) for chunk in chunks])

    rows = StepRows(
        column("start"),
        column("duration"),
        column("number"),
        column("mode"),
        table,
        column("gc_in_wait"),
    )
    stretch, sample = np.concatenate([chunk.stretch for chunk in chunks]), None
    if any(chunk.sample is not None for chunk in chunks):
        filled = [chunk for chunk in chunks if len(chunk.rows)]
        sample = StepSample.joined([one.sampled for one in filled], rows)
    late = bool(np.any(np.diff(rows.start) < 0))
    if late:
        order = np.argsort(rows.start, kind="stable")
        rows, stretch = rows[order], stretch[order]
        sample = sample.sorted(order) if sample is not None else None
    declared, collected = _summed([one.declared for one in chunks]), _summed([one.collected for one in chunks])
    first_us, last_us = min(chunk.first_us for chunk in chunks), max(chunk.last_us for chunk in chunks)
    late = late or any(chunk.late for chunk in chunks)
    return Chunk(rows, before, after, first_us, last_us, declared, collected, stretch, sample, late)


def _summed(each: list[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in each:
        for name, spent in one.items():
            total[name] = total.get(name, 0.0) + spent
    return total
