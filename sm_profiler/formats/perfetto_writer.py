"""Write Perfetto's protobuf format: tracks, slices, flows and counters.

A trace is a sequence of packets, so files can be joined end to end. Times are absolute, and tracks are numbered by a hash of
what they belong to: the parts of such a file line up and do not mix. The published schema is perfetto/trace/perfetto_trace.proto.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, BinaryIO

import numpy as np

from sm_profiler.formats import perfetto_rows
from sm_profiler.formats.columns import Mask
from sm_profiler.formats.protobuf_fields import data, fixed, real, text, varint, whole
from sm_profiler.formats.timeline_rows import Bytes, CounterRows, SliceRows, distinct

_BUFFER = 1 << 20
_REMEMBERED = 1 << 15  # encoded parts of packets of a kind that are kept
_DOUBLE = struct.Struct("<d").pack

# Numbers of fields, from the schema.
_PACKET, _CLOCKS, _TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _TRACK = 1, 6, 8, 10, 11, 12, 13, 60
_TRACK_UUID, _TRACK_NAME, _TRACK_PROCESS, _TRACK_THREAD, _TRACK_PARENT, _TRACK_COUNTER, _TRACK_RANK = (
    1,
    2,
    3,
    4,
    5,
    8,
    12,
)
_TRACK_ORDERING, _EXPLICIT = 11, 3
_PID, _PROCESS_NAME, _PROCESS_LABELS = 1, 6, 8
_TID, _THREAD_NAME = 2, 5
_CATEGORY, _ANNOTATION, _TYPE, _NAME, _UUID, _COUNTER, _FLOW, _FLOW_END = 3, 4, 9, 10, 11, 44, 47, 48
_BEGIN, _END, _VALUE = 1, 2, 4
_CATEGORIES, _NAMES, _KEYS = 1, 2, 3
_CLEARED, _NEEDED = 1, 2
_BOOTTIME, _REALTIME = 6, 1

# Parts of packets that stay the same.
_PACKET_TAG, _EVENT_TAG = varint(_PACKET << 3 | 2), varint(_EVENT << 3 | 2)
_TIMESTAMP_TAG, _NAME_TAG, _CATEGORY_TAG, _IID_TAG = (
    varint(field << 3) for field in (_TIMESTAMP, _NAME, _CATEGORY, 1)
)  # fmt: skip
_BEGIN_TYPE, _VALUE_TYPE, _NEEDED_FLAG = whole(_TYPE, _BEGIN), whole(_TYPE, _VALUE), whole(_FLAGS, _NEEDED)
_COUNTER_TAG = varint(_COUNTER << 3 | 1)
_MOMENT = len(_TIMESTAMP_TAG) + perfetto_rows.MOMENT_BYTES
_VARIANTS = 10  # lengths of the varint of a step: none, or up to nine bytes
_ANNOTATION_TAG, _WHOLE_TAG = varint(_ANNOTATION << 3 | 2), varint(4 << 3)


class PerfettoSink:
    """Writes packets; see `report.trace_sinks.TraceSink` for its methods."""

    def __init__(self, out: BinaryIO, origin_ns: int, identity: str) -> None:
        """Begin a trace.

        Args:
            out: the file.
            origin_ns: origin of all times, nanoseconds since the epoch.
            identity: what sets this trace apart from others that it may be joined with: where its data comes from.
        """
        self._out = out
        self._origin = origin_ns
        self._identity = identity
        self._sequence = whole(_SEQUENCE, zlib.crc32(identity.encode("utf-8", "replace")) or 1)
        self._parts: list[bytes] = []
        self._size = 0
        self._tables: dict[int, dict[str, bytes]] = {_CATEGORIES: {}, _NAMES: {}, _KEYS: {}}
        self._fresh: list[bytes] = []
        self._tracks: dict[tuple[int, int], bytes] = {}
        self._ends: dict[tuple[int, int], bytes] = {}
        self._counters: dict[tuple[int, str], bytes] = {}
        self._heads: dict[tuple[int, int, str, str], bytes] = {}
        self._annotations: dict[tuple[str, int], bytes] = {}
        self._templates: dict[tuple[tuple[int, int, str, str], int], perfetto_rows.Packets] = {}
        self._processes: dict[int, tuple[int, str, int]] = {}
        self._flows = self._hash("flow")
        self._upper, self._upper_bytes = -1, b""
        moment = max(origin_ns, 0)
        clocks = b"".join(data(1, whole(1, clock) + whole(2, moment)) for clock in (_BOOTTIME, _REALTIME))
        self._packet(whole(_TIMESTAMP, moment) + data(_CLOCKS, clocks) + whole(_FLAGS, _CLEARED))

    def _packet(self, content: bytes) -> None:
        content += self._sequence
        self._parts.append(_PACKET_TAG + varint(len(content)) + content)
        self._size += len(content)
        if self._size >= _BUFFER:
            self._flush()

    def _flush(self) -> None:
        self._out.write(b"".join(self._parts))
        self._parts.clear()
        self._size = 0

    def _hash(self, *what: object) -> int:
        content = repr((self._identity, *what)).encode("utf-8", "replace")
        return int.from_bytes(blake2b(content, digest_size=8).digest(), "little") >> 1 or 1

    def _interned(self, table: int, content: str) -> bytes:
        """Return the encoded number of a text; the next packet carries the text if it is new."""
        known = self._tables[table]
        number = known.get(content)
        if number is None:
            number = known[content] = varint(len(known) + 1)
            self._fresh.append(data(table, _IID_TAG + number + text(2, content)))
        return number

    def _moment(self, at: int) -> bytes:
        """Encode a time: its upper bits change rarely."""
        at = max(self._origin + at, 0)
        if at >> 28 != self._upper:
            self._upper, self._upper_bytes = at >> 28, varint(at >> 28)
        if not self._upper:
            return _TIMESTAMP_TAG + varint(at)
        return (
            _TIMESTAMP_TAG
            + perfetto_rows.PAIRS[at & 0x3FFF]
            + perfetto_rows.PAIRS[at >> 14 & 0x3FFF]
            + self._upper_bytes
        )

    def _event(self, at: int, content: bytes) -> None:
        interned = b""
        if self._fresh:
            interned = data(_INTERNED, b"".join(self._fresh))
            self._fresh.clear()
        self._packet(self._moment(at) + interned + _EVENT_TAG + varint(len(content)) + content + _NEEDED_FLAG)

    def name_process(self, process: int, name: str, order: int) -> None:
        """Describe a process's track."""
        self._processes[process] = self._hash(name) & 0x3FFFFFFF or 1, name, order
        self._describe(process)

    def label_process(self, process: int, label: str) -> None:
        """Describe a process's track again, with a note."""
        self._describe(process, label)

    def _describe(self, process: int, label: str = "") -> None:
        pid, name, order = self._processes[process]
        about = whole(_PID, pid) + text(_PROCESS_NAME, name) + (text(_PROCESS_LABELS, label) if label else b"")
        track = whole(_TRACK_UUID, self._hash(name)) + data(_TRACK_PROCESS, about) + whole(_TRACK_RANK, order)
        self._packet(data(_TRACK, track + whole(_TRACK_ORDERING, _EXPLICIT)))

    def name_thread(self, process: int, thread: int, name: str, order: int) -> None:
        """Describe the track of a lane."""
        pid, owner, _ = self._processes[process]
        number = self._hash(owner, thread)
        about = whole(_PID, pid) + whole(_TID, number & 0x3FFFFFFF or 1) + text(_THREAD_NAME, name)
        track = whole(_TRACK_UUID, number) + whole(_TRACK_PARENT, self._hash(owner)) + whole(_TRACK_RANK, order)
        self._packet(data(_TRACK, track + data(_TRACK_THREAD, about)))
        named = self._tracks[process, thread] = whole(_UUID, number)
        self._ends[process, thread] = data(_EVENT, named + whole(_TYPE, _END)) + _NEEDED_FLAG

    def slice(  # one argument a field
        self,
        process: int,
        thread: int,
        name: str,
        category: str,
        start: int,
        length: int,
        args: Mapping[str, int | float | str],
        flow: int,
    ) -> None:
        """Write the begin and the end of a slice."""
        content = self._heads.get((process, thread, name, category)) or self._head(process, thread, name, category)
        for key, value in args.items():
            content += (type(value) is int and self._annotations.get((key, value))) or self._annotation(key, value)
        if flow:
            content += fixed(_FLOW if flow > 0 else _FLOW_END, self._flows + abs(flow))
        self._event(start, content)
        self._packet(self._moment(start + length) + self._ends[process, thread])

    def _head(self, process: int, thread: int, name: str, category: str) -> bytes:
        """Encode what the slices of a name and category on a track have in common."""
        named = self._tracks[process, thread] + _BEGIN_TYPE + _NAME_TAG + self._interned(_NAMES, name)
        found = named + _CATEGORY_TAG + self._interned(_CATEGORIES, category)
        return _remembered(self._heads, (process, thread, name, category), found)

    def _annotation(self, key: str, value: float | str) -> bytes:
        found = data(_ANNOTATION, _IID_TAG + self._interned(_KEYS, key) + _value(value))
        return _remembered(self._annotations, (key, value), found) if type(value) is int else found

    def slices(self, rows: SliceRows) -> None:
        """Write the begins and ends of slices."""
        if not len(rows):
            return
        begin, end = self._origin + int(rows.start.min()), self._origin + int((rows.start + rows.length).max())
        kinds, first = rows.kinds()
        keys = [rows.kind_at(row) for row in first.tolist()]
        together = perfetto_rows.fits(begin, end)
        singly = [row for row, key in zip(first.tolist(), keys, strict=True) if key not in self._heads]
        if "step" not in self._tables[_KEYS]:
            singly += np.flatnonzero(rows.step >= 0)[:1].tolist()
        # What is new is written with the row that has it first, and numbered in this order.
        self._flush()
        written = {row: self._single(rows, row) for row in (sorted({*singly}) if together else range(len(rows)))}
        if not together:
            self._out.write(b"".join(written.values()))
            return
        digits = perfetto_rows.varint_lengths(rows.step)
        variants, first = distinct(kinds * _VARIANTS + digits, len(keys) * _VARIANTS)
        packets = [self._packets(keys[kinds[row]], int(digits[row])) for row in first.tolist()]
        lines, used = perfetto_rows.slices(rows, self._origin, variants, packets)
        self._write_rows(lines, used, written)

    def _write_rows(self, lines: Bytes, used: Mask, written: Mapping[int, bytes]) -> None:
        """Write the used bytes of rows, and of some rows what has been written for them."""
        begin = 0
        for row, one in [*written.items(), (len(lines), b"")]:
            if row > begin:
                self._out.write(lines[begin:row][used[begin:row]].tobytes())
            self._out.write(one)
            begin = row + 1

    def _packets(self, kind: tuple[int, int, str, str], digits: int) -> perfetto_rows.Packets:
        """Return both packets of the slices of a kind, without their times and the step, a varint of so many bytes."""
        found = self._templates.get((kind, digits))
        if found is not None:
            return found
        content = self._heads.get(kind) or self._head(*kind)
        if digits:
            step = _IID_TAG + self._interned(_KEYS, "step") + _WHOLE_TAG
            content += _ANNOTATION_TAG + varint(len(step) + digits) + step
        named = _EVENT_TAG + varint(len(content) + digits) + content
        after = _NEEDED_FLAG + self._sequence
        end = self._ends[kind[:2]] + self._sequence
        before = _PACKET_TAG + varint(_MOMENT + len(named) + digits + len(after)) + _TIMESTAMP_TAG
        between = after + _PACKET_TAG + varint(_MOMENT + len(end)) + _TIMESTAMP_TAG
        if len(self._templates) >= _REMEMBERED:
            self._templates.clear()
        made = self._templates[kind, digits] = perfetto_rows.Packets(before, named, between, end)
        return made

    def _single(self, rows: SliceRows, row: int) -> bytes:
        for announce in rows.named.get(row, ()):
            announce()
        step = int(rows.step[row])
        args = {"step": step} if step >= 0 else {}
        self.slice(*rows.kind_at(row), int(rows.start[row]), int(rows.length[row]), args, 0)
        return self._taken()

    def _taken(self) -> bytes:
        """Return the packets since the last flush instead of writing them."""
        found = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return found

    def counter(self, process: int, name: str, at: int, values: Mapping[str, int | float | str]) -> None:
        """Write the values of a counter, each on a track of its own."""
        for key, value in values.items():
            title = _title(name, key)
            track = self._counters.get((process, title))
            if track is None:
                owner = self._processes[process][1]
                number = self._hash(owner, "counter", title)
                about = whole(_TRACK_UUID, number) + whole(_TRACK_PARENT, self._hash(owner)) + text(_TRACK_NAME, title)
                self._packet(data(_TRACK, about + data(_TRACK_COUNTER, b"")))
                track = self._counters[process, title] = _VALUE_TYPE + whole(_UUID, number) + _COUNTER_TAG
            self._event(at, track + _DOUBLE(float(value)))

    def counters(self, rows: CounterRows) -> None:
        """Write values of counters."""
        if not len(rows):
            return
        together = perfetto_rows.fits(self._origin + int(rows.at.min()), self._origin + int(rows.at.max()))
        names, series = rows.name.values, rows.series.values
        mixed = (rows.process * len(names) + rows.name.codes) * len(series) + rows.series.codes
        kinds, first = distinct(mixed, (int(rows.process.max()) + 1) * len(names) * len(series))
        keys = [
            (int(rows.process[row]), _title(names[rows.name.codes[row]], series[rows.series.codes[row]]))
            for row in first.tolist()
        ]
        singly = {row for row, key in zip(first.tolist(), keys, strict=True) if key not in self._counters} | {
            *rows.named
        }
        self._flush()
        written = {}
        for row in sorted(singly) if together else range(len(rows)):
            for announce in rows.named.get(row, ()):
                announce()
            value = {series[rows.series.codes[row]]: float(rows.value[row])}
            self.counter(int(rows.process[row]), names[rows.name.codes[row]], int(rows.at[row]), value)
            written[row] = self._taken()
        if not together:
            self._out.write(b"".join(written.values()))
            return
        packets = []
        for key in keys:
            content = self._counters[key]
            named = _EVENT_TAG + varint(len(content) + 8) + content
            after = _NEEDED_FLAG + self._sequence
            before = _PACKET_TAG + varint(_MOMENT + len(named) + 8 + len(after)) + _TIMESTAMP_TAG
            packets.append(perfetto_rows.Packets(before, named, after, b""))
        lines, used = perfetto_rows.counters(rows, self._origin, kinds, packets)
        self._write_rows(lines, used, written)

    def close(self, about: Mapping[str, Any]) -> None:  # the format has no place for such facts
        """Write what is left."""
        self._flush()


def _title(name: str, key: str) -> str:
    return name if key in ("", "value") else f"{name}: {key}"


def _remembered(known: dict[Any, bytes], key: object, encoded: bytes) -> bytes:
    if len(known) >= _REMEMBERED:
        known.clear()
    known[key] = encoded
    return encoded


def _value(value: float | str) -> bytes:
    """Encode the value of an annotation."""
    if isinstance(value, str):
        return text(6, value)
    return real(5, value) if isinstance(value, float) else whole(4, value)
