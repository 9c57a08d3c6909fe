"""Fold the events that describe one occurrence each: a compilation, a checkpoint, a copy, a hang."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import attrs
import msgspec
import numpy as np

from sm_profiler.formats.recorded import KINDS, Recorded, names
from sm_profiler.metrics.step_fold import EventWindow
from sm_profiler.metrics.step_sample import Moved

LONGEST_NUMBER = 18  # digits
MAX_RECORDS = 2_000  # kept per process and phase, the longest; all are counted

Kind = TypeVar("Kind", bound=Recorded)
Kind_co = TypeVar("Kind_co", bound=Recorded, covariant=True)


@attrs.frozen
class Record(Generic[Kind_co]):
    """One occurrence.

    Attributes:
        process: process that recorded it, `algo-1-0`.
        name: name of the event.
        start: seconds since the epoch.
        seconds: duration; 0 for an instant.
        step: step during which it happened, -1 if unknown.
        args: what the hook recorded about it.
    """

    process: str
    name: str
    start: float
    seconds: float
    step: int
    args: Kind_co

    @property
    def end(self) -> float:
        """End, seconds since the epoch."""
        return self.start + self.seconds

    @property
    def calls(self) -> int:
        """Number of calls that it sums up."""
        return max(self.args.calls or 1, 1)


@attrs.frozen
class Records(Generic[Kind_co]):
    """The occurrences of one phase in all processes, in time order.

    Attributes:
        longest: the longest `MAX_RECORDS` of each process.
        count: number of all of them.
        seconds: process → their time in total.
    """

    longest: tuple[Record[Kind_co], ...] = ()
    count: int = 0
    seconds: Mapping[str, float] = attrs.field(factory=dict)

    def of(self, process: str) -> tuple[Record[Kind_co], ...]:
        """Return the records of one process, in time order."""
        return tuple(record for record in self.longest if record.process == process)


def move_with_steps(found: Mapping[str, Records[Any]], moved: Mapping[str, Moved]) -> dict[str, Records[Any]]:
    """Return the records at the moments to which the steps that they happened in, or between, have moved."""

    def of(records: Records[Any]) -> Records[Any]:
        own: dict[str, list[Record[Any]]] = {}
        for one in records.longest:
            own.setdefault(one.process, []).append(one)
        for process in own.keys() & moved.keys():
            starts = moved[process].seconds(np.asarray([one.start for one in own[process]], np.float64)).tolist()
            own[process] = [attrs.evolve(one, start=at) for one, at in zip(own[process], starts, strict=True)]
        longest = sorted((one for each in own.values() for one in each), key=lambda one: (one.start, one.process))
        return attrs.evolve(records, longest=tuple(longest))

    return {phase: of(records) for phase, records in found.items()} if moved else dict(found)


def since(found: Mapping[str, Records[Any]], begin_s: float) -> dict[str, Records[Any]]:
    """Return the records from a moment on; a process has the time of all its records if it has some after that moment."""
    later = {}
    for phase, records in found.items():
        longest = tuple(one for one in records.longest if one.start >= begin_s)
        names = {one.process for one in longest}
        seconds = {name: spent for name, spent in records.seconds.items() if name in names}
        later[phase] = Records(longest, records.count - len(records.longest) + len(longest), seconds)
    return later


def rename_processes(found: Mapping[str, Records[Any]], new_names: Mapping[str, str]) -> dict[str, Records[Any]]:
    """Return the records with other names for some processes, which several of them may share."""
    renamed = {}
    for phase, records in found.items():
        seconds: dict[str, float] = {}
        for process, spent in records.seconds.items():
            name = new_names.get(process, process)
            seconds[name] = seconds.get(name, 0.0) + spent
        longest = tuple(attrs.evolve(one, process=new_names.get(one.process, one.process)) for one in records.longest)
        renamed[phase] = Records(longest, records.count, seconds)
    return renamed


# One kept event: duration and start in µs, then step, name and args as text; the longest are the largest tuples.
_Row = tuple[float, float, int, str, str]


class RecordFold:
    """Collects the events of the classes in `formats.recorded`; memory is bounded by processes, phases and MAX_RECORDS."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], list[_Row]] = {}
        self._count: dict[tuple[str, str], int] = {}
        self._spent: dict[tuple[str, str], float] = {}

    def update(self, window: EventWindow) -> None:
        """Add the events of one window."""
        events = window.new_events
        if not len(events):
            return
        for phase in KINDS:
            found = events.phase.mask(phase)
            if not found.any():
                continue
            rows = events[found]
            for process, numbers in rows.node.groups():
                own = rows[numbers]
                names = [own.name.values[code] for code in own.name.codes]
                texts = (own.args.values[code] for code in own.args.codes)
                args = list(map(_with_workers, texts, own.num_workers.tolist()))
                columns = (own.duration_us.tolist(), own.start_us.tolist(), own.step.tolist(), names, args)
                self._add((process, phase), list(zip(*columns, strict=True)))

    def _add(
        self, key: tuple[str, str], rows: list[_Row], count: int | None = None, spent: float | None = None
    ) -> None:
        self._count[key] = self._count.get(key, 0) + (len(rows) if count is None else count)
        self._spent[key] = self._spent.get(key, 0.0) + (sum(row[0] for row in rows) if spent is None else spent)
        kept = self._rows.setdefault(key, [])
        kept.extend(rows)
        if len(kept) > MAX_RECORDS:
            self._rows[key] = heapq.nlargest(MAX_RECORDS, kept)

    def merge(self, other: RecordFold) -> None:
        """Add the events of a fold of other minutes or nodes."""
        for key, rows in other._rows.items():
            self._add(key, rows, other._count[key], other._spent[key])

    def result(self) -> dict[str, Records[Recorded]]:
        """Return phase → records; a phase that was not recorded is absent."""
        found: dict[str, Records[Recorded]] = {}
        for phase, kind in KINDS.items():
            keys = sorted(key for key in self._rows if key[1] == phase)
            if not keys:
                continue
            records = [_record(kind, process, row) for process, _ in keys for row in self._rows[process, phase]]
            records.sort(key=lambda record: (record.start, record.process))
            seconds = {process: self._spent[process, phase] / 1e6 for process, _ in keys}
            found[phase] = Records(tuple(records), sum(self._count[key] for key in keys), seconds)
        return found


