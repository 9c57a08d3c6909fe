"""Time of each step in each column, without the columns that are zero: most jobs record a few of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats


@attrs.frozen(eq=False)
class PartTable:
    """A matrix of floats, shape (rows, width); `table[rows, column]` reads one column or value of it.

    Attributes:
        count: number of rows.
        width: number of columns.
        columns: number of a column → its values; the others are zero.
    """

    count: int
    width: int
    columns: Mapping[int, Floats]

    @classmethod
    def of(cls, values: Any) -> PartTable:
        """Return a matrix as a table; a table is returned as it is."""
        if isinstance(values, PartTable):
            return values
        found = {int(number): np.ascontiguousarray(values[:, number]) for number in np.flatnonzero(values.any(axis=0))}
        return cls(len(values), values.shape[1], found)

    @classmethod
    def concat(cls, tables: Iterable[PartTable], further: Iterable[int] = ()) -> PartTable:
        """Return the rows of all tables, in new arrays; `further` columns exist in the result although they are zero."""
        tables = list(tables)
        numbers = sorted({number for table in tables for number in table.columns} | set(further))
        count, width = sum(table.count for table in tables), tables[0].width
        return cls(count, width, {number: np.concatenate([table[:, number] for table in tables]) for number in numbers})

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, key: Any) -> Any:
        """Return rows as a table, or the values of one column."""
        if not isinstance(key, tuple):
            return PartTable(
                len(np.arange(self.count)[key]),
                self.width,
                {number: values[key] for number, values in self.columns.items()},
            )
        rows, number = key
        found = self.columns.get(range(self.width)[int(number)])
        return np.zeros(self.count)[rows] if found is None else found[rows]

    def with_columns(self, columns: Mapping[int, Floats]) -> PartTable:
        """Return the table with other values in some columns."""
        return attrs.evolve(self, columns={**self.columns, **columns})

    def add(self, row: int, values: Floats) -> None:
        """Add one value to each column of a row, in place; the columns of all values that are not zero must exist."""
        for number in np.flatnonzero(values):
            self.columns[int(number)][row] += values[number]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # numpy's signature
        """Return the whole matrix."""
        del copy
        whole = np.zeros((self.count, self.width))
        for number, values in self.columns.items():
            whole[:, number] = values
        return whole if dtype is None else whole.astype(dtype)
