"""Columns in a third of their memory, for rows that wait to be delivered."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category, Floats, Ints, Mask

_KINDS = (np.int8, np.int16, np.int32, np.int64)


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
            self._columns[field.name] = np.array(column) if column.dtype.kind == "f" else _Narrow.of(column)

    def __len__(self) -> int:
        return self._length

    def floats(self, name: str) -> Floats:
        """Return a column of numbers with fractions, as it is kept."""
        column: Floats = self._columns[name]
        return column

    def __getitem__(self, rows: slice | Mask) -> Any:
        at = rows if isinstance(rows, slice) else np.flatnonzero(rows)
        found = {name: column[at] for name, column in self._columns.items()}
        return self._kind(**{
            name: Category(column, self._texts[name]) if name in self._texts else np.array(column, copy=column.base is not None)
            for name, column in found.items()
        })  # fmt: skip
