"""Concatenation of the rows of many files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category, EventColumns, Numbering, SystemColumns
from sm_profiler.formats.system_reader import SystemRows
from sm_profiler.formats.trace_rows import TraceRows


class _Column:
    """A column filled file by file."""

    def __init__(self, kind: type[np.generic], capacity: int) -> None:
        self._rows: NDArray[Any] = np.empty(capacity, kind)

    def part(self, span: slice, capacity: int) -> NDArray[Any]:
        """Return the rows of a span, to be filled."""
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
        """Set one text for all rows of a part."""
        codes[:] = self._numbers[text]

    def category(self, count: int) -> Category:
        """Return the column."""
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
        """Append a file's rows."""
        span = self._span(len(rows.head))
        for column, values in zip(self._numbers, (rows.timestamp, rows.value), strict=True):
            column.part(span, self._capacity)[:] = values
        for place, text in enumerate(self._texts):
            text.fill(text.part(span, self._capacity), (head[place] for head in rows.heads), rows.head)

    def columns(self) -> SystemColumns:
        """Return all rows."""
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
        """Append a file's events."""
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
        """Return all events."""
        count = self._count
        start, duration = (column.rows(count) for column in self._times)
        texts = (self._name, self._phase, self._node, self._kind, self._args)
        name, phase, node, kind, args = (text.category(count) for text in texts)
        step, pid, tid, worker, workers, pin = (column.rows(count) for column in self._numbers)
        track = self._track.rows(count)
        return EventColumns(start, duration, name, phase, node, kind, step, pid, tid, worker, workers, pin, args, track)


def event_columns(parts: Iterable[TraceRows]) -> EventColumns:
    """Concatenate the events of all parts."""
    assembler = EventAssembler()
    for part in parts:
        assembler.add(part)
    return assembler.columns()


def _look_up(column: NDArray[Any], values: Any, rows: NDArray[np.int32]) -> None:
    if len(rows):
        np.take(np.array(values, column.dtype), rows, out=column, mode="clip")
