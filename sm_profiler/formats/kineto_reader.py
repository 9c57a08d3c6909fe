"""Traces of torch.profiler (Kineto): bytes to columns.

The records of CHUNK_BYTES exist as Python objects at a time: so few stay in the processor's cache, which doubles the
speed, and a file of a gigabyte needs memory for its columns and little more. Damaged or truncated files give what they hold.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from operator import attrgetter
from typing import Any

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.bounds import check_json
from sm_profiler.formats.columns import Category, Floats, Ints, Mask, Numbering, Rows
from sm_profiler.formats.outcome import (
    BYTE_ORDER_MARK,
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

CHUNK_BYTES = 256 << 10
SALVAGED_BYTES = 2 << 20  # text without a sound border between records is damage, not one record
BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
MAX_ELEMENTS = 1 << 18  # of what a trace has besides its events: the ranks of all process groups, for example

_INT64 = (1 << 63) - 1
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_EVENTS_BYTES = 1024  # length in which `_EVENTS` is sought again when more text arrives
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_NO_NUMBER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|(?<=[:,\[\s])-?(?:nan|NaN|inf|Inf|Infinity)\b', re.DOTALL)

_PROPERTIES = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RECORDS = msgspec.json.Decoder(list[msgspec.Raw])

_TEXTS = {"collective", "group", "element_type"}
_RAWS = {"shapes", "types", "values"}

# Categories of events, by their number in `KinetoColumns.category`.
KERNEL, MEMCPY, MEMSET, RUNTIME, OPERATOR, ANNOTATION, GPU_ANNOTATION, PYTHON, SYNC, OTHER = range(10)
PHASE = 10  # of no trace: a phase that the hook recorded while the trace ran, on an extra thread
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

_LAST = 1e19  # later and longer times, even in nanoseconds since the epoch, are damage

HEAD_BYTES = 1 << 16  # that show what a file is

# Single attributes: tuples that live as long as a chunk would wake the garbage collector, which reads all of the process.
_START, _DURATION, _ARGUMENTS = attrgetter("ts"), attrgetter("dur"), attrgetter("args")
_HEAD = attrgetter("name", "cat", "pid", "tid")
_NUMBERS: dict[str, type[np.signedinteger[Any]]] = {
    "stream": np.int32, "device": np.int32, "correlation": np.int64, "bytes": np.int64, "sequence": np.int64,
    "forward_thread": np.int64,
}  # fmt: skip
_NUMBER_OF = {name: attrgetter(name) for name in _NUMBERS}
_SHAPES, _COLLECTIVE = attrgetter("shapes"), attrgetter("collective")


class Arguments(msgspec.Struct, gc=False, frozen=True):
    """The arguments that are read; the others are skipped without being decoded."""

    stream: int | str = -1
    device: int | str = -1
    correlation: int | str = -1
    bytes: int | str = -1
    sequence: int = msgspec.field(name="Sequence number", default=-1)
    forward_thread: int = msgspec.field(name="Fwd thread id", default=0)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b""))
    values: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw(b""))
    collective: str = msgspec.field(name="Collective name", default="")
    in_elements: int = msgspec.field(name="In msg nelems", default=-1)
    out_elements: int = msgspec.field(name="Out msg nelems", default=-1)
    group_size: int = msgspec.field(name="Group size", default=-1)
    group: str = msgspec.field(name="Process Group Name", default="")
    element_type: str = msgspec.field(name="dtype", default="")


NO_ARGUMENTS = Arguments()


class Event(msgspec.Struct, gc=False):
    """An event as torch.profiler writes it."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float = 0.0
    dur: float = 0.0
    args: Arguments = NO_ARGUMENTS


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


_ARRAY, _LOOSE = msgspec.json.Decoder(list[Event]), msgspec.json.Decoder(_LooseEvent)
_FIELDS = {field.encode_name: field.name for field in msgspec.structs.fields(Arguments)}


