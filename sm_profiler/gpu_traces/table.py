"""Tables of numpy columns, which become DataFrames when asked: pandas takes longer to import than a trace to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category, Floats, Ints, Rows

if TYPE_CHECKING:
    import pandas as pd

Column: TypeAlias = NDArray[Any] | Category


@attrs.frozen(eq=False)
class TraceTable:
    """Columns of equal length.

    Attributes:
        columns: name → numpy array, or Category for texts that repeat.
    """

    columns: Mapping[str, Column]

    @classmethod
    def of(cls, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> TraceTable:
        """Return a table of rows; texts become an array of objects."""
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
        return cls({name: array_of(column) for name, column in zip(names, columns, strict=True)})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> NDArray[Any]:
        column = self.columns[name]
        return column.decode() if isinstance(column, Category) else column

    def category(self, name: str) -> Category:
        """Return a column of texts."""
        column = self.columns[name]
        return column if isinstance(column, Category) else Category.of(column.tolist())

    def take(self, rows: Rows) -> TraceTable:
        """Return the chosen rows."""
        return TraceTable({name: column[rows] for name, column in self.columns.items()})

    def head(self, count: int) -> TraceTable:
        """Return the first rows."""
        return self.take(slice(count))

    def largest_first(self, *names: str) -> TraceTable:
        """Return the rows ordered by some columns of numbers, the largest first."""
        return self.take(np.lexsort([-self[name] for name in reversed(names)]))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each row as plain values."""
        for values in zip(*(self[name].tolist() for name in self.columns), strict=True):
            yield dict(zip(self.columns, values, strict=True))

    def frame(self) -> pd.DataFrame:
        """Return a DataFrame; a Category becomes a categorical column."""
        import pandas as pd  # for callers that want DataFrames

        def of(column: Column) -> Any:
            if not isinstance(column, Category):
                return column
            categories: pd.Index[str] = pd.Index(list(column.values))
            return pd.Categorical.from_codes(column.codes, categories)

        return pd.DataFrame({name: of(column) for name, column in self.columns.items()})

    @classmethod
    def by_rank(cls, tables: Mapping[int, TraceTable]) -> TraceTable:
        """Return the rows of all ranks, with the rank as first column."""
        filled = {rank: table for rank, table in tables.items() if len(table)} or dict(list(tables.items())[:1])
        ranks = np.repeat(np.array(list(filled), np.int64), [len(table) for table in filled.values()])
        found: dict[str, Column] = {"rank": ranks}
        for name in next(iter(filled.values())).columns:
            parts: list[Any] = [table.columns[name] for table in filled.values()]
            found[name] = Category.concat(parts) if isinstance(parts[0], Category) else np.concatenate(parts)
        return cls(found)


def array_of(values: Sequence[Any]) -> NDArray[Any]:
    """Return values as an array, texts as objects."""
    if any(isinstance(value, str) for value in values):
        return np.array(values, object)
    return np.array(values) if len(values) else np.empty(0)


def rows_by(keys: NDArray[Any]) -> list[NDArray[np.intp]]:
    """Return the rows of each key, in the order of the keys."""
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(order) else []


class Groups:
    """Rows grouped by equal keys."""

    def __init__(self, *keys: NDArray[Any]) -> None:
        """Group by columns of numbers; the groups are in the order of the keys."""
        size = len(keys[0])
        self._order = np.lexsort(keys[::-1]) if size else np.empty(0, np.intp)
        new = np.zeros(size, np.bool_)
        new[:1] = True
        for key in keys:
            of_key = key[self._order]
            new[1:] |= of_key[1:] != of_key[:-1]
        self._starts = np.flatnonzero(new)
        self.count: Ints = np.diff(np.append(self._starts, size))

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def number(self) -> Ints:
        """Number of the group of each row."""
        found = np.empty(len(self._order), np.int64)
        found[self._order] = np.repeat(np.arange(len(self)), self.count)
        return found

    @property
    def rows(self) -> NDArray[np.intp]:
        """The first row of each group."""
        return self._order[self._starts]

    def first(self, values: NDArray[Any]) -> NDArray[Any]:
        return values[self.rows]

    def sum(self, values: Floats) -> Floats:
        """Return sums; NaN counts as 0."""
        return self._reduce(np.add, np.where(np.isnan(values), 0.0, values))

    def min(self, values: Floats) -> Floats:
        """Return the least values but for NaN."""
        return self._reduce(np.fmin, values)

    def max(self, values: Floats) -> Floats:
        """Return the largest values but for NaN."""
        return self._reduce(np.fmax, values)

    def mean(self, values: Floats) -> Floats:
        """Return means without NaN; NaN for a group that has nothing else."""
        known = self._reduce(np.add, np.isfinite(values).astype(float))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.sum(values) / known)

    def std(self, values: Floats) -> Floats:
        """Return the standard deviations of samples; 0 for a single value."""
        deviation = values - self.mean(values)[self.number]
        return np.asarray(np.sqrt(self.sum(deviation * deviation) / np.maximum(self.count - 1, 1)))

    def median(self, values: Floats) -> Floats:
        """Return medians without NaN; NaN for a group that has nothing else."""
        number = self.number
        order = np.lexsort((values, number))  # NaN comes last in its group
        known = self._reduce(np.add, (~np.isnan(values)).astype(float)).astype(np.int64)
        ordered, starts = values[order], self._starts
        low, high = starts + np.maximum(known - 1, 0) // 2, starts + known // 2
        high = np.minimum(high, starts + np.maximum(known - 1, 0))
        return np.where(known > 0, (ordered[low] + ordered[high]) / 2, np.nan) if len(starts) else np.empty(0)

    def cumsum(self, values: Ints) -> Ints:
        """Return the running sum within each group, for each row in the order of rows."""
        ordered = np.cumsum(values[self._order])
        before = np.repeat((ordered - values[self._order])[self._starts], self.count) if len(self) else ordered
        found = np.empty_like(ordered)
        found[self._order] = ordered - before
        return found

    def _reduce(self, by: np.ufunc, values: Floats) -> Floats:
        if not len(self):
            return np.empty(0)
        return np.asarray(by.reduceat(values[self._order], self._starts), np.float64)
