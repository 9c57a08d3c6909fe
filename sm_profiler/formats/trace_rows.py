"""Trace events of one file in compact form: times, and indices of repeating heads and arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Any

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category, EventColumns, Floats, Ints, Numbering, SystemColumns
from sm_profiler.formats.system_reader import SystemRows

Key = tuple[str, int | str]  # phase and thread, which a begin and its end share
Head = tuple[str, str, int, int]  # name, phase, track (the trace's own process number), thread
# step, pid, thread, worker, workers, pin_memory, the others as JSON
Arguments = tuple[int, int, int, int, int, int, str]

NO_ARGUMENTS: Arguments = (-1, -1, -1, -1, -1, -1, "")
_INT64, _INT32 = 1 << 63, 1 << 31
_Long = Annotated[int, msgspec.Meta(ge=-_INT64, le=_INT64 - 1)]
_Short = Annotated[int, msgspec.Meta(ge=-_INT32, le=_INT32 - 1)]
_LEFT_OUT = {"step_num", "pid", "thread_id", "worker_id", "num_workers", "pin_memory"}

_KNOWN_KEYS = ("pid", "thread_id", "worker_id", "num_workers")


class _Column:
    """A column filled file by file."""

    def __init__(self, kind: type[np.generic], capacity: int) -> None:
        self._rows: NDArray[Any] = np.empty(capacity, kind)

    def part(self, span: slice, capacity: int) -> NDArray[Any]:
        if span.stop > len(self._rows):
            grown = np.empty(capacity, self._rows.dtype)
            grown[: span.start] = self._rows[: span.start]
            self._rows = grown
        return self._rows[span]

    def rows(self, count: int) -> NDArray[Any]:
        """Return the column. Reserved memory beyond it was never touched, so it takes no space."""
        return self._rows[:count]


class _Texts(_Column):
    """A category column filled file by file."""

    def __init__(self, capacity: int) -> None:
        super().__init__(np.int32, capacity)
        self._numbers = Numbering()

    def fill(self, codes: NDArray[Any], table: Iterable[str], rows: NDArray[np.int32]) -> None:
        """Set the codes of a part; `rows` holds the index of each row's text in the table."""
        numbers = np.fromiter(map(self._numbers.__getitem__, table), np.int32)
        if len(numbers):
            np.take(numbers, rows, out=codes, mode="clip")

    def fill_one(self, codes: NDArray[Any], text: str) -> None:
        codes[:] = self._numbers[text]

    def category(self, count: int) -> Category:
        return Category(self.rows(count), tuple(self._numbers))


class _Assembler:
    """A table that grows file by file, so that the rows of each file can be freed at once."""

    def __init__(self, capacity: int) -> None:
        """Start with no rows; `capacity` is their expected number."""
        self._count = 0
        self._capacity = capacity

    def _span(self, rows: int) -> slice:
        span = slice(self._count, self._count + rows)
        self._count = span.stop
        if span.stop > self._capacity:
            self._capacity = max(span.stop, 2 * self._capacity)
        return span


class SystemAssembler(_Assembler):
    """Rows of files of system metrics, in their order."""

    def __init__(self, capacity: int = 0) -> None:
        super().__init__(capacity)
        self._numbers = [_Column(np.float64, capacity) for _ in range(2)]
        self._texts = [_Texts(capacity) for _ in range(4)]

    def add(self, rows: SystemRows) -> None:
        span = self._span(len(rows.head))
        for column, values in zip(self._numbers, (rows.timestamp, rows.value), strict=True):
            column.part(span, self._capacity)[:] = values
        for place, text in enumerate(self._texts):
            text.fill(text.part(span, self._capacity), (head[place] for head in rows.heads), rows.head)

    def columns(self) -> SystemColumns:
        timestamp, value = (column.rows(self._count) for column in self._numbers)
        kind, name, dimension, node = (text.category(self._count) for text in self._texts)
        return SystemColumns(timestamp, value, node, kind, name, dimension)


