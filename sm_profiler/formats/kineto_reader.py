"""Traces of torch.profiler (Kineto): bytes to columns.

A trace is read in blocks of CHUNK_BYTES, whose records exist as Python objects only until their columns are made, so that
a file of a gigabyte needs memory for its columns and one block. Damaged or truncated files give what they hold.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from typing import Any

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category, Floats, Ints, Mask, Numbering, Rows
from sm_profiler.formats.outcome import CHUNK_BYTES, MAX_FILE_BYTES, MAX_RECORD_BYTES, REFUSED, Outcome, Tally
from sm_profiler.formats.salvage import BYTE_ORDER_MARK, clean, objects

# Categories of events, by their number in `KinetoColumns.category`.
KERNEL, MEMCPY, MEMSET, RUNTIME, OPERATOR, ANNOTATION, GPU_ANNOTATION, PYTHON, SYNC, OTHER = range(10)
_CATEGORIES = {
    "kernel": KERNEL,
    "concurrent_kernel": KERNEL,
    "mtia_ccp_events": KERNEL,
    "gpu_memcpy": MEMCPY,
    "memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "memset": MEMSET,
    "cuda_runtime": RUNTIME,
    "cuda_driver": RUNTIME,
    "hip_runtime": RUNTIME,
    "xpu_runtime": RUNTIME,
    "xpu_driver": RUNTIME,
    "privateuse1_runtime": RUNTIME,
    "mtia_runtime": RUNTIME,
    "runtime": RUNTIME,
    "cpu_op": OPERATOR,
    "operator": OPERATOR,
    "user_annotation": ANNOTATION,
    "cpu_instant_event": OTHER,
    "gpu_user_annotation": GPU_ANNOTATION,
    "python_function": PYTHON,
    "cuda_sync": SYNC,
}
ON_DEVICE = (KERNEL, MEMCPY, MEMSET)

_BORDER = re.compile(rb"\}\s*,\s*(?=\{)")
_BORDER_TRIES = 64  # closing braces inspected for a border between records, from the end of a block
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_INPUT_BYTES = 1 << 20
_UNPACKED_TIMES = 200  # a gzip file may unpack to so many times its size; kernel names repeat well
_UNPACKED_BYTES = 64 << 20
_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_INT64 = (1 << 63) - 1
_LAST = 1e19  # later times, even in nanoseconds since the epoch, are damage


class _Arguments(msgspec.Struct, gc=False):
    """The arguments that are read; the others are skipped without being decoded."""

    stream: int = -1
    device: int = -1
    correlation: int = -1
    bytes: int = -1
    collective: str = msgspec.field(name="Collective name", default="")
    in_elements: int = msgspec.field(name="In msg nelems", default=-1)
    out_elements: int = msgspec.field(name="Out msg nelems", default=-1)
    group_size: int = msgspec.field(name="Group size", default=-1)
    group: str = msgspec.field(name="Process Group Name", default="")
    element_type: str = msgspec.field(name="dtype", default="")
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b""))


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float = 0.0
    dur: float = 0.0
    args: _Arguments = msgspec.field(default_factory=_Arguments)


class _LooseEvent(msgspec.Struct, gc=False):
    """An event of another writer, whose arguments are of any type."""

    ph: str = ""
    cat: str | None = ""
    name: str | None = ""
    pid: Any = -1
    tid: Any = -1
    ts: float | str = 0.0
    dur: float | str | None = 0.0
    args: Any = None


_ARRAY, _LOOSE = msgspec.json.Decoder(list[_Event]), msgspec.json.Decoder(_LooseEvent)
_PROPERTIES = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RECORDS = msgspec.json.Decoder(list[msgspec.Raw])
_ARGUMENT_FIELDS = {field.encode_name: field.name for field in msgspec.structs.fields(_Arguments)}
_TEXTS = {"collective", "group", "element_type"}
_RAWS = {"shapes", "types"}


@attrs.frozen
class Collective:
    """Arguments of a collective's kernel; -1 or "" if not recorded."""

    name: str
    in_elements: int
    out_elements: int
    element_type: str
    group: str
    group_size: int


@attrs.frozen
class Inputs:
    """Shapes and types of an operator's inputs, as JSON."""

    shapes: str
    types: str