def _record(kind: type[Kind], process: str, row: _Row) -> Record[Kind]:
    duration, start, step, name, text = row
    return Record(process, name, start / 1e6, duration / 1e6, step, read_args(kind, text))


def read_args(kind: type[Kind], text: str) -> Kind:
    """Return the arguments of an event, which comes from a file that anyone may have written.

    What is missing or damaged has its default: a field, or an element of a list.
    """
    try:
        found = json.loads(text, parse_int=_number, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        return kind()
    known = {name: found[name] for name in names(kind) if name in found} if isinstance(found, dict) else {}
    for name, value in () if _fits(kind, known) else tuple(known.items()):
        if isinstance(value, list):
            known[name] = [element for element in value if _fits(kind, {name: [element]})]
        if not _fits(kind, {name: known[name]}):
            del known[name]
    return msgspec.convert(known, kind)


def _fits(kind: type[Recorded], args: dict[str, Any]) -> bool:
    try:
        msgspec.convert(args, kind)
    except (msgspec.ValidationError, ValueError):  # a text that is no Unicode
        return False
    return True


def _with_workers(text: str, workers: int) -> str:
    """Return arguments with the number that readers of files keep in a column."""
    if workers < 0:
        return text
    return f'{{"num_workers": {workers}, {text[1:]}' if len(text) > len("{}") else f'{{"num_workers": {workers}}}'


def _number(text: str) -> int | float | None:
    """Return a whole number; a float if it is too long to be converted to one later."""
    return int(text) if len(text) <= LONGEST_NUMBER else _finite(text)


def _finite(text: str) -> float | None:
    return value if math.isfinite(value := float(text)) else None