class KinetoRecords:
    """The records of a trace in lists, and its other contents in `properties`."""

    def __init__(self, blocks: Iterator[bytes], tally: Tally) -> None:
        self.properties: dict[str, Any] = {}
        self._blocks = blocks
        self._tally = tally

    def __iter__(self) -> Iterator[list[Event]]:
        buffer = self._after_head()
        wanted = CHUNK_BYTES
        for block in self._blocks:
            buffer += block
            if len(buffer) < wanted:
                continue
            cut = self._cut(buffer)
            if cut is not None:
                records, end = cut
                del buffer[:end]
                wanted = CHUNK_BYTES
                yield records
            elif len(buffer) > MAX_RECORD_BYTES:
                self._tally.drop("a record that is too long, and all after it")
                return
            else:
                wanted = 2 * len(buffer)  # every try reads all of it
        yield from self._last(bytes(buffer))

    def _after_head(self) -> bytearray:
        """Read up to the first record; what precedes it are properties."""
        buffer = bytearray()
        for block in self._blocks:
            seen = len(buffer)
            buffer += block
            found = _EVENTS.search(buffer, max(0, seen - _EVENTS_BYTES))
            if found:
                head = bytes(buffer[: found.start()]).removeprefix(BYTE_ORDER_MARK).rstrip().rstrip(b",")
                self._remember(head + b"}")
                del buffer[: found.end()]
                return buffer
            if buffer[:1024].lstrip()[:1] == b"[":
                del buffer[: buffer.find(b"[") + 1]
                return buffer
            if len(buffer) > MAX_RECORD_BYTES:
                break
        self._tally.mend("no traceEvents")
        return bytearray()

    def _remember(self, text: bytes) -> None:
        with suppress(*BROKEN, ValueError):
            check_json(text, MAX_ELEMENTS)
            found = msgspec.json.decode(text)
            if isinstance(found, dict):
                self.properties.update(found)

    def _cut(self, buffer: bytearray) -> tuple[list[Event], int] | None:
        """Return the records up to a border in the buffer, and where the others begin; None if no border was found."""
        found = borders(buffer, 0, len(buffer))
        for end, following in found:
            # A border inside a string or an object leaves the array open.
            with suppress(*BROKEN):
                return _decoded(b"".join((b"[", memoryview(buffer)[:end], b"]")), self._tally), following
        if found and len(buffer) >= SALVAGED_BYTES:
            end, following = found[0]
            return self._salvaged(bytes(buffer[:end])), following
        return None

    def _last(self, piece: bytes) -> Iterator[list[Event]]:
        """Yield the last records; the properties after them are remembered."""
        with suppress(*BROKEN):
            document = _PROPERTIES.decode(b'{"traceEvents":[' + piece)
            records = _decoded(bytes(document.pop("traceEvents")), self._tally)
            for key, raw in document.items():
                with suppress(*BROKEN, ValueError):
                    check_json(bytes(raw), MAX_ELEMENTS)
                    self.properties[key] = msgspec.json.decode(raw)
            yield records
            return
        with suppress(*BROKEN):
            yield _decoded(b"[" + piece, self._tally)
            return
        found = self._salvaged(piece)
        if found:
            self._tally.mend("array not closed")
        yield found

    def _salvaged(self, piece: bytes) -> list[Event]:
        """Return the whole records of damaged text."""
        items = objects(clean(piece, self._tally), self._tally)
        return [event for item in items for event in self._one(item.encode())]

    def _one(self, item: bytes) -> list[Event]:
        with suppress(*BROKEN):
            return _decoded(b"[" + item + b"]", self._tally)
        self._tally.drop("no event of a known form")
        return []


def _decoded(array: bytes, tally: Tally) -> list[Event]:
    try:
        return _ARRAY.decode(array)
    except msgspec.ValidationError:
        return [_event(bytes(raw)) for raw in _RECORDS.decode(array)]
    except msgspec.DecodeError:
        # Kineto writes bandwidths and occupancies as it computed them, and Python writes NaN, too.
        mended = _NO_NUMBER.sub(lambda found: found[0] if found[0][:1] == b'"' else b"null", array)
        if mended == array:
            raise
        records = _decoded(mended, tally)
        tally.mend("NaN and infinite numbers replaced")
        return records