@attrs.frozen(eq=False)
class KinetoColumns:
    """The whole events of one trace in the order of their starts.

    Attributes:
        start_us: since `KinetoTrace.origin_us`.
        duration_us: microseconds.
        name: names.
        category: int8; KERNEL, MEMCPY, …
        thread: number of the host thread or of the device's row; equal for events that nest.
        stream, device: int32; -1 if the event has none.
        correlation: int64, equal for a launch and what it launched; -1 if there is none.
        bytes: int64; size of a copy, -1 if unknown.
    """

    start_us: Floats
    duration_us: Floats
    name: Category
    category: NDArray[np.int8]
    thread: NDArray[np.int32]
    stream: NDArray[np.int32]
    device: NDArray[np.int32]
    correlation: Ints
    bytes: Ints

    def __len__(self) -> int:
        return len(self.start_us)

    def __getitem__(self, rows: Rows) -> KinetoColumns:
        return KinetoColumns(*(getattr(self, field.name)[rows] for field in attrs.fields(KinetoColumns)))

    @property
    def end_us(self) -> Floats:
        """Ends, since `KinetoTrace.origin_us`."""
        return self.start_us + self.duration_us

    @property
    def on_device(self) -> Mask:
        """True for kernels and copies: what a device ran."""
        mask: Mask = (self.category <= MEMSET) & (self.stream >= 0)
        return mask


@attrs.frozen(eq=False)
class KinetoTrace:
    """One trace file.

    Attributes:
        events: its whole events.
        origin_us: origin of their times, microseconds as the file has them.
        base_us: what is added to `origin_us` for microseconds since the epoch; 0 if the file has no time base.
        properties: everything in the file but its events: `distributedInfo`, `deviceProperties`, …
        collectives: row of `events` → arguments of a collective.
        inputs: row of `events` → inputs of an operator, if shapes were recorded.
    """

    events: KinetoColumns
    origin_us: float
    base_us: float
    properties: Mapping[str, Any]
    collectives: Mapping[int, Collective]
    inputs: Mapping[int, Inputs]

    def select(self, keep: Mask) -> KinetoTrace:
        """Return the trace with the chosen events only."""
        row_of = np.cumsum(keep) - 1
        collectives = {int(row_of[row]): one for row, one in self.collectives.items() if keep[row]}
        inputs = {int(row_of[row]): one for row, one in self.inputs.items() if keep[row]}
        return attrs.evolve(self, events=self.events[keep], collectives=collectives, inputs=inputs)

    @property
    def rank(self) -> int | None:
        """The rank that `distributedInfo` names; None if it does not."""
        info = self.properties.get("distributedInfo")
        rank = info.get("rank") if isinstance(info, dict) else None
        return rank if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 else None

    @property
    def device_properties(self) -> list[Mapping[str, Any]]:
        """The properties of the devices of this machine."""
        found = self.properties.get("deviceProperties")
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def is_kineto(head: bytes) -> bool:
    """Return whether a file, of which these are the first unpacked bytes, looks like a trace of torch.profiler."""
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    if text[:1] != b"{":
        return False
    markers = (b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"', b'"baseTimeNanoseconds"', b'"cpu_op"')
    return any(marker in text for marker in markers)


def unpacked_head(data: bytes, size: int = 65536) -> bytes:
    """Return the first bytes of a plain or gzip file, from its first bytes."""
    if data[:2] != b"\x1f\x8b":
        return data[:size]
    with suppress(zlib.error):
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, size)
    return b""


def read_kineto(blocks: Iterable[bytes]) -> tuple[KinetoTrace, Outcome]:
    """Read a trace of torch.profiler, plain or compressed with gzip.

    Args:
        blocks: the file in pieces of any size.

    Returns:
        The trace and the outcome. No content of a file raises an error.
    """
    tally = Tally()
    columns = _Columns()
    properties: dict[str, Any] = {}
    for records in _Pieces(_unpacked(blocks, tally), tally, properties):
        columns.add(records)
    if not columns.count:
        tally.mend("no events of torch.profiler")
    trace = columns.trace(properties)
    outcome = tally.close(len(trace.events))
    return trace, outcome if len(trace.events) else attrs.evolve(outcome, status=REFUSED)


def _unpacked(blocks: Iterable[bytes], tally: Tally) -> Iterator[bytes]:
    """Yield plain bytes, at most MAX_FILE_BYTES of them."""
    unpacker = None
    size = packed = 0
    for number, block in enumerate(blocks):
        if not number and block[:2] == b"\x1f\x8b":
            unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
        packed += len(block)
        limit = min(MAX_FILE_BYTES, max(_UNPACKED_BYTES, _UNPACKED_TIMES * packed)) if unpacker else MAX_FILE_BYTES
        rest = block
        while rest:
            if unpacker is None:
                piece, rest = rest, b""
            else:
                try:
                    piece = unpacker.decompress(rest, CHUNK_BYTES)
                except zlib.error:
                    tally.mend("compressed data damaged")
                    return
                rest = unpacker.unconsumed_tail
            size += len(piece)
            if size > limit:
                tally.drop("file too large, the rest")
                return
            if piece:
                yield piece
            if unpacker is not None and unpacker.eof:
                return
    if unpacker is not None and not unpacker.eof:
        tally.mend("compressed data cut off")


