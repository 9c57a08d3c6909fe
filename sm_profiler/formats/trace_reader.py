"""Trace files of every kind: bytes to rows.

A common file holds only whole events (`X`) and metadata (`M`), which are converted by column. Other records are converted
one by one (`trace_records`), and text that is not JSON is repaired first (`salvage`). Records exist as Python objects for
CHUNK_BYTES of a file at a time, so that a file needs little more memory than its rows.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Floats, Numbering
from sm_profiler.formats.outcome import (
    BYTE_ORDER_MARK,
    CHUNK_BYTES,
    LAST_US,
    MAX_FILE_BYTES,
    MAX_RECORD_BYTES,
    REFUSED,
    UNPACKED_BYTES,
    UNPACKED_TIMES,
    Outcome,
    Tally,
    borders,
    clean,
    most_events,
    most_texts,
    objects,
)
from sm_profiler.formats.trace_records import (
    ABSOLUTE_US,
    BROKEN,
    Announcements,
    RecordConverter,
    TraceRecord,
    head_of,
)
from sm_profiler.formats.trace_rows import TraceRows, argument_tables

MAX_RECORDS = 20_000_000  # of a file
_INPUT_BYTES = 1 << 16
_FEW = 200  # up to so many metadata records are deleted from a list one by one
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*([0-9]{1,19})\b')

_ARRAY = msgspec.json.Decoder(list[TraceRecord])

_ONE = msgspec.json.Decoder(TraceRecord)
_HEAD = attrgetter("ph", "name", "pid", "tid")
_ARGS, _TS, _DUR = attrgetter("args"), attrgetter("ts"), attrgetter("dur")


class _Document(msgspec.Struct, gc=False):
    events: list[TraceRecord] = msgspec.field(name="traceEvents")
    base_ns: float = msgspec.field(name="baseTimeNanoseconds", default=0)


_DOCUMENT = msgspec.json.Decoder(_Document)


def read_trace(
    data: bytes | bytearray, node: str, kind: str, start_us: float = 0, *, approximate: bool = False
) -> tuple[TraceRows, Outcome]:
    """Read a trace: an array of events or an object with `traceEvents`, plain or compressed with gzip.

    Args:
        node: node and process in the readers' notation.
        kind: which timeline it is.
        start_us: origin of the times, microseconds since the epoch, for a file that does not name one.
        approximate: `start_us` is an estimate.

    Returns:
        Its events in their order, and the outcome. No content of a file raises an error.
    """
    tally = Tally()
    left_out, stored = 0.0, len(data)
    if data[:2] == b"\x1f\x8b":
        data, left_out = _unpack(data, tally)
    data = data.removeprefix(BYTE_ORDER_MARK)
    converter = RecordConverter(node, kind, start_us, tally, most_texts(stored))
    if not data.strip():
        tally.mend("empty")
        return converter.rows(), attrs.evolve(tally.close(0), status=REFUSED)
    records = _Records(data, min(MAX_RECORDS, most_events(stored)))
    rows = _by_column(records, converter)
    if rows is None:
        rows = _by_record(records, converter)
    if left_out:
        tally.drop("compressed data unpacks to too much, the rest (estimated)", max(1, round(left_out * records.seen)))
    if approximate and converter.base_us == start_us and len(rows.start_us):
        tally.mend("start time unknown: taken from its folder")
    used = len(rows.start_us) + len(rows.loose_ends) + len(rows.open_events) + converter.announcements.count
    return rows, tally.close(used)


class _Records:
    """The records of a file in lists, each of about CHUNK_BYTES of it.

    Attributes:
        seen: records so far, with those beyond the limit.
        base_ns: origin of the times that PyTorch's profiler noted, nanoseconds since the epoch; 0 if it noted none.
        absolute: the times count from the epoch in spite of it.
    """

    def __init__(self, data: bytes | bytearray, most: int) -> None:
        self.count = self.seen = 0
        self.base_ns = 0.0
        self.absolute = False
        self._data, self._most = data, most
        self._is_object = data.lstrip()[:1] == b"{"
        self._only: tuple[list[TraceRecord], Tally] | None = None

    def lists(self, tally: Tally) -> Iterator[list[TraceRecord]]:
        """Yield the lists; may be called several times."""
        self.count = self.seen = 0
        for records in self._lists(tally):
            if not self.count:
                self.absolute = self._is_object and any(
                    record.ph == "X" and record.ts >= ABSOLUTE_US for record in records[:1000]
                )
            self.seen += len(records)
            room = self._most - self.count
            if len(records) > room:
                tally.drop(f"more than {self._most} records", len(records) - room)
                records = records[:room]  # the whole list may be needed again
            self.count += len(records)
            yield records

    def _lists(self, tally: Tally) -> Iterator[list[TraceRecord]]:
        if len(self._data) > CHUNK_BYTES:
            yield from self._chunks(tally)
            return
        if self._only is None:
            mine = Tally()
            self._only = self._whole(mine), mine
        records, mine = self._only
        tally.add(mine)
        yield records

    def _whole(self, tally: Tally) -> list[TraceRecord]:
        try:
            if not self._is_object:
                return _ARRAY.decode(self._data)
            document = _DOCUMENT.decode(self._data)
        except BROKEN:
            start, self.base_ns = self._start_and_base()
            return _salvage(self._data[start:], tally, closes=self._closes)
        self.base_ns = document.base_ns
        return document.events

    @property
    def _closes(self) -> str:
        return "]}" if self._is_object else "]"

    def _start_and_base(self) -> tuple[int, float]:
        """Return where the records begin, and `baseTimeNanoseconds`."""
        if not self._is_object:
            return 0, 0.0
        opening = self._data.find(b'"traceEvents"')
        bracket = self._data.find(b"[", opening) if opening >= 0 else -1
        if bracket < 0:
            return 0, 0.0
        base = _BASE.search(self._data, 0, opening) or _BASE.search(self._data, max(bracket, len(self._data) - 65536))
        return bracket + 1, float(base[1]) if base else 0.0

    def _chunks(self, tally: Tally) -> Iterator[list[TraceRecord]]:
        data = self._data
        at, self.base_ns = self._start_and_base()
        if not self._is_object and (opening := data.find(b"[")) >= 0 and not data[:opening].strip():
            at = opening + 1
        while at < len(data):
            found = _borders(data, at)
            if not found and len(data) - at > MAX_RECORD_BYTES:
                tally.drop("a record that is too long, and all after it")
                yield []
                return
            if not found:
                yield self._last(data[at:], tally)
                return
            stop, following = found[0]
            for end, after in found:
                # A border inside a string leaves the string, and so the array, open.
                with suppress(*BROKEN):
                    records = _ARRAY.decode(b"[" + data[at:end] + b"]")
                    following = after
                    break
            else:
                records = _salvage(data[at:stop], tally)
            yield records
            at = following

    def _last(self, piece: bytes | bytearray, tally: Tally) -> list[TraceRecord]:
        try:
            if not self._is_object:
                return _ARRAY.decode(b"[" + piece)
            document = _DOCUMENT.decode(b'{"traceEvents":[' + piece)
        except BROKEN:
            return _salvage(piece, tally, closes=self._closes)
        self.base_ns = self.base_ns or document.base_ns
        return document.events


def _borders(data: bytes | bytearray, start: int) -> list[tuple[int, int]]:
    """Return the ends of a chunk's records and the beginnings of the next chunk, likely ones; none if it is the last."""
    chunks = range(start, len(data) - CHUNK_BYTES, CHUNK_BYTES)
    return next((found for at in chunks if (found := borders(data, at, at + CHUNK_BYTES))), [])


