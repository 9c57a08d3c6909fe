"""Columns of which the number of rows is known before they are read: each row is written once, to its place."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category, Numbering

_MOST = 1 << 26  # rows to expect at first: a damaged file may promise any number
_Codes = NDArray[np.int32]


class ColumnFiller:
    """Rows of several tables one after another, without a table of each in memory."""

    def __init__(self, kind: Any, rows: int) -> None:
        """Start with no rows.

        Args:
            kind: SystemColumns or EventColumns.
            rows: the expected number; more make all columns move.
        """
        self._kind, self._filled, self._room = kind, 0, min(rows, _MOST)
        empty = kind.empty()
        self._names = [field.name for field in attrs.fields(kind)]
        self._texts = {name: Numbering() for name in self._names if isinstance(getattr(empty, name), Category)}
        self._codes: dict[str, tuple[tuple[str, ...], _Codes | None]] = {}  # texts of the last table, and their numbers
        kinds = {name: np.int32 if name in self._texts else getattr(empty, name).dtype for name in self._names}
        self._columns: dict[str, NDArray[Any]] = {name: np.empty(self._room, kind) for name, kind in kinds.items()}

    def add(self, table: Any, start: int = 0, stop: int | None = None) -> None:
        """Append rows of a table."""
        stop = len(table) if stop is None else stop
        end = self._filled + stop - start
        if end > self._room:
            self._room = max(end, self._room + self._room // 2)
            self._columns = {name: _longer(column, self._filled, self._room) for name, column in self._columns.items()}
        for name, filled in self._columns.items():
            column, target = getattr(table, name), filled[self._filled : end]
            if not isinstance(column, Category):
                target[:] = column[start:stop]
                continue
            codes = self._codes_of(name, column.values)
            if codes is None:
                target[:] = column.codes[start:stop]
            elif len(codes):
                np.take(codes, column.codes[start:stop], out=target, mode="clip")  # other modes copy the result
        self._filled = end

    def _codes_of(self, name: str, values: tuple[str, ...]) -> _Codes | None:
        """Return the numbers of texts in the whole column; None if they are the same as in the table."""
        known = self._codes.get(name)
        if known is not None and known[0] is values:
            return known[1]
        numbers = self._texts[name]
        found = np.fromiter((numbers[text] for text in values), np.int32, len(values))
        codes = None if np.array_equal(found, np.arange(len(found))) else found
        self._codes[name] = values, codes
        return codes

    def columns(self) -> Any:
        """Return all rows; the filler is empty then."""
        found, self._columns = self._columns, {}
        rows = {name: found.pop(name)[: self._filled] for name in self._names}
        return self._kind(**{
            name: Category(column, tuple(self._texts[name])) if name in self._texts else column
            for name, column in rows.items()
        })  # fmt: skip


def _longer(column: NDArray[Any], filled: int, rows: int) -> NDArray[Any]:
    made = np.empty(rows, column.dtype)
    made[:filled] = column[:filled]
    return made
