"""Conversion of a trace record by record, for every kind of record, and events that begin in one file and end in another."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import attrs
import msgspec
import numpy as np

from sm_profiler.formats import event_names
from sm_profiler.formats.outcome import LAST_US, READ, REPAIRED, Outcome, Tally
from sm_profiler.formats.trace_rows import (
    NO_ARGUMENTS,
    Arguments,
    Head,
    Key,
    LooseEnd,
    OpenEvent,
    TraceRows,
    instant_arguments,
    join_loose,
    parse_arguments,
    tables_of,
    whole,
)

NUMBERS = frozenset({
    "batch_size", "calls_per_step", "clock_error_us", "clock_jumps", "clock_offset_us", "container_us", "dropped",
    "loaded_us", "memory_total", "padding", "padding_of_all", "phases_every", "pid", "process_us", "rank",
    "samples_per_step", "start_us", "end_code", "end_step", "end_us", "oom_kills",
})  # fmt: skip
TEXTS = frozenset({"end", "end_error", "framework", "host", "instance_type", "node", "version"})
COLLECTORS, IDENTITY, SIZES = "collectors", "identity", "input_sizes"
_LARGEST = 2**63

UNKNOWN_PHASE = "Unknown"
START_KEY = "start_time_since_epoch_in_micros"
BROKEN = (msgspec.MsgspecError, ValueError, RecursionError)
ABSOLUTE_US = 1e14  # times after 1973 in microseconds since the epoch; no trace is that long
MAX_SIZES = 1000  # of inputs, of a process
MAX_METADATA = 1000  # own metadata records of a file
MAX_UNJOINED = 100_000  # begins without an end, and ends without a begin, of a file

# Numbers of 64 bits at most: hashes of longer ones can be chosen to be equal, which makes dictionaries quadratic.
_Number = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


def validated(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the expected type, so that readers need not check them.

    Unknown arguments, which later versions may add, are kept if they are plain values.
    """
    return {name: value for name, given in args.items() if (value := _value(name, given)) is not None or given is None}


def _value(name: str, given: Any) -> Any:
    if name in {COLLECTORS, IDENTITY}:
        return (
            {key: state for key, state in given.items() if isinstance(state, str)} if isinstance(given, dict) else None
        )
    if name == SIZES:
        return given if isinstance(given, list) and len(given) <= MAX_SIZES and all(map(_is_size, given)) else None
    is_number = _is_number(given)
    if name in NUMBERS:
        return given if is_number else None
    if name in TEXTS:
        return given if isinstance(given, str) else None
    return given if is_number or isinstance(given, (str, bool)) else None


def _is_number(given: Any) -> bool:
    return isinstance(given, (int, float)) and not isinstance(given, bool) and -_LARGEST < given < _LARGEST


def _is_size(given: Any) -> bool:
    """Return whether a value is a step and a number of elements, of which there is one at least: ratios stay finite."""
    return isinstance(given, list) and len(given) == 2 and all(map(_is_number, given)) and given[1] >= 1


class TraceRecord(msgspec.Struct, gc=False):
    """One record of a trace as read from its file; NaN if it has no time or duration."""

    ph: str = ""
    name: str | None = None
    pid: _Number | str | float | None = None
    tid: _Number | str | float | None = None
    ts: float = math.nan
    dur: float = math.nan
    args: msgspec.Raw = msgspec.Raw(b"")
    s: str | None = None


class Announcements:
    """Content of the metadata records of a file.

    Attributes:
        base_us: origin of the times, microseconds since the epoch; None if no record names it.
        metadata: sm-profiler's own records, the first MAX_METADATA.
        count: number of records.
        lost: number of own records beyond MAX_METADATA.
    """

    def __init__(self) -> None:
        self.base_us: float | None = None
        self.metadata: list[dict[str, Any]] = []
        self.count = self.lost = 0
        self._phases: dict[Any, str] = {}

    def take(self, record: TraceRecord, node: str, *, may_change: bool = True, may_start: bool = True) -> bool:
        """Take one record.

        Args:
            may_change: accept a record that contradicts an earlier one.
            may_start: accept an origin of the times.

        Returns:
            Whether the record was accepted; if not, nothing has changed.

        Raises:
            msgspec.MsgspecError: its arguments hold a number out of range, or are nested too deeply.
        """
        args = msgspec.json.decode(record.args) if bytes(record.args) else {}
        if not isinstance(args, dict):
            args = {}
        if record.name == "process_name":
            name, start = args.get("name"), args.get(START_KEY)
            if isinstance(name, str):
                if not may_change and self._phases.get(record.pid, name) != name:
                    return False
                self._phases[record.pid] = name
            if isinstance(start, (int, float)) and not isinstance(start, bool) and 0 <= start < LAST_US:
                if self.base_us != start and not (may_start and (may_change or self.base_us is None)):
                    return False
                self.base_us = float(start)
        elif record.name and record.name.startswith(event_names.OWN):
            if len(self.metadata) < MAX_METADATA:
                args = validated(args)
                self.metadata.append(
                    {"name": record.name, "ph": "M", "pid": whole(record.pid), "args": args, "node": node}
                )
            else:
                self.lost += 1
        self.count += 1
        return True

    def phase(self, pid: Any) -> str:
        """Return the phase that a record's `pid` denotes."""
        phase = self._phases.get(pid)
        return phase if phase is not None else pid if isinstance(pid, str) else UNKNOWN_PHASE