class _Pieces:
    """The records of a trace in lists, and its other contents in `properties`."""

    def __init__(self, blocks: Iterator[bytes], tally: Tally, properties: dict[str, Any]) -> None:
        self._blocks = blocks
        self._tally = tally
        self._properties = properties

    def __iter__(self) -> Iterator[list[_Event]]:
        buffer = self._after_head()
        for block in self._blocks:
            buffer += block
            if len(buffer) < CHUNK_BYTES:
                continue
            cut = self._cut(buffer)
            if cut is not None:
                records, buffer = cut
                yield records
            elif len(buffer) > MAX_RECORD_BYTES:
                self._tally.drop("a record that is too long, and all after it")
                return
        yield from self._last(bytes(buffer))

    def _after_head(self) -> bytearray:
        """Read up to the first record; what precedes it are properties."""
        buffer = bytearray()
        for block in self._blocks:
            buffer += block
            found = _EVENTS.search(buffer)
            if found:
                head = bytes(buffer[: found.start()]).removeprefix(BYTE_ORDER_MARK).rstrip().rstrip(b",")
                self._remember(head + b"}")
                del buffer[: found.end()]
                return buffer
            if buffer.lstrip()[:1] == b"[":
                del buffer[: buffer.find(b"[") + 1]
                return buffer
            if len(buffer) > MAX_RECORD_BYTES:
                break
        self._tally.mend("no traceEvents")
        return bytearray()

    def _remember(self, text: bytes) -> None:
        with suppress(*_BROKEN):
            found = msgspec.json.decode(text)
            if isinstance(found, dict):
                self._properties.update(found)

    @staticmethod
    def _cut(buffer: bytearray) -> tuple[list[_Event], bytearray] | None:
        """Return the records up to the last border in the buffer, and the rest; None if no border was found."""
        brace = len(buffer)
        for _ in range(_BORDER_TRIES):
            brace = buffer.rfind(b"}", 0, brace)
            if brace < 0:
                return None
            border = _BORDER.match(buffer, brace)
            if border is None:
                continue
            piece = b"[" + bytes(buffer[: brace + 1]) + b"]"
            # A border inside a string or an object leaves the array open.
            with suppress(*_BROKEN):
                return _decoded(piece), buffer[border.end() :]
        return None

    def _last(self, piece: bytes) -> Iterator[list[_Event]]:
        """Yield the last records; the properties after them are remembered."""
        with suppress(*_BROKEN):
            document = _PROPERTIES.decode(b'{"traceEvents":[' + piece)
            records = _decoded(bytes(document.pop("traceEvents")))
            for key, raw in document.items():
                self._properties[key] = msgspec.json.decode(raw)
            yield records
            return
        with suppress(*_BROKEN):
            yield _decoded(b"[" + piece)
            return
        text = clean(piece, self._tally)
        found = []
        for item in objects(text, self._tally):
            with suppress(*_BROKEN):
                found.append(_event(item.encode()))
        if found:
            self._tally.mend("array not closed")
        yield found


def _decoded(array: bytes) -> list[_Event]:
    try:
        return _ARRAY.decode(array)
    except msgspec.ValidationError:
        return [_event(bytes(raw)) for raw in _RECORDS.decode(array)]


def _event(text: bytes) -> _Event:
    """Return an event of any writer: a value of an unexpected type counts as absent."""
    try:
        loose = _LOOSE.decode(text)
    except msgspec.ValidationError:
        return _Event()
    arguments = _Arguments()
    for key, value in loose.args.items() if isinstance(loose.args, dict) else ():
        field = _ARGUMENT_FIELDS.get(key)
        if field in _TEXTS and isinstance(value, str):
            setattr(arguments, field, value)
        elif field in _RAWS:
            setattr(arguments, field, msgspec.Raw(msgspec.json.encode(value)))
        elif field is not None and field not in _TEXTS:
            setattr(arguments, field, _whole(value))
    return _Event(
        loose.ph,
        loose.cat or "",
        loose.name or "",
        loose.pid if isinstance(loose.pid, int | str) else -1,
        loose.tid if isinstance(loose.tid, int | str) else -1,
        _real(loose.ts),
        _real(loose.dur),
        arguments,
    )