def _event(text: bytes) -> Event:
    """Return an event of any writer: a value of an unexpected type counts as absent."""
    try:
        loose = _LOOSE.decode(text)
    except msgspec.ValidationError:
        return Event()
    found: dict[str, Any] = {}
    for key, value in loose.args.items() if isinstance(loose.args, dict) else ():
        field = _FIELDS.get(key)
        if field in _TEXTS and isinstance(value, str):
            found[field] = value
        elif field in _RAWS:
            found[field] = msgspec.Raw(msgspec.json.encode(value))
        elif field is not None and field not in _TEXTS:
            found[field] = whole(value)
    return Event(
        loose.ph,
        loose.cat or "",
        loose.name or "",
        loose.pid if isinstance(loose.pid, int | str) else -1,
        loose.tid if isinstance(loose.tid, int | str) else -1,
        _real(loose.ts),
        _real(loose.dur),
        Arguments(**found),
    )


def whole(value: Any) -> int:
    """Return a number of 64 bits, also from text; -1 for anything else."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _INT64 else -1


def _real(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


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
class OperatorInputs:
    """Shapes and types of an operator's inputs, and the values of a convolution's others, as JSON."""

    shapes: str
    types: str
    values: str = ""


@attrs.frozen
class Span:
    """An event on a thread of the host; fields as in `KinetoColumns`."""

    name: str
    category: int
    thread: int
    start_us: float
    duration_us: float


@attrs.frozen(eq=False)
class KinetoColumns:
    """The whole events of one trace in the order of their starts.

    Attributes:
        start_us: since `KinetoTrace.origin_us`.
        duration_us: microseconds.
        category: int8; KERNEL, MEMCPY, …
        thread: number of the host thread or of the device's row; equal for events that nest.
        stream, device: int32; -1 if the event has none.
        correlation: int64, equal for a launch and what it launched; -1 if there is none.
        bytes: int64; size of a copy, -1 if unknown.
        sequence: int64, equal for a forward operator and the backward ones that it causes; -1 if unknown.
        is_backward: True for an operator that autograd runs.
        inputs: int32; index into `KinetoTrace.inputs`, -1 if no shapes were recorded.
        collective: int32; index into `KinetoTrace.collectives`, -1 for all but collectives.
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
    sequence: Ints
    is_backward: Mask
    inputs: NDArray[np.int32]
    collective: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.start_us)

    def __getitem__(self, rows: Rows) -> KinetoColumns:
        return KinetoColumns(*(getattr(self, field.name)[rows] for field in attrs.fields(KinetoColumns)))

    @classmethod
    def concat(cls, parts: Sequence[KinetoColumns]) -> KinetoColumns:
        """Concatenate events, with one tuple of names."""
        columns: list[Any] = []
        for field in attrs.fields(cls):
            column: list[Any] = [getattr(part, field.name) for part in parts]
            columns.append(Category.concat(column) if isinstance(column[0], Category) else np.concatenate(column))
        return cls(*columns)

    @property
    def end_us(self) -> Floats:
        """Ends, since `KinetoTrace.origin_us`."""
        return self.start_us + self.duration_us

    @property
    def on_device(self) -> Mask:
        """True for kernels and copies: what a device ran."""
        mask: Mask = (self.category <= MEMSET) & (self.stream >= 0)
        return mask

    @cached_property
    def device_events(self) -> KinetoColumns:
        return self[self.on_device]