def head_of(name: str | None, phase: str, pid: Any, tid: Any) -> Head:
    track, thread = whole(pid), whole(tid)
    return name or "", phase, -1 if track is None else track, -1 if thread is None else thread


class RecordConverter:
    """Rows of a file, built from its records one by one: `prepare` sees all of them, then `add` converts them.

    Attributes:
        most: number of different names and arguments that the file may have.
    """

    def __init__(self, node: str, kind: str, start_us: float, tally: Tally, most: int) -> None:
        self.node, self.kind, self.base_us, self.tally, self.most = node, kind, start_us, tally, most
        self.announcements = Announcements()
        self._later = Announcements()
        self._start, self._duration = array("d"), array("d")
        self._head, self._argument = array("i"), array("i")
        self._heads: dict[Head, int] = {}
        self._argument_of: dict[bytes, int] = {}
        self._arguments: list[Arguments] = []
        self._open: dict[Key, list[OpenEvent]] = {}
        self._loose: list[LooseEnd] = []
        self._unjoined = 0
        self._without_phase = 0
        self._ends_without_phase = False

    def set_base(self, base_ns: float, *, absolute: bool) -> None:
        """Set the origin of the times of a trace of PyTorch's profiler.

        Args:
            base_ns: the origin that the file names, nanoseconds since the epoch; 0 if it names none.
            absolute: the times count from the epoch in spite of it.
        """
        if absolute:
            self.base_us = 0
        elif base_ns > 0:
            self.base_us = base_ns / 1000

    def prepare(self, records: Iterable[TraceRecord]) -> None:
        """Learn the phases of a file, which may be announced after their first event."""
        for record in records:
            if record.ph == "M":
                with suppress(*BROKEN):  # `add` counts them
                    self._later.take(record, self.node)

    def add(self, records: Sequence[TraceRecord]) -> None:
        take = {"X": self._whole, "M": self._announce, "B": self._begin, "E": self._end}
        take["i"] = take["I"] = self._instant
        for record in records:
            handle = take.get(record.ph)
            # Counters, flows and asynchronous events are not spans of time.
            if handle is None:
                self._without_phase += not record.ph
                continue
            try:
                handle(record)
            except BROKEN:
                self.tally.drop("no event of a known form")
        if records:
            self._ends_without_phase = not records[-1].ph

    def close(self) -> None:
        # TensorFlow ends its traces with an empty object.
        self.tally.drop("no event of a known form", self._without_phase - self._ends_without_phase)
        self.tally.drop(f"more than {MAX_METADATA} metadata records", self.announcements.lost)

    def rows(self) -> TraceRows:
        left = [event for stack in self._open.values() for event in stack]
        numbers, others = tables_of(self._arguments)
        return TraceRows(
            np.array(self._start, np.float64),
            np.array(self._duration, np.float64),
            np.array(self._head, np.int32),
            np.array(self._argument, np.int32),
            tuple(self._heads),
            numbers,
            others,
            self.node,
            self.kind,
            tuple(self.announcements.metadata),
            tuple(self._loose),
            tuple(left),
        )

    def _announce(self, record: TraceRecord) -> None:
        self.announcements.take(record, self.node)
        if self.announcements.base_us is not None:
            self.base_us = self.announcements.base_us

    def _whole(self, record: TraceRecord) -> None:
        if math.isnan(record.ts) or math.isnan(record.dur) or record.name is None:
            self.tally.drop("no name, time or duration")
            return
        self._put(record, record.ts + self.base_us, record.dur, bytes(record.args))

    def _instant(self, record: TraceRecord) -> None:
        if math.isnan(record.ts):
            self.tally.drop("no name, time or duration")
            return
        self._put(record, record.ts + self.base_us, 0, instant_arguments(bytes(record.args), record.s or ""))

    def _begin(self, record: TraceRecord) -> None:
        start = self._time(record)
        if start is not None:
            key, args = self._key(record), bytes(record.args)
            parse_arguments(args)
            if not self._may_wait():
                return
            self._open.setdefault(key, []).append(OpenEvent(key, self._head_of(record), start, args.decode()))

    def _end(self, record: TraceRecord) -> None:
        end = self._time(record)
        if end is None:
            return
        key, args = self._key(record), bytes(record.args)
        parse_arguments(args)
        stack = self._open.get(key)
        if not stack:
            if self._may_wait():
                self._loose.append(LooseEnd(key, end, args.decode()))
            return
        begin = stack.pop()
        self._unjoined -= 1
        if end < begin.start_us:
            self.tally.drop("begin and end that end before they begin", 2)
            return
        self._append(begin.start_us, end - begin.start_us, begin.head, args or begin.args.encode())

    def _may_wait(self) -> bool:
        """Return whether one more begin or end may wait for its counterpart; if not, it is counted as lost."""
        if self._unjoined >= MAX_UNJOINED:
            self.tally.drop(f"more than {MAX_UNJOINED} begins and ends without a counterpart")
            return False
        self._unjoined += 1
        return True

    def _time(self, record: TraceRecord) -> float | None:
        at = record.ts + self.base_us
        if not 0 <= at < LAST_US:
            self.tally.drop("time or duration out of range")
            return None
        return at

    def _put(self, record: TraceRecord, start: float, duration: float, args: bytes) -> None:
        if not (0 <= start < LAST_US and 0 <= duration < LAST_US and start + duration < LAST_US):
            self.tally.drop("negative duration" if duration < 0 else "time or duration out of range")
            return
        self._append(start, duration, self._head_of(record), args)

    def _append(self, start: float, duration: float, head: Head, args: bytes) -> None:
        number = self._argument_of.get(args)
        is_new = (number is None) + (head not in self._heads)
        if is_new and len(self._arguments) + len(self._heads) + is_new > self.most:
            self.tally.drop(f"more than {self.most} different names and arguments")
            return
        if number is None:
            parsed = parse_arguments(args) if args else NO_ARGUMENTS
            number = self._argument_of[args] = len(self._arguments)
            self._arguments.append(parsed)
        self._start.append(start)
        self._duration.append(duration)
        self._head.append(self._heads.setdefault(head, len(self._heads)))
        self._argument.append(number)

    def _phase(self, record: TraceRecord) -> str:
        phase = self.announcements.phase(record.pid)
        return phase if phase != UNKNOWN_PHASE else self._later.phase(record.pid)

    def _head_of(self, record: TraceRecord) -> Head:
        return head_of(record.name, self._phase(record), record.pid, record.tid)

    def _key(self, record: TraceRecord) -> Key:
        thread = record.tid if isinstance(record.tid, str) else whole(record.tid)
        return self._phase(record), 0 if thread is None else thread