class EventAssembler(_Assembler):
    """Events of trace files, in their order."""

    def __init__(self, capacity: int = 0) -> None:
        super().__init__(capacity)
        self._times = [_Column(np.float64, capacity) for _ in range(2)]
        self._name, self._phase, self._node, self._kind, self._args = (_Texts(capacity) for _ in range(5))
        numbers = (np.int64, np.int64, np.int64, np.int32, np.int32, np.int8)  # as in TraceRows.numbers
        self._numbers = [_Column(kind, capacity) for kind in numbers]
        self._track = _Column(np.int64, capacity)

    def add(self, rows: TraceRows) -> None:
        head, argument = rows.head, rows.argument
        span = self._span(len(head))
        for column, values in zip(self._times, (rows.start_us, rows.duration_us), strict=True):
            column.part(span, self._capacity)[:] = values
        heads: Any = list(zip(*rows.heads, strict=True)) or [(), (), (), ()]
        texts = (self._name, self._phase, self._node, self._kind, self._args)
        name, phase, node, kind, args = (text.part(span, self._capacity) for text in texts)
        self._name.fill(name, heads[0], head)
        self._phase.fill(phase, heads[1], head)
        self._node.fill_one(node, rows.node)
        self._kind.fill_one(kind, rows.kind)
        if rows.others:
            self._args.fill(args, rows.others, argument)
        else:
            self._args.fill_one(args, "")
        numbers = [column.part(span, self._capacity) for column in self._numbers]
        for part, values in zip(numbers, rows.numbers.T, strict=True):
            _look_up(part, values, argument)
        _look_up(self._track.part(span, self._capacity), heads[2], head)
        if any(thread >= 0 for thread in heads[3]):
            own = np.empty(len(head), np.int64)
            _look_up(own, heads[3], head)
            np.copyto(numbers[2], own, where=numbers[2] < 0)

    def columns(self) -> EventColumns:
        count = self._count
        start, duration = (column.rows(count) for column in self._times)
        texts = (self._name, self._phase, self._node, self._kind, self._args)
        name, phase, node, kind, args = (text.category(count) for text in texts)
        step, pid, tid, worker, workers, pin = (column.rows(count) for column in self._numbers)
        track = self._track.rows(count)
        return EventColumns(start, duration, name, phase, node, kind, step, pid, tid, worker, workers, pin, args, track)


def event_columns(parts: Iterable[TraceRows]) -> EventColumns:
    assembler = EventAssembler()
    for part in parts:
        assembler.add(part)
    return assembler.columns()


def _look_up(column: NDArray[Any], values: Any, rows: NDArray[np.int32]) -> None:
    if len(rows):
        np.take(np.array(values, column.dtype), rows, out=column, mode="clip")


@attrs.frozen
class OpenEvent:
    key: Key
    head: Head
    start_us: float
    args: str


@attrs.frozen
class LooseEnd:
    """The end of an event that began in an earlier file."""

    key: Key
    end_us: float
    args: str


@attrs.frozen(eq=False)
class TraceRows:
    """The events of one file.

    Attributes:
        start_us, duration_us: as in EventColumns.
        head, argument: int32; indices of each event into `heads` and the rows of `numbers`.
        heads: (name, phase, track, thread).
        numbers: int64, shape (rows, 6): step, pid, thread, worker, workers and pin_memory of each text of arguments.
        others: the other arguments of each row of `numbers` as JSON; empty if no row has any.
        node, kind: the file's; see EventColumns.
        metadata: sm-profiler's own metadata records in the file.
        loose_ends, open_events: ends and begins without a counterpart in the file; all ends precede all begins.
    """

    start_us: Floats
    duration_us: Floats
    head: NDArray[np.int32]
    argument: NDArray[np.int32]
    heads: tuple[Head, ...]
    numbers: Ints
    others: tuple[str, ...]
    node: str
    kind: str
    metadata: tuple[dict[str, Any], ...] = ()
    loose_ends: tuple[LooseEnd, ...] = ()
    open_events: tuple[OpenEvent, ...] = ()


