"""The rows of many files as one table, each column allocated once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category, EventColumns, SystemColumns
from sm_profiler.formats.numbering import Numbering
from sm_profiler.formats.system_reader import SystemRows
from sm_profiler.formats.trace_rows import TraceRows


class _Texts:
    """A category column that is filled file by file."""

    def __init__(self, count: int) -> None:
        self.codes = np.empty(count, np.int32)
        self._numbers = Numbering()

    def fill(self, span: slice, table: Iterable[str], rows: NDArray[np.int32]) -> None:
        """Set the codes of a span: `rows` says which text of the table each row has."""
        codes = np.fromiter(map(self._numbers.__getitem__, table), np.int32)
        self.codes[span] = codes[rows] if len(codes) else 0

    def fill_one(self, span: slice, text: str) -> None:
        """Set the same text for a span."""
        self.codes[span] = self._numbers[text]

    def category(self) -> Category:
        """The column."""
        return Category(self.codes, tuple(self._numbers))


def system_columns(parts: list[SystemRows]) -> SystemColumns:
    """The rows of all parts, in their order; empties the list, so that its memory is free as the columns fill."""
    count = sum(len(part.value) for part in parts)
    timestamp, value = np.empty(count), np.empty(count)
    texts = [_Texts(count) for _ in range(4)]
    for span, part in _spans(parts):
        timestamp[span], value[span] = part.timestamp, part.value
        for column, text in enumerate(texts):
            text.fill(span, (head[column] for head in part.heads), part.head)
    kind, name, dimension, node = (text.category() for text in texts)
    return SystemColumns(timestamp, value, node, kind, name, dimension)


def event_columns(parts: list[TraceRows]) -> EventColumns:
    """The events of all parts, in their order; empties the list, so that its memory is free as the columns fill."""
    count = sum(len(part.start_us) for part in parts)
    start, duration = np.empty(count), np.empty(count)
    name, phase, node, kind, args = (_Texts(count) for _ in range(5))
    step, pid, tid, track = (np.empty(count, np.int64) for _ in range(4))
    worker, workers, pin = np.empty(count, np.int32), np.empty(count, np.int32), np.empty(count, np.int8)
    table: tuple[NDArray[Any], ...] = (step, pid, tid, worker, workers, pin)
    for span, part in _spans(parts):
        head, argument = part.head, part.argument
        start[span], duration[span] = part.start_us, part.duration_us
        heads: Any = list(zip(*part.heads, strict=True)) or [(), (), (), ()]
        name.fill(span, heads[0], head)
        phase.fill(span, heads[1], head)
        node.fill_one(span, part.node)
        kind.fill_one(span, part.kind)
        if part.others:
            args.fill(span, part.others, argument)
        else:
            args.fill_one(span, "")
        for column, values in zip(table, part.numbers.T, strict=True):
            _look_up(column[span], values, argument)
        _look_up(track[span], heads[2], head)
        if any(thread >= 0 for thread in heads[3]):
            own = np.empty(len(head), np.int64)
            _look_up(own, heads[3], head)
            tid[span] = np.where(tid[span] < 0, own, tid[span])
    columns = (name.category(), phase.category(), node.category(), kind.category(), step, pid, tid)
    return EventColumns(start, duration, *columns, worker, workers, pin, args.category(), track)


def _look_up(column: NDArray[Any], values: Any, rows: NDArray[np.int32]) -> None:
    if len(rows):
        np.take(np.array(values, column.dtype), rows, out=column, mode="clip")


def _spans(parts: list[Any]) -> Iterable[tuple[slice, Any]]:
    at = 0
    parts.reverse()
    while parts:
        part = parts.pop()
        yield slice(at, at + len(part.head)), part
        at += len(part.head)
