"""Columns of system metrics and trace events in memory, from the reader to rules and frames.

A row is never a Python object. Texts that repeat (names, phases, nodes) are categories: small integers into a tuple of
the distinct texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
Rows: TypeAlias = Any  # anything that selects rows of a numpy array: a mask, an array of row numbers, a slice


class Numbering(dict[Any, int]):
    """Numbers of keys by first appearance; `numbering[key]` never fails."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


@attrs.frozen(eq=False)
class Category:
    """A column of repeating texts.

    Attributes:
        codes: int32, shape (rows,); `values[codes[i]]` is the text of row i.
        values: the distinct texts; may include texts of rows that are no longer selected.
    """

    codes: NDArray[np.int32]
    values: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Category:
        """Encode texts, numbering them by first appearance."""
        numbers: dict[str, int] = {}
        codes = np.fromiter((numbers.setdefault(text, len(numbers)) for text in texts), np.int32)
        return cls(codes, tuple(numbers))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Rows) -> Category:
        return Category(self.codes[rows], self.values)

    def mask(self, wanted: str | Callable[[str], bool]) -> Mask:
        """Return True for each row whose text equals `wanted`, or for which `wanted(text)`, called once per text, is true."""
        if not callable(wanted):
            found: Mask = self.codes == (self.values.index(wanted) if wanted in self.values else -1)
            return found
        hit = [wanted(value) for value in self.values]
        return np.asarray(hit, np.bool_)[self.codes] if hit else np.zeros(len(self.codes), np.bool_)

    def decode(self) -> NDArray[np.object_]:
        """Return the text of each row."""
        return np.asarray(self.values, object)[self.codes] if self.values else np.empty(0, object)

    def present(self) -> list[str]:
        """Return the texts of the rows, each once, in order of first appearance."""
        first = np.full(len(self.values), len(self.codes))
        first[self.codes[::-1]] = np.arange(len(self.codes))[::-1]  # of several, the last one stays
        order = np.argsort(first, kind="stable")
        return [self.values[code] for code in order[: np.count_nonzero(first < len(self.codes))].tolist()]

    def groups(self, among: Mask | None = None) -> Iterator[tuple[str, Ints]]:
        """Yield each text of the rows (those `among`) with the numbers of its rows; texts in order of first appearance.

        One sort serves all texts: a mask for each of them takes time quadratic in their number.
        """
        rows = np.arange(len(self.codes)) if among is None else np.flatnonzero(among)
        codes = self.codes[rows]
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        parts = np.split(rows[order], starts[1:])
        for index in np.argsort(order[starts]):
            yield self.values[codes[order[starts[index]]]], parts[index]

    @classmethod
    def concat(cls, parts: Sequence[Category]) -> Category:
        """Concatenate categories, with one tuple of texts for all rows."""
        if parts and all(part.values is parts[0].values for part in parts):
            return cls(np.concatenate([part.codes for part in parts]), parts[0].values)
        numbers: dict[str, int] = {}
        maps = [
            np.fromiter((numbers.setdefault(text, len(numbers)) for text in part.values), np.int32) for part in parts
        ]
        coded = [codes[part.codes] if len(codes) else part.codes for codes, part in zip(maps, parts, strict=True)]
        return cls(np.concatenate(coded) if coded else np.empty(0, np.int32), tuple(numbers))


@cache
def _names(table: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in attrs.fields(table))


class Table(attrs.AttrsInstance):
    """Length, selection of rows and concatenation of both kinds of columns."""

    def __len__(self) -> int:
        return len(getattr(self, _names(type(self))[0]))

    def __getitem__(self, rows: Rows) -> Any:
        if isinstance(rows, np.ndarray) and rows.dtype == np.bool_ and rows.shape == (len(self),):
            rows = np.flatnonzero(rows)  # one scan of the mask instead of one for each column
        return type(self)(*[getattr(self, name)[rows] for name in _names(type(self))])

    @classmethod
    def concat(cls, parts: Sequence[Any]) -> Any:
        """Concatenate tables; without parts the result is an empty table."""
        if not parts:
            return cls.empty()
        if len(parts) == 1:
            return parts[0]
        columns = []
        for field in attrs.fields(cls):
            column = [getattr(part, field.name) for part in parts]
            columns.append(Category.concat(column) if isinstance(column[0], Category) else np.concatenate(column))
        return cls(*columns)

    @classmethod
    def empty(cls) -> Any:
        """Return a table without rows."""
        raise NotImplementedError


@attrs.frozen(eq=False)
class SystemColumns(Table):
    """System metrics, one row per measurement, in the order of the files (minute, then node) and of their lines.

    Attributes:
        timestamp: seconds since the epoch, float64.
        value: percent, bytes/s or 1/s, depending on the dimension.
        node: `algo-1` …
        type: cpu, gpu, memory, i/o, network …
        name: cpu0, gpu3, MemoryUsedPercent …; "" for a record without a name.
        dimension: CPUUtilization, I/OWaitPercentage, GPUUtilization, Algorithm …
    """

    timestamp: Floats
    value: Floats
    node: Category
    type: Category
    name: Category
    dimension: Category

    @classmethod
    def empty(cls) -> SystemColumns:
        """Return a table without rows."""
        none, text = np.empty(0), Category.of(())
        return cls(none, none, text, text, text, text)


@attrs.frozen(eq=False)
class EventColumns(Table):
    """Trace events, one row per event (begin and end joined), in the order of the files and of their lines.

    Attributes:
        start_us: microseconds since the epoch, float64 (exact for whole microseconds, else to a quarter).
        duration_us: microseconds; 0 for instants.
        name: `Step:ModeKeys.TRAIN`, `aten::conv2d` …
        phase: the trace's process name: `Forward`, `DataLoaderIter`, `cpu_functions` …
        node: node and process, `algo-1-0` for node algo-1 and rank (or process id) 0.
        kind: the timeline of its file: pythontimeline, model_timeline, trace, horovod_timeline, smdataparallel_timeline.
        step: the step number of its mode; -1 if unknown.
        pid: the process that recorded it (`args.pid`); -1 if unknown.
        tid: the thread; -1 if unknown.
        worker_id: of dataloader events; -1 for the main process or unknown.
        num_workers: of dataloader events; -1 if unknown.
        pin_memory: of dataloader events: 0, 1, or -1 if unknown.
        args: the other arguments as one JSON object per row, or "". An instant's begin with `{"ph":"i"`.
        track: the number under which the trace groups the events of a phase, which is not the id of a process; -1 if unknown.
    """

    start_us: Floats
    duration_us: Floats
    name: Category
    phase: Category
    node: Category
    kind: Category
    step: Ints
    pid: Ints
    tid: Ints
    worker_id: NDArray[np.int32]
    num_workers: NDArray[np.int32]
    pin_memory: NDArray[np.int8]
    args: Category
    track: Ints = attrs.field()

    @track.default
    def _no_track(self) -> Ints:
        return np.full(len(self.start_us), -1)

    @property
    def instants(self) -> Mask:
        """True for each row that is an instant, not a span."""
        return self.args.mask(lambda text: text.startswith('{"ph":"i"'))

    @property
    def end_us(self) -> Floats:
        """End of each event, microseconds since the epoch."""
        return self.start_us + self.duration_us

    @classmethod
    def empty(cls) -> EventColumns:
        """Return a table without rows."""
        floats, ints, small = np.empty(0), np.empty(0, np.int64), np.empty(0, np.int32)
        text = Category.of(())
        return cls(
            floats, floats, text, text, text, text, ints, ints, ints, small, small, np.empty(0, np.int8), text, ints
        )