@attrs.frozen(eq=False)
class KinetoTrace:
    """One trace file.

    Attributes:
        events: its whole events.
        origin_us: origin of their times, microseconds as the file has them.
        base_us: what is added to `origin_us` for microseconds since the epoch; 0 if the file has no time base.
        properties: everything in the file but its events: `distributedInfo`, `deviceProperties`, …
        collectives: the distinct arguments of collectives.
        inputs: the distinct inputs of operators.
        threads: process and thread of each number in `events.thread`, as the trace names them.
    """

    events: KinetoColumns
    origin_us: float
    base_us: float
    properties: Mapping[str, Any]
    collectives: tuple[Collective, ...]
    inputs: tuple[OperatorInputs, ...]
    threads: tuple[tuple[int | str, int | str], ...] = ()

    def select(self, keep: Mask) -> KinetoTrace:
        return attrs.evolve(self, events=self.events[keep])

    @property
    def epoch_us(self) -> float:
        """Origin of the times of `events`, microseconds since the epoch."""
        return self.origin_us + self.base_us

    def with_spans(self, spans: Sequence[Span]) -> KinetoTrace:
        """Return the trace with further events on the host's threads."""
        events, count = self.events, len(spans)
        if not count:
            return self
        none = np.full(count, -1, np.int64)
        added = KinetoColumns(
            np.array([span.start_us for span in spans], np.float64),
            np.array([span.duration_us for span in spans], np.float64),
            Category.of(span.name for span in spans),
            np.array([span.category for span in spans], np.int8),
            np.array([span.thread for span in spans], np.int32),
            none.astype(np.int32), none.astype(np.int32), none, none, none, np.zeros(count, np.bool_),
            none.astype(np.int32), none.astype(np.int32),
        )  # fmt: skip
        both = KinetoColumns.concat([events, added])
        return attrs.evolve(self, events=both[np.lexsort((-both.duration_us, both.start_us))])

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
        return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def is_kineto(head: bytes) -> bool:
    """Return whether a file, of which these are the first unpacked bytes, looks like a trace of torch.profiler."""
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    if text[:1] != b"{":
        return False
    markers = (b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"', b'"baseTimeNanoseconds"', b'"cpu_op"')
    return any(marker in text for marker in markers)


def unpacked_head(data: bytes) -> bytes:
    """Return the first HEAD_BYTES of a plain or gzip file, from its first bytes."""
    if data[:2] != b"\x1f\x8b":
        return data[:HEAD_BYTES]
    with suppress(zlib.error):
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, HEAD_BYTES)
    return b""


def read_kineto(blocks: Iterable[bytes]) -> tuple[KinetoTrace, Outcome]:
    """Read a trace of torch.profiler, plain or compressed with gzip.

    Returns:
        The trace and the outcome. No content of a file raises an error.
    """
    tally = Tally()
    columns = _Columns(tally)
    pieces = KinetoRecords(_unpacked(columns.weighed(blocks), tally), tally)
    for records in pieces:
        columns.add(records)
    if not columns.count:
        tally.mend("no events of torch.profiler")
    trace = columns.trace(pieces.properties)
    tally.drop("no sound time", columns.count - len(trace.events))
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
        limit = min(MAX_FILE_BYTES, max(UNPACKED_BYTES, UNPACKED_TIMES * packed)) if unpacker else MAX_FILE_BYTES
        rest = block
        while rest:
            if unpacker is None:
                piece, rest = rest[:CHUNK_BYTES], rest[CHUNK_BYTES:]
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


class _Categories(dict[str, int]):
    def __missing__(self, text: str) -> int:
        number = self[text] = _CATEGORIES.get(text.lower(), OTHER)
        return number


