"""Columns in a third of their memory, for rows that wait to be delivered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category, Floats, Ints, Mask, Rows

_KINDS = (np.int8, np.int16, np.int32, np.int64)
_UNITS = (
    1.0,
    4.0,
    100.0,
    1e6,
)  # whole numbers, quarters of a µs (see EventColumns), percent, seconds with microseconds
_TRIED = 16  # numbers of a column that are tried first: most columns have numbers of one kind
_MAX_WHOLE = float(1 << 53)  # whole numbers are exact below


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
        """Pack columns."""
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
        """Return some rows of a column."""
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
