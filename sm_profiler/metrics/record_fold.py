"""Fold the events that describe one occurrence each: a compilation, a checkpoint, a copy, a hang."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping
from typing import Any

import attrs

from sm_profiler.formats import event_names
from sm_profiler.metrics.step_fold import EventWindow

LONGEST_NUMBER = 18  # digits
MAX_RECORDS = 2_000  # kept per process and phase, the longest; all are counted


@attrs.frozen
class Record:
    """One occurrence.

    Attributes:
        process: process that recorded it, `algo-1-0`.
        name: name of the event.
        start: seconds since the epoch.
        seconds: duration; 0 for an instant.
        step: step during which it happened, -1 if unknown.
        args: what the hook noted about it.
    """

    process: str
    name: str
    start: float
    seconds: float
    step: int
    args: Mapping[str, Any]

    @property
    def end(self) -> float:
        """End, seconds since the epoch."""
        return self.start + self.seconds

    @property
    def calls(self) -> int:
        """Number of calls that it sums up."""
        calls = self.args.get("calls", 1)
        return calls if isinstance(calls, int) and calls > 0 else 1


@attrs.frozen
class Records:
    """The occurrences of one phase in all processes, in time order.

    Attributes:
        longest: the longest `MAX_RECORDS` of each process.
        count: number of all of them.
        seconds: process → their time in total.
    """

    longest: tuple[Record, ...] = ()
    count: int = 0
    seconds: Mapping[str, float] = attrs.field(factory=dict)

    def of(self, process: str) -> tuple[Record, ...]:
        """Return the records of one process, in time order."""
        return tuple(record for record in self.longest if record.process == process)


def rename_processes(found: Mapping[str, Records], names: Mapping[str, str]) -> dict[str, Records]:
    """Return the records with other names for some processes, which several of them may share."""
    renamed = {}
    for phase, records in found.items():
        seconds: dict[str, float] = {}
        for process, spent in records.seconds.items():
            name = names.get(process, process)
            seconds[name] = seconds.get(name, 0.0) + spent
        longest = tuple(attrs.evolve(one, process=names.get(one.process, one.process)) for one in records.longest)
        renamed[phase] = Records(longest, records.count, seconds)
    return renamed


# One kept event: duration and start in µs, then step, name and args as text; the longest are the largest tuples.
_Row = tuple[float, float, int, str, str]


class RecordFold:
    """Collects the events of `event_names.RECORDED`; memory is bounded by processes, phases and MAX_RECORDS."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], list[_Row]] = {}
        self._count: dict[tuple[str, str], int] = {}
        self._spent: dict[tuple[str, str], float] = {}

    def update(self, window: EventWindow) -> None:
        """Add the events of one window."""
        events = window.new_events
        if not len(events):
            return
        for phase in event_names.RECORDED:
            found = events.phase.mask(phase)
            if not found.any():
                continue
            rows = events[found]
            for process, numbers in rows.node.groups():
                own = rows[numbers]
                names = [own.name.values[code] for code in own.name.codes]
                args = [own.args.values[code] for code in own.args.codes]
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

    def result(self) -> dict[str, Records]:
        """Return phase → records; a phase that was not recorded is absent."""
        found: dict[str, Records] = {}
        for phase in event_names.RECORDED:
            keys = sorted(key for key in self._rows if key[1] == phase)
            if not keys:
                continue
            records = [_record(process, row) for process, _ in keys for row in self._rows[process, phase]]
            records.sort(key=lambda record: (record.start, record.process))
            seconds = {process: self._spent[process, phase] / 1e6 for process, _ in keys}
            found[phase] = Records(tuple(records), sum(self._count[key] for key in keys), seconds)
        return found


def _number(text: str) -> int | float:
    """Return a whole number; a float if it is too long to be converted to one later."""
    return int(text) if len(text) <= LONGEST_NUMBER else float(text)


def _record(process: str, row: _Row) -> Record:
    duration, start, step, name, text = row
    return record_of(process, start / 1e6, duration / 1e6, step, name, text)


def record_of(
    process: str, start: float, seconds: float, step: int, name: str, text: str
) -> Record:  # one argument a field
    """Return a record with its arguments, which are empty if the text is no JSON object."""
    try:
        args = json.loads(text, parse_int=_number)
    except (ValueError, RecursionError):
        args = {}
    return Record(process, name, start, seconds, step, args if isinstance(args, dict) else {})