class _Columns:
    def __init__(self, tally: Tally) -> None:
        self.count = 0
        self._tally = tally
        self._stored = 0  # bytes of the file so far
        self._heads, self._shapes, self._collectives = Numbering(), Numbering(), Numbering()
        self._parts: dict[str, list[NDArray[Any]]] = {}

    def weighed(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self._stored += len(block)
            yield block

    def add(self, records: list[Event]) -> None:
        """Take the next records; only whole events count."""
        events = [record for record in records if record.ph == "X"]
        if not events:
            return
        texts = len(self._heads) + len(self._shapes) + len(self._collectives)
        if self.count > most_events(self._stored) or texts > most_texts(self._stored):
            self._tally.drop("more events or different names than traces have in as many bytes", len(events))
            return
        count = len(events)
        arguments = list(map(_ARGUMENTS, events))
        self._take("start", np.fromiter(map(_START, events), np.float64, count))
        self._take("duration", np.fromiter(map(_DURATION, events), np.float64, count))
        self._take("head", np.fromiter(map(self._heads.__getitem__, map(_HEAD, events)), np.int32, count))
        for name, kind in _NUMBERS.items():
            self._take(name, _numbers(list(map(_NUMBER_OF[name], arguments)), kind))
        numbers = self._shapes
        inputs = [
            numbers[_inputs(events[row].name, arguments[row])] if shapes else -1
            for row, shapes in enumerate(map(_SHAPES, arguments))
        ]
        self._take("inputs", np.fromiter(inputs, np.int32, count))
        collective = np.full(count, -1, np.int32)
        for row, item in enumerate(map(_COLLECTIVE, arguments)):
            if item:
                collective[row] = self._collectives[_collective(arguments[row])]
        self._take("collective", collective)
        self.count += count

    def _take(self, column: str, values: NDArray[Any]) -> None:
        self._parts.setdefault(column, []).append(values)

    def trace(self, properties: dict[str, Any]) -> KinetoTrace:
        """Return the trace: events with sound times, sorted by their start, outer ones first."""
        start, duration = self._joined("start", np.float64), self._joined("duration", np.float64)
        sound = (np.abs(start) < _LAST) & (duration >= 0) & (duration < _LAST)
        order = np.flatnonzero(sound)
        order = order[np.lexsort((-duration[order], start[order]))]
        origin = float(start[order[0]]) if len(order) else 0.0
        start, duration = start[order] - origin, duration[order]
        base = properties.get("baseTimeNanoseconds")
        names, categories, threads = Numbering(), _Categories(), Numbering()
        heads = np.array(
            [(names[name], categories[category], threads[tuple(thread)]) for name, category, *thread in self._heads],
            np.int32,
        ).reshape(-1, 3)[self._joined("head", np.int32)[order]]
        numbers = {name: self._joined(name, kind)[order] for name, kind in _NUMBERS.items()}
        is_backward = numbers.pop("forward_thread") > 0
        events = KinetoColumns(
            start,
            duration,
            Category(heads[:, 0].copy(), tuple(names)),
            heads[:, 1].astype(np.int8),
            heads[:, 2].copy(),
            **numbers,
            is_backward=is_backward,
            inputs=self._joined("inputs", np.int32)[order],
            collective=self._joined("collective", np.int32)[order],
        )
        return KinetoTrace(
            events,
            origin,
            base / 1e3 if isinstance(base, int) and 0 < base < _INT64 else 0.0,
            properties,
            tuple(self._collectives),
            tuple(OperatorInputs(*(text.decode(errors="replace") for text in key)) for key in self._shapes),
            tuple(threads),
        )

    def _joined(self, column: str, kind: type[np.generic]) -> NDArray[Any]:
        """Return a column, whose parts are no longer needed."""
        parts = self._parts.pop(column, None)
        return np.concatenate(parts) if parts else np.empty(0, kind)


def _numbers(values: list[int | str], kind: type[np.signedinteger[Any]] = np.int64) -> NDArray[Any]:
    """Return integers; values that are no integers, or too large, count as absent."""
    try:
        return np.fromiter(values, kind, len(values))
    except (TypeError, ValueError, OverflowError):
        numbers, largest = np.fromiter(map(whole, values), np.int64, len(values)), np.iinfo(kind).max
        return np.where(np.abs(numbers) <= largest, numbers, -1).astype(kind)


def _inputs(name: str, arguments: Arguments) -> tuple[bytes, ...]:
    """Return the inputs of an operator. Values repeat less than shapes, and only convolutions need theirs."""
    found = bytes(arguments.shapes), bytes(arguments.types)
    return (*found, bytes(arguments.values)) if name == "aten::convolution" else found


def _collective(arguments: Arguments) -> Collective:
    return Collective(
        arguments.collective, whole(arguments.in_elements), whole(arguments.out_elements), arguments.element_type,
        arguments.group, whole(arguments.group_size),
    )  # fmt: skip
