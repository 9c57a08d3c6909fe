"""Trace files of every kind: bytes to rows.

The common file holds nothing but whole events (`X`) and announcements (`M`); its records are taken by column.  Whatever
else stands in a file goes record by record through `trace_fold`, and what is no JSON first through `salvage`.
"""

from __future__ import annotations

import zlib
from operator import attrgetter

import attrs
import msgspec
import numpy as np

from sm_profiler.formats.numbering import Numbering
from sm_profiler.formats.outcome import LAST_US, REFUSED, Outcome, Tally
from sm_profiler.formats.salvage import clean, objects
from sm_profiler.formats.trace_fold import BROKEN, Announcements, Event, Fold, head_of
from sm_profiler.formats.trace_rows import TraceRows, argument_tables

_FEW = 200  # so many announcements are taken out of a list one by one
MAX_BYTES = 4 << 30  # a gzip file may not become larger than this


class _Document(msgspec.Struct, gc=False):
    events: list[Event] = msgspec.field(name="traceEvents")
    base_ns: float = msgspec.field(name="baseTimeNanoseconds", default=0)


_ARRAY = msgspec.json.Decoder(list[Event])
_DOCUMENT = msgspec.json.Decoder(_Document)
_ONE = msgspec.json.Decoder(Event)
_HEAD = attrgetter("ph", "name", "pid", "tid")
_ARGS, _TS, _DUR = attrgetter("args"), attrgetter("ts"), attrgetter("dur")


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
    fold = Fold(node, kind, start_us, tally)
    if not data.strip():
        tally.mend("empty")
        return fold.rows(), attrs.evolve(tally.close(0), status=REFUSED)
    try:
        if data.lstrip()[:1] == b"{":
            document = _DOCUMENT.decode(data)
            fold.set_base(document.base_ns, document.events)
            events = document.events
        else:
            events = _ARRAY.decode(data)
    except BROKEN:
        events = _salvage(data, fold, tally)
    rows = _by_column(events, fold) if not tally.dropped else None
    if rows is None:
        fold.add(events)
        rows = fold.rows()
    if approximate and fold.base_us == start_us and len(rows.start_us):
        tally.mend("start time unknown: taken from its folder")
    used = len(rows.start_us) + len(rows.loose_ends) + len(rows.open_events) + fold.announcements.count
    return rows, tally.close(used)


def _by_column(events: list[Event], fold: Fold) -> TraceRows | None:
    """The rows of a file that holds whole events and announcements only, all of them sound; None for another file."""
    heads, arguments = Numbering(), Numbering()
    count = len(events)
    head = np.fromiter(map(heads.__getitem__, map(_HEAD, events)), np.int32, count)
    is_event = np.array([key[0] == "X" for key in heads], np.bool_)
    if any(key[0] not in {"X", "M"} or (key[0] == "X" and key[1] is None) for key in heads):
        return None
    mask = is_event[head] if len(is_event) else np.zeros(0, np.bool_)
    announcements = Announcements()
    others = np.flatnonzero(~mask)
    first = int(mask.argmax()) if mask.any() else count
    try:
        for row in others.tolist():
            if not announcements.take(events[row], fold.node, may_change=False, may_start=row < first):
                return None
    except BROKEN:
        return None
    if len(others) > _FEW:
        events = [event for event in events if event.ph == "X"]
    else:
        events = events.copy()  # the caller's list stays whole, for the patient way
        for row in reversed(others.tolist()):
            del events[row]
    head, count = head[mask], len(events)
    base_us = fold.base_us if announcements.base_us is None else announcements.base_us
    start = np.fromiter(map(_TS, events), np.float64, count) + base_us
    duration = np.fromiter(map(_DUR, events), np.float64, count)
    if not ((start >= 0) & (duration >= 0) & (start + duration < LAST_US)).all():
        return None
    argument = np.fromiter(map(arguments.__getitem__, map(bytes, map(_ARGS, events))), np.int32, count)
    try:
        numbers, texts = argument_tables(arguments)
    except BROKEN:
        return None
    fold.announcements, fold.base_us = announcements, base_us
    table = tuple(head_of(name, announcements.phase(pid), pid, tid) for _, name, pid, tid in heads)
    return TraceRows(
        start, duration, head, argument, table, numbers, texts, fold.node, fold.kind, tuple(announcements.metadata)
    )


def _unpack(data: bytes, tally: Tally) -> bytes:
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    parts: list[bytes] = []
    size, at = 0, 0
    try:
        while at < len(data) and not unpacker.eof and size <= MAX_BYTES:
            part = unpacker.decompress(data[at : at + 65536])
            at += 65536
            size += len(part)
            parts.append(part)
    except zlib.error:
        tally.mend("compressed data damaged")
    else:
        if size > MAX_BYTES:
            tally.mend("longer than 4 GB, the rest is left out")
        elif not unpacker.eof:
            tally.mend("compressed data cut off")
    return b"".join(parts)


def _salvage(data: bytes, fold: Fold, tally: Tally) -> list[Event]:
    text = clean(data, tally)
    start = 0
    if text.lstrip()[:1] == "{":
        opening = text.find('"traceEvents"')
        bracket = text.find("[", opening) if opening >= 0 else -1
        if bracket >= 0:
            start = bracket + 1
    events = []
    for item in objects(text, tally, start):
        try:
            events.append(_ONE.decode(item))
        except BROKEN:  # noqa: PERF203 - damaged files only
            tally.drop("no event of a known form")
    if events and text.rstrip()[-1:] not in {"]", "}"}:
        tally.mend("array not closed")
    if start and (position := text.find('"baseTimeNanoseconds"')) >= 0:
        number = text[position + 21 : position + 60].lstrip(" :").split(",")[0].strip("} \n")
        fold.set_base(float(number) if number.isdigit() else 0, events)
    return events