class Streams:
    """Open events of each stream of files (a node's files of one kind).

    Attributes:
        failed: ends had no begin, or begins were dropped.
    """

    def __init__(self) -> None:
        self.failed = False
        self._open: dict[tuple[str, str], dict[Key, list[OpenEvent]]] = {}

    def push(self, node: str, kind: str, event: OpenEvent) -> None:
        self._open.setdefault((node, kind), {}).setdefault(event.key, []).append(event)

    def left(self) -> Iterator[tuple[str, str, OpenEvent]]:
        """Yield all open events, each with node and kind."""
        for (node, kind), stacks in self._open.items():
            for stack in stacks.values():
                for event in stack:
                    yield node, kind, event

    def take(self, rows: TraceRows, outcome: Outcome) -> tuple[list[TraceRows], Outcome]:
        """Return the rows of the stream's next file, events joined with earlier files first, and its outcome."""
        if not (rows.loose_ends or rows.open_events):
            return [rows], outcome
        stacks = self._open.setdefault((rows.node, rows.kind), {})
        joined, backwards, unmatched = join_loose(rows, stacks)
        reasons = [outcome.reason] if outcome.reason else []
        if unmatched:
            reasons.append(f"ends without a begin: {unmatched}")
        if backwards:
            reasons.append(f"ends before their begin: {len(backwards)}")
        dropped = _forget_oldest(stacks) if rows.open_events else 0
        if dropped:
            reasons.append(f"begins without an end: {dropped}")
        lost = unmatched + 2 * len(backwards) + dropped
        if lost:
            self.failed = True
            status = REPAIRED if outcome.status == READ else outcome.status
            outcome = attrs.evolve(outcome, status=status, lost=outcome.lost + lost, reason="; ".join(reasons))
        return ([joined] if joined else []) + [rows], outcome


def _forget_oldest(stacks: dict[Key, list[OpenEvent]]) -> int:
    """Drop the oldest open events beyond MAX_UNJOINED, and return their number."""
    for key in [key for key, stack in stacks.items() if not stack]:
        del stacks[key]
    count = dropped = sum(map(len, stacks.values()))
    while count > MAX_UNJOINED:
        oldest = next(iter(stacks))
        count -= len(stacks.pop(oldest))
    return dropped - count
