"""The patient way through a trace: record by record, every kind of record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from sm_profiler.formats import event_names
from sm_profiler.formats.outcome import LAST_US, Tally
from sm_profiler.formats.process_record import understood
from sm_profiler.formats.trace_rows import (
    NO_ARGUMENTS,
    Arguments,
    Head,
    Key,
    LooseEnd,
    OpenEvent,
    TraceRows,
    instant_arguments,
    parse_arguments,
    tables_of,
    whole,
)

UNKNOWN_PHASE = "Unknown"
START_KEY = "start_time_since_epoch_in_micros"
BROKEN = (msgspec.MsgspecError, ValueError, RecursionError)
ABSOLUTE_US = 1e14  # times after 1973 in microseconds since the epoch; no trace is that long


class Event(msgspec.Struct, gc=False):
    """One record of a trace as it stands in the file; NaN where it has no time or duration."""

    ph: str = ""
    name: str | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: float = math.nan
    dur: float = math.nan
    args: msgspec.Raw = msgspec.Raw(b"")
    s: str | None = None


class Announcements:
    """What the metadata records of a file say.

    Attributes:
        base_us: what times count from; None where no record says so.
        metadata: our own records.
        count: how many records there were.
    """

    def __init__(self) -> None:
        self.base_us: float | None = None
        self.metadata: list[dict[str, Any]] = []
        self.count = 0
        self._phases: dict[Any, str] = {}

    def take(self, event: Event, node: str, *, may_change: bool = True, may_start: bool = True) -> bool:
        """Take one record.

        Args:
            event: the record.
            node: the node of the file.
            may_change: whether it may say something else than an earlier record.
            may_start: whether it may say what times count from.

        Returns:
            Whether it said only what it may; if not, nothing of it was taken.

        Raises:
            msgspec.MsgspecError: its arguments hold a number that is out of every range, or are nested too deeply.
        """
        args = msgspec.json.decode(event.args) if bytes(event.args) else {}
        if not isinstance(args, dict):
            args = {}
        if event.name == "process_name":
            name, start = args.get("name"), args.get(START_KEY)
            if isinstance(name, str):
                if not may_change and self._phases.get(event.pid, name) != name:
                    return False
                self._phases[event.pid] = name
            if isinstance(start, (int, float)) and not isinstance(start, bool) and 0 <= start < LAST_US:
                if self.base_us != start and not (may_start and (may_change or self.base_us is None)):
                    return False
                self.base_us = float(start)
        elif event.name and event.name.startswith(event_names.OWN):
            self.metadata.append(
                {"name": event.name, "ph": "M", "pid": event.pid, "args": understood(args), "node": node}
            )
        self.count += 1
        return True

    def phase(self, pid: Any) -> str:
        """The phase that a record's `pid` stands for."""
        phase = self._phases.get(pid)
        return phase if phase is not None else pid if isinstance(pid, str) else UNKNOWN_PHASE


def head_of(name: str | None, phase: str, pid: Any, tid: Any) -> Head:
    """The head of a record."""
    track, thread = whole(pid), whole(tid)
    return name or "", phase, -1 if track is None else track, -1 if thread is None else thread