def _by_column(records: _Records, converter: RecordConverter) -> TraceRows | None:
    """Return the rows of a file of whole events and metadata, all of them sound; None for another file."""
    tally = Tally()
    columns = _Columns(converter)
    for chunk in records.lists(tally):
        if tally.dropped or not columns.add(chunk):
            return None
    converter.set_base(records.base_ns, absolute=records.absolute)
    rows = None if tally.dropped else columns.rows()
    if rows is not None:
        converter.tally.add(tally)
    return rows


def _by_record(records: _Records, converter: RecordConverter) -> TraceRows:
    for chunk in records.lists(Tally()):
        converter.prepare(chunk)
    converter.set_base(records.base_ns, absolute=records.absolute)
    for chunk in records.lists(converter.tally):
        converter.add(chunk)
    converter.close()
    return converter.rows()


class _Columns:
    """Columns of a file of whole events and metadata."""

    def __init__(self, converter: RecordConverter) -> None:
        self._converter = converter
        self._heads, self._arguments = Numbering(), Numbering()
        self._announcements = Announcements()
        self._seen = 0  # heads checked so far
        self._is_event = np.zeros(0, np.bool_)
        self._start: list[Floats] = []
        self._duration: list[Floats] = []
        self._head: list[NDArray[np.int32]] = []
        self._argument: list[NDArray[np.int32]] = []

    def add(self, records: list[TraceRecord]) -> bool:
        """Take the next records; False if one of them is of another kind, or the metadata contradicts itself."""
        head = np.fromiter(map(self._heads.__getitem__, map(_HEAD, records)), np.int32, len(records))
        new = list(self._heads)[self._seen :]
        if any(key[0] not in {"X", "M"} or (key[0] == "X" and key[1] is None) for key in new):
            return False
        self._is_event = np.concatenate([self._is_event, np.array([key[0] == "X" for key in new], np.bool_)])
        self._seen = len(self._heads)
        mask = self._is_event[head] if len(records) else np.zeros(0, np.bool_)
        others = np.flatnonzero(~mask)
        first = int(mask.argmax()) if mask.any() else len(records)
        may_start = not any(map(len, self._head))
        try:
            for row in others.tolist():
                if not self._announcements.take(
                    records[row], self._converter.node, may_change=False, may_start=may_start and row < first
                ):
                    return False
        except BROKEN:
            return False
        events = _without(records, others)
        count = len(events)
        self._start.append(np.fromiter(map(_TS, events), np.float64, count))
        self._duration.append(np.fromiter(map(_DUR, events), np.float64, count))
        self._head.append(head[mask])
        texts = map(bytes, map(_ARGS, events))
        self._argument.append(np.fromiter(map(self._arguments.__getitem__, texts), np.int32, count))
        return not self._announcements.lost and len(self._heads) + len(self._arguments) <= self._converter.most

    def rows(self) -> TraceRows | None:
        """Return the rows; None if a time is out of range, or the arguments of an event are not JSON."""
        converter, announcements = self._converter, self._announcements
        base_us = converter.base_us if announcements.base_us is None else announcements.base_us
        start, duration = _joined(self._start, np.float64) + base_us, _joined(self._duration, np.float64)
        if not ((start >= 0) & (duration >= 0) & (start + duration < LAST_US)).all():
            return None
        try:
            numbers, texts = argument_tables(self._arguments)
        except BROKEN:
            return None
        converter.announcements, converter.base_us = announcements, base_us
        heads = tuple(head_of(name, announcements.phase(pid), pid, tid) for _, name, pid, tid in self._heads)
        head, argument = _joined(self._head, np.int32), _joined(self._argument, np.int32)
        metadata = tuple(announcements.metadata)
        return TraceRows(
            start, duration, head, argument, heads, numbers, texts, converter.node, converter.kind, metadata
        )