def _whole(value: Any) -> int:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _INT64 else -1


def _real(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


_FIELDS = attrgetter("ts", "dur", "name", "cat")
_THREAD = attrgetter("pid", "tid")
_NUMBERS = attrgetter("stream", "device", "correlation", "bytes")


class _Columns:
    """The columns so far."""

    def __init__(self) -> None:
        self.count = 0
        self._names, self._threads, self._categories = Numbering(), Numbering(), Numbering()
        self._parts: list[tuple[NDArray[Any], ...]] = []
        self._collectives: dict[int, Collective] = {}
        self._inputs: dict[int, Inputs] = {}
        self._same: dict[tuple[bytes, bytes], Inputs] = {}

    def add(self, records: list[_Event]) -> None:
        """Take the next records; only whole events count."""
        events = [one for one in records if one.ph == "X"]
        if not events:
            return
        count = len(events)
        start, duration, names, categories = zip(*map(_FIELDS, events), strict=True)
        numbers = _table([_NUMBERS(one.args) for one in events])
        category = np.fromiter(map(self._categories.__getitem__, categories), np.int32, count)
        self._parts.append((
            np.array(start, np.float64),
            np.array(duration, np.float64),
            np.fromiter(map(self._names.__getitem__, names), np.int32, count),
            category,
            np.fromiter(map(self._threads.__getitem__, map(_THREAD, events)), np.int32, count),
            numbers,
        ))  # fmt: skip
        described = [(row, one.args) for row, one in enumerate(events, self.count) if _is_described(one.args)]
        for row, arguments in described:
            if arguments.collective:
                self._collectives[row] = Collective(
                    arguments.collective, arguments.in_elements, arguments.out_elements, arguments.element_type,
                    arguments.group, arguments.group_size,
                )  # fmt: skip
            else:
                key = bytes(arguments.shapes), bytes(arguments.types)
                inputs = self._same.get(key)
                if inputs is None:
                    inputs = self._same[key] = Inputs(*(text.decode() for text in key))
                self._inputs[row] = inputs
        self.count += count

    def trace(self, properties: dict[str, Any]) -> KinetoTrace:
        """Return the trace: events with sound times, sorted by their start, outer ones first."""
        kinds = (np.float64, np.float64, np.int32, np.int32, np.int32)
        start, duration, name, category, thread = (
            np.concatenate([part[at] for part in self._parts]) if self._parts else np.empty(0, kind)
            for at, kind in enumerate(kinds)
        )
        numbers = np.concatenate([part[5] for part in self._parts]) if self._parts else np.empty((0, 4), np.int64)
        sound = np.isfinite(start) & np.isfinite(duration) & (duration >= 0) & (np.abs(start) < _LAST)
        order = np.flatnonzero(sound)
        order = order[np.lexsort((-duration[order], start[order]))]
        origin = float(start[order[0]]) if len(order) else 0.0
        number_of = np.array([_category(text) for text in self._categories] or [OTHER], np.int8)
        base = properties.get("baseTimeNanoseconds")
        events = KinetoColumns(
            start[order] - origin,
            duration[order],
            Category(name[order], tuple(self._names)),
            number_of[category[order]],
            thread[order],
            np.clip(numbers[order, 0], -1, 2**31 - 1).astype(np.int32),
            np.clip(numbers[order, 1], -1, 2**31 - 1).astype(np.int32),
            numbers[order, 2],
            numbers[order, 3],
        )
        row_of = np.full(self.count, -1, np.int64)
        row_of[order] = np.arange(len(order))
        return KinetoTrace(
            events,
            origin,
            base / 1e3 if isinstance(base, int) and 0 < base < _INT64 else 0.0,
            properties,
            {int(row_of[row]): one for row, one in self._collectives.items() if row_of[row] >= 0},
            {int(row_of[row]): one for row, one in self._inputs.items() if row_of[row] >= 0},
        )


def _table(rows: list[tuple[int, ...]]) -> Ints:
    """Return integers as a table; those beyond 64 bits count as absent."""
    try:
        return np.array(rows, np.int64)
    except OverflowError:
        return np.array([[number if abs(number) <= _INT64 else -1 for number in row] for row in rows], np.int64)


def _is_described(arguments: _Arguments) -> bool:
    return bool(arguments.collective or arguments.shapes)


def _category(text: str) -> int:
    return _CATEGORIES.get(text.lower(), OTHER)