class _Known(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Arguments that all have a column."""

    step_num: _Long | Annotated[str, msgspec.Meta(pattern="^[0-9]{1,18}$")] = -1
    pid: _Long = -1
    thread_id: _Long = -1
    worker_id: _Short = -1
    num_workers: _Short = -1
    pin_memory: bool | None = None


_KNOWN = msgspec.json.Decoder(_Known)
_ALL_KNOWN = msgspec.json.Decoder(list[_Known])


def argument_tables(texts: Collection[bytes]) -> tuple[Ints, tuple[str, ...]]:
    """Return `numbers` and `others` of texts of arguments.

    Raises:
        msgspec.MsgspecError: one of them is not JSON.
    """
    try:
        known = _ALL_KNOWN.decode(b"[" + b",".join([text or b"{}" for text in texts]) + b"]")
    except msgspec.ValidationError:
        known = []
    if len(known) == len(texts):
        columns = [
            [int(each.step_num) for each in known],
            *([getattr(each, key) for each in known] for key in _KNOWN_KEYS),
            [-1 if each.pin_memory is None else int(each.pin_memory) for each in known],
        ]
        return np.ascontiguousarray(np.array(columns, np.int64).reshape(6, len(known)).T), ()
    return tables_of([parse_arguments(text) for text in texts])


def tables_of(parsed: Sequence[Arguments]) -> tuple[Ints, tuple[str, ...]]:
    """Return `numbers` and `others` of parsed arguments."""
    numbers = np.array([each[:6] for each in parsed], np.int64).reshape(len(parsed), 6)
    return numbers, tuple(each[6] for each in parsed) if any(each[6] for each in parsed) else ()


def parse_arguments(text: bytes | str) -> Arguments:
    """Return the known keys of an event's `args`, and the others.

    Raises:
        msgspec.MsgspecError: the text is not JSON.
    """
    if not text:
        return NO_ARGUMENTS
    try:
        a = _KNOWN.decode(text)
    except msgspec.ValidationError:
        return _parse_any(text)
    pin = -1 if a.pin_memory is None else int(a.pin_memory)
    return int(a.step_num), a.pid, a.thread_id, a.worker_id, a.num_workers, pin, ""


def _parse_any(text: bytes | str) -> Arguments:
    args = msgspec.json.decode(text)
    if not isinstance(args, dict):
        return (*NO_ARGUMENTS[:6], "" if args is None else msgspec.json.encode(args).decode())
    taken = {key: number for key in _LEFT_OUT & args.keys() if (number := whole(args[key], key)) is not None}
    thread = taken.get("thread_id")
    if thread is None:
        thread = whole(args.get("tid"), "tid")
    rest = {key: value for key, value in args.items() if key not in taken} if len(taken) < len(args) else None
    return (
        taken.get("step_num", -1),
        taken.get("pid", -1),
        -1 if thread is None else thread,
        taken.get("worker_id", -1),
        taken.get("num_workers", -1),
        taken.get("pin_memory", -1),
        msgspec.json.encode(rest).decode() if rest else "",
    )


def whole(value: Any, key: str = "") -> int | None:
    """Return the whole number that writers mean by `3`, `"3"` or `3.0`; None for other values."""
    if key == "pin_memory":
        return int(value) if isinstance(value, bool) else None
    if isinstance(value, str):
        try:
            value = int(value) if len(value) <= 20 else None  # more digits than 64 bits have
        except ValueError:
            return None
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    limit = _INT32 if key in {"worker_id", "num_workers"} else _INT64
    return value if -limit <= value < limit else None


def instant_arguments(text: bytes | str, scope: str) -> bytes:
    mark = {"ph": "i"} | ({"s": scope} if scope else {})
    args = msgspec.json.decode(text) if text else None
    if isinstance(args, dict):
        mark |= {key: value for key, value in args.items() if key not in {"ph", "s"}}
    return msgspec.json.encode(mark)


def join_loose(rows: TraceRows, stacks: dict[Key, list[OpenEvent]]) -> tuple[TraceRows | None, list[OpenEvent], int]:
    """Join the ends of a file with the open events of its stream's earlier files.

    Args:
        stacks: the open events; changed in place.

    Returns:
        The joined events (None without any), the begins dropped because their end precedes them, and the number of
        ends without a begin.
    """
    joined: list[tuple[OpenEvent, LooseEnd]] = []
    backwards: list[OpenEvent] = []
    unmatched = 0
    for end in rows.loose_ends:
        stack = stacks.get(end.key)
        if not stack:
            unmatched += 1
            continue
        begin = stack.pop()
        if end.end_us < begin.start_us:
            backwards.append(begin)
        else:
            joined.append((begin, end))
    for event in rows.open_events:
        stacks.setdefault(event.key, []).append(event)
    return (_joined_rows(rows, joined) if joined else None), backwards, unmatched


def _joined_rows(rows: TraceRows, joined: Sequence[tuple[OpenEvent, LooseEnd]]) -> TraceRows:
    heads: dict[Head, int] = {}
    arguments: dict[str, int] = {}
    start = np.array([begin.start_us for begin, _ in joined], np.float64)
    end = np.array([end.end_us for _, end in joined], np.float64)
    head = [heads.setdefault(begin.head, len(heads)) for begin, _ in joined]
    argument = [arguments.setdefault(end.args or begin.args, len(arguments)) for begin, end in joined]
    numbers, others = tables_of([parse_arguments(text) for text in arguments])
    return TraceRows(
        start,
        end - start,
        np.array(head, np.int32),
        np.array(argument, np.int32),
        tuple(heads),
        numbers,
        others,
        rows.node,
        rows.kind,
    )
