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

_KINDS = (np.int8, np.int16, np.int32, np.int64)
_UNITS = (
    1.0,
    4.0,
    100.0,
    1e6,
)  # whole numbers, quarters of a µs (see EventColumns), percent, seconds with microseconds
_TRIED = 16  # numbers of a column that are tried first: most columns have numbers of one kind
_MAX_WHOLE = float(1 << 53)  # whole numbers are exact below


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


class Columns(attrs.AttrsInstance):
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
class SystemColumns(Columns):
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
        none, text = np.empty(0), Category.of(())
        return cls(none, none, text, text, text, text)


@attrs.frozen(eq=False)
class EventColumns(Columns):
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
        floats, ints, small = np.empty(0), np.empty(0, np.int64), np.empty(0, np.int32)
        text = Category.of(())
        return cls(
            floats, floats, text, text, text, text, ints, ints, ints, small, small, np.empty(0, np.int8), text, ints
        )


# Rows that wait, in fewer bytes


@attrs.frozen(eq=False)
class _Narrow:
    """A column of whole numbers with as few bytes as its values need; one number if all are equal."""

    values: NDArray[Any]
    length: int
    kind: np.dtype[Any]

    @classmethod
    def of(cls, column: NDArray[Any]) -> _Narrow:
        low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
        if low == high:
            return cls(np.full(1, low, column.dtype), len(column), column.dtype)
        fits = [kind for kind in _KINDS if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max]
        return cls(
            column.astype(min(fits, key=lambda kind: kind().itemsize, default=column.dtype.type)),
            len(column),
            column.dtype,
        )

    def __getitem__(self, rows: slice | Ints) -> NDArray[Any]:
        if len(self.values) == 1:
            count = len(range(*rows.indices(self.length))) if isinstance(rows, slice) else len(rows)
            return np.full(count, self.values[0], self.kind)
        return self.values[rows].astype(self.kind)


@attrs.frozen(eq=False)
class _Decimals:
    """A column of numbers with a few decimals: steps of a unit above the lowest, in half the bytes or less."""

    steps: NDArray[Any]
    low: float
    unit: float

    @classmethod
    def of(cls, column: Floats) -> _Decimals | None:
        """Pack a column; None if that would change a single bit."""
        tried = column[:: max(len(column) // _TRIED, 1)]
        for unit in _UNITS:
            if len(column) and _packs(tried, unit) and (found := cls._with(column, unit)) is not None:
                return found
        return None

    @classmethod
    def _with(cls, column: Floats, unit: float) -> _Decimals | None:
        low = float(np.rint(column.min() * unit))
        steps = column * unit
        np.rint(steps, out=steps)
        steps -= low
        high = steps.max()
        fits = [kind for kind in (np.uint8, np.uint16, np.uint32) if high <= np.iinfo(kind).max]  # not for NaN
        if not fits or abs(low) + high >= _MAX_WHOLE:
            return None
        packed = cls(steps.astype(fits[0]), low, unit)
        return packed if np.array_equal(packed[:].view(np.int64), column.view(np.int64)) else None

    def __getitem__(self, rows: Rows) -> Floats:
        found: Floats = self.steps[rows].astype(np.float64)
        found += self.low
        if self.unit != 1:
            found /= self.unit
        return found


def _packs(numbers: Floats, unit: float) -> bool:
    whole = np.rint(numbers * unit)
    return bool((np.abs(whole) < _MAX_WHOLE).all() and (whole / unit == numbers).all())


class Packed:
    """Rows of system metrics or events; a slice or a mask returns them as columns again."""

    def __init__(self, columns: Any) -> None:
        self._kind, self._length = type(columns), len(columns)
        self._texts: dict[str, tuple[str, ...]] = {}
        self._columns: dict[str, Any] = {}
        for field in attrs.fields(self._kind):
            column = getattr(columns, field.name)
            if isinstance(column, Category):
                self._texts[field.name], column = column.values, column.codes
            self._columns[field.name] = _packed_floats(column) if column.dtype.kind == "f" else _Narrow.of(column)

    def __len__(self) -> int:
        return self._length

    def floats(self, name: str, rows: Rows = slice(None)) -> Floats:
        """Return a column of numbers with fractions."""
        column: Floats = self._columns[name][rows]
        return column

    def __getitem__(self, rows: slice | Mask) -> Any:
        at = rows if isinstance(rows, slice) else np.flatnonzero(rows)
        return self._kind(**{name: _own(self.column(name, at)) for name in self._columns})

    def column(self, name: str, rows: Rows) -> Any:
        found = self._columns[name][rows]
        return Category(found, self._texts[name]) if name in self._texts else found


def _own(column: Any) -> Any:
    """Return a column that does not keep the rows of a larger one in memory."""
    return column if isinstance(column, Category) or column.base is None else column.copy()


def _packed_floats(column: Floats) -> Any:
    with np.errstate(invalid="ignore", over="ignore"):
        packed = _Decimals.of(column)
    return np.array(column) if packed is None else packed


def gather(
    kind: Any, chosen: Sequence[tuple[Packed, Rows]], order: tuple[str, Callable[[Category], Ints | None]] | None = None
) -> Any:
    """Return rows of several tables as one, column by column, so that they are not in memory twice.

    Args:
        kind: type of the columns.
        chosen: the tables, each with row numbers or a slice.
        order: name of a column, and what returns the order of all rows from it; None keeps them as they are.
    """
    if not chosen:
        return kind.empty()

    def column(name: str) -> Any:
        parts = [table.column(name, rows) for table, rows in chosen]
        if len(parts) == 1:
            return _own(parts[0])
        return Category.concat(parts) if isinstance(parts[0], Category) else np.concatenate(parts)

    ranks = None if order is None else order[1](column(order[0]))
    found = {}
    for field in attrs.fields(kind):
        whole = column(field.name)
        found[field.name] = whole if ranks is None else whole[ranks]
        del whole
    return kind(**found)