def _without(records: list[TraceRecord], rows: NDArray[np.intp]) -> list[TraceRecord]:
    """Return the records but for those of these rows; the caller's list stays as it is."""
    if len(rows) > _FEW:
        return [record for record in records if record.ph == "X"]
    left = records.copy()
    for row in reversed(rows.tolist()):
        del left[row]
    return left


def _joined(parts: Sequence[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, kind)


def _unpack(data: bytes | bytearray, tally: Tally) -> tuple[bytes | bytearray, float]:
    """Return unpacked bytes, and the ratio of compressed bytes left out to those unpacked: 0 if all were unpacked."""
    limit = min(MAX_FILE_BYTES, max(UNPACKED_BYTES, UNPACKED_TIMES * len(data)))
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    unpacked = bytearray()  # in one piece: joined pieces would be in memory twice
    at, tail = 0, b""
    try:
        while (tail or at < len(data)) and not unpacker.eof and len(unpacked) <= limit:
            piece = tail or data[at : at + _INPUT_BYTES]
            at += 0 if tail else len(piece)
            unpacked += unpacker.decompress(piece, CHUNK_BYTES)
            tail = unpacker.unconsumed_tail
    except zlib.error:
        tally.mend("compressed data damaged")
    else:
        if len(unpacked) > limit:
            left = max(1, len(data) - at + len(tail))
            return unpacked, left / max(1, len(data) - left)
        unpacked += unpacker.flush()
        if not unpacker.eof:
            tally.mend("compressed data cut off")
        elif unpacker.unused_data.strip(b"\0"):
            tally.mend("data after the end of the compressed data left out")
    return unpacked, 0.0


def _salvage(data: bytes | bytearray, tally: Tally, *, closes: str = "") -> list[TraceRecord]:
    """Return the whole records of a piece of a file; `closes` are the characters that its last piece may end in."""
    text = clean(data, tally)
    records: list[TraceRecord] = []
    damaged, without_phase = bool(tally.dropped), 0
    for item in objects(text, tally):
        try:
            record = _ONE.decode(item)
        except BROKEN:
            tally.drop("no event of a known form")
            continue
        if record.ph:
            records.append(record)
        else:
            without_phase += 1
    if not damaged and not tally.dropped:  # else they are probably the arguments of damaged records, counted already
        tally.drop("no event of a known form", without_phase)
        if closes and not records and not without_phase:
            tally.mend("no records")
    if closes and records and text.rstrip()[-1:] not in closes:
        tally.mend("array not closed")
    return records