class Fold:
    """Takes a file's events one by one."""

    def __init__(self, node: str, kind: str, start_us: float, tally: Tally) -> None:
        self.node, self.kind, self.base_us, self.tally = node, kind, start_us, tally
        self.announcements = Announcements()
        self._later = Announcements()
        self._start: list[float] = []
        self._duration: list[float] = []
        self._head: list[int] = []
        self._argument: list[int] = []
        self._heads: dict[Head, int] = {}
        self._argument_of: dict[bytes, int] = {}
        self._arguments: list[Arguments] = []
        self._open: dict[Key, list[OpenEvent]] = {}
        self._loose: list[LooseEnd] = []

    def set_base(self, base_ns: float, events: Sequence[Event]) -> None:
        """Take over the start time that a trace of PyTorch's profiler names, unless its times are absolute already."""
        if any(event.ph == "X" and event.ts >= ABSOLUTE_US for event in events[:1000]):
            self.base_us = 0
        elif base_ns > 0:
            self.base_us = base_ns / 1000

    def add(self, events: Sequence[Event]) -> None:
        """Take the events of the file, once."""
        for event in events:
            if event.ph == "M":
                with suppress(*BROKEN):  # counted below
                    self._later.take(event, self.node)
        take = {"X": self._whole, "M": self._announce, "B": self._begin, "E": self._end, "i": self._instant}
        take["I"] = self._instant
        for event in events:
            handle = take.get(event.ph)
            # Counters, flows and asynchronous events are no spans of time; an object without `ph` is no event.
            if handle is None:
                continue
            try:
                handle(event)
            except BROKEN:
                self.tally.drop("no event of a known form")

    def rows(self) -> TraceRows:
        """All that was taken."""
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

    def _announce(self, event: Event) -> None:
        self.announcements.take(event, self.node)
        if self.announcements.base_us is not None:
            self.base_us = self.announcements.base_us

    def _whole(self, event: Event) -> None:
        if math.isnan(event.ts) or math.isnan(event.dur) or event.name is None:
            self.tally.drop("no name, time or duration")
            return
        self._put(event, event.ts + self.base_us, event.dur, bytes(event.args))

    def _instant(self, event: Event) -> None:
        if math.isnan(event.ts):
            self.tally.drop("no name, time or duration")
            return
        self._put(event, event.ts + self.base_us, 0, instant_arguments(bytes(event.args), event.s or ""))

    def _begin(self, event: Event) -> None:
        start = self._time(event)
        if start is not None:
            key, args = self._key(event), bytes(event.args)
            parse_arguments(args)
            self._open.setdefault(key, []).append(OpenEvent(key, self._head_of(event), start, args.decode()))

    def _end(self, event: Event) -> None:
        end = self._time(event)
        if end is None:
            return
        key, args = self._key(event), bytes(event.args)
        parse_arguments(args)
        stack = self._open.get(key)
        if not stack:
            self._loose.append(LooseEnd(key, end, args.decode()))
            return
        begin = stack.pop()
        if end < begin.start_us:
            self.tally.drop("begin and end that end before they begin", 2)
            return
        self._append(begin.start_us, end - begin.start_us, begin.head, args or begin.args.encode())

    def _time(self, event: Event) -> float | None:
        at = event.ts + self.base_us
        if not 0 <= at < LAST_US:
            self.tally.drop("time or duration out of range")
            return None
        return at

    def _put(self, event: Event, start: float, duration: float, args: bytes) -> None:
        if not (0 <= start < LAST_US and 0 <= duration < LAST_US and start + duration < LAST_US):
            self.tally.drop("negative duration" if duration < 0 else "time or duration out of range")
            return
        self._append(start, duration, self._head_of(event), args)

    def _append(self, start: float, duration: float, head: Head, args: bytes) -> None:
        number = self._argument_of.get(args)
        if number is None:
            parsed = parse_arguments(args) if args else NO_ARGUMENTS
            number = self._argument_of[args] = len(self._arguments)
            self._arguments.append(parsed)
        self._start.append(start)
        self._duration.append(duration)
        self._head.append(self._heads.setdefault(head, len(self._heads)))
        self._argument.append(number)

    def _phase(self, event: Event) -> str:
        phase = self.announcements.phase(event.pid)
        # A phase may be announced after its first event.
        return phase if phase != UNKNOWN_PHASE else self._later.phase(event.pid)

    def _head_of(self, event: Event) -> Head:
        return head_of(event.name, self._phase(event), event.pid, event.tid)

    def _key(self, event: Event) -> Key:
        return self._phase(event), event.tid if isinstance(event.tid, (int, str)) else 0
