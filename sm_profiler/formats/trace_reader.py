"""Trace files of every kind: bytes to rows."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import attrs
import msgspec
import numpy as np

from sm_profiler.formats.outcome import LAST_US, REFUSED, Outcome, Tally
from sm_profiler.formats.salvage import clean, objects
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
    whole,
)

OWN_METADATA = "sm_profiler/"
UNKNOWN_PHASE = "Unknown"
START_KEY = "start_time_since_epoch_in_micros"
MOST_BYTES = 4 << 30  # a gzip file may not become larger than this
_BROKEN = (msgspec.MsgspecError, ValueError, RecursionError)
_ABSOLUTE_US = 1e14  # times after 1973 in microseconds since the epoch; no trace is that long


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: int | float | None = None
    dur: int | float | None = None
    args: msgspec.Raw = msgspec.Raw(b"")
    s: str | None = None
    cat: str | None = None


class _Document(msgspec.Struct, gc=False):
    events: list[_Event] = msgspec.field(name="traceEvents")
    base_ns: int | float = msgspec.field(name="baseTimeNanoseconds", default=0)


_ARRAY = msgspec.json.Decoder(list[_Event])
_DOCUMENT = msgspec.json.Decoder(_Document)
_ONE = msgspec.json.Decoder(_Event)


def read_trace(
    data: bytes, node: str, kind: str, start_us: float = 0, *, approximate: bool = False
) -> tuple[TraceRows, Outcome]:
    """Read a trace: an array of events or an object with `traceEvents`, plain or compressed with gzip.

    Args:
        data: the file.
        node: node and process as readers show them.
        kind: which timeline it is.
        start_us: what times count from, in microseconds since the epoch, where the file itself does not say.
        approximate: `start_us` is no more than a guess.

    Returns:
        Its events in their order, and what became of it.  Never raises for what stands in the file.
    """
    tally = Tally()
    if data[:2] == b"\x1f\x8b":
        data = _unpack(data, tally)
    fold = _Fold(node, kind, start_us, tally)
    if not data.strip():
        tally.mend("empty")
        return fold.rows(), attrs.evolve(tally.close(0), status=REFUSED)
    try:
        if data.lstrip()[:1] == b"{":
            document = _DOCUMENT.decode(data)
            fold.set_base(document.base_ns, document.events)
            events: Iterable[_Event] = document.events
        else:
            events = _ARRAY.decode(data)
    except _BROKEN:
        events = _salvage(data, fold, tally)
    fold.add(events)
    rows = fold.rows()
    if approximate and fold.base_us == start_us:
        tally.mend("start time unknown: taken from its folder")
    used = len(rows.start_us) + len(rows.loose_ends) + len(rows.open_events) + fold.announced
    return rows, tally.close(used)


def _unpack(data: bytes, tally: Tally) -> bytes:
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    parts: list[bytes] = []
    size, at = 0, 0
    try:
        while at < len(data) and not unpacker.eof and size <= MOST_BYTES:
            part = unpacker.decompress(data[at : at + 65536])
            at += 65536
            size += len(part)
            parts.append(part)
    except zlib.error:
        tally.mend("compressed data damaged")
    else:
        if size > MOST_BYTES:
            tally.mend("longer than 4 GB, the rest is left out")
        elif not unpacker.eof:
            tally.mend("compressed data cut off")
    return b"".join(parts)


def _salvage(data: bytes, fold: _Fold, tally: Tally) -> list[_Event]:
    text = clean(data, tally)
    start = 0
    if text.lstrip()[:1] == "{":
        opening = text.find('"traceEvents"')
        bracket = text.find("[", opening) if opening >= 0 else -1
        if bracket >= 0:
            start = bracket + 1
    events = []
    closing = ""
    for item in objects(text, tally, start):
        try:
            events.append(_ONE.decode(item))
        except _BROKEN:
            tally.drop("no event of a known form")
        closing = item
    if closing and text.rstrip()[-1:] not in {"]", "}"}:
        tally.mend("array not closed")
    if start and (position := text.find('"baseTimeNanoseconds"')) >= 0:
        number = text[position + 21 : position + 60].lstrip(" :").split(",")[0].strip("} \n")
        fold.set_base(float(number) if number.isdigit() else 0, events)
    return events


class _Fold:
    """Takes a file's events one by one."""

    def __init__(self, node: str, kind: str, start_us: float, tally: Tally) -> None:
        self.node, self.kind, self.base_us, self.tally = node, kind, start_us, tally
        self.announced = 0
        self._start: list[float] = []
        self._duration: list[float] = []
        self._head: list[int] = []
        self._argument: list[int] = []
        self._heads: dict[Head, int] = {}
        self._argument_of: dict[bytes, int] = {}
        self._arguments: list[Arguments] = []
        self._phases: dict[Any, str] = {}
        self._metadata: list[dict[str, Any]] = []
        self._open: dict[Key, list[OpenEvent]] = {}
        self._loose: list[LooseEnd] = []

    def set_base(self, base_ns: float, events: list[_Event]) -> None:
        """Take over the start time that a trace of PyTorch's profiler names, unless its times are absolute already."""
        if any(event.ph == "X" and (event.ts or 0) >= _ABSOLUTE_US for event in events[:1000]):
            self.base_us = 0
        elif base_ns > 0:
            self.base_us = base_ns / 1000

    def add(self, events: Iterable[_Event]) -> None:
        """Take the next events."""
        take = {"X": self._whole, "M": self._announce, "B": self._begin, "E": self._end, "i": self._instant}
        take["I"] = self._instant
        for event in events:
            handle = take.get(event.ph)
            # Counters, flows and asynchronous events are no spans of time; an object without `ph` is no event.
            if handle is None:
                continue
            try:
                handle(event)
            except _BROKEN:
                self.tally.drop("no event of a known form")

    def rows(self) -> TraceRows:
        """All that was taken."""
        left = [event for stack in self._open.values() for event in stack]
        return TraceRows(
            np.array(self._start, np.float64),
            np.array(self._duration, np.float64),
            np.array(self._head, np.int32),
            np.array(self._argument, np.int32),
            tuple(self._heads),
            tuple(self._arguments),
            self.node,
            self.kind,
            tuple(self._metadata),
            tuple(self._loose),
            tuple(left),
        )

    def _announce(self, event: _Event) -> None:
        args = msgspec.json.decode(event.args) if bytes(event.args) else {}
        if not isinstance(args, dict):
            args = {}
        if event.name == "process_name":
            if isinstance(args.get("name"), str):
                self._phases[event.pid] = args["name"]
            start = args.get(START_KEY)
            if isinstance(start, (int, float)) and not isinstance(start, bool) and 0 <= start < LAST_US:
                self.base_us = float(start)
        elif event.name and event.name.startswith(OWN_METADATA):
            self._metadata.append({"name": event.name, "ph": "M", "pid": event.pid, "args": args, "node": self.node})
        self.announced += 1

    def _whole(self, event: _Event) -> None:
        if event.ts is None or event.dur is None or event.name is None:
            self.tally.drop("no name, time or duration")
            return
        self._put(event, event.ts + self.base_us, event.dur, bytes(event.args))

    def _instant(self, event: _Event) -> None:
        if event.ts is None:
            self.tally.drop("no name, time or duration")
            return
        self._put(event, event.ts + self.base_us, 0, instant_arguments(bytes(event.args), event.s or ""))

    def _begin(self, event: _Event) -> None:
        start = self._time(event)
        if start is not None:
            key, args = self._key(event), bytes(event.args)
            parse_arguments(args)
            self._open.setdefault(key, []).append(OpenEvent(key, self._head_of(event), start, args.decode()))

    def _end(self, event: _Event) -> None:
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

    def _time(self, event: _Event) -> float | None:
        at = None if event.ts is None else float(event.ts + self.base_us)
        if at is None or not 0 <= at < LAST_US:
            self.tally.drop("time or duration out of range")
            return None
        return at

    def _put(self, event: _Event, start: float, duration: float, args: bytes) -> None:
        if not (0 <= start < LAST_US and 0 <= duration < LAST_US and start + duration < LAST_US):
            self.tally.drop("negative duration" if duration < 0 else "time or duration out of range")
            return
        self._append(float(start), float(duration), self._head_of(event), args)

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

    def _phase(self, event: _Event) -> str:
        phase = self._phases.get(event.pid)
        return phase if phase is not None else event.pid if isinstance(event.pid, str) else UNKNOWN_PHASE

    def _head_of(self, event: _Event) -> Head:
        track, thread = whole(event.pid), whole(event.tid)
        return event.name or "", self._phase(event), -1 if track is None else track, -1 if thread is None else thread

    def _key(self, event: _Event) -> Key:
        return self._phase(event), event.tid if isinstance(event.tid, (int, str)) else 0
