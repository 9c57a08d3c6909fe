"""Columns to and from Arrow."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category

try:
    import pyarrow as pa
except ImportError:  # rules and reports do without
    pa = None

_KINDS = {"<f8": pa.float64, "<i8": pa.int64, "<i4": pa.int32, "|i1": pa.int8} if pa else {}


# pyarrow's own conversions from and to numpy would import pandas, which takes half a second.
def to_arrow(column: Any) -> Any:
    """Return a column as an Arrow array, without a copy of its numbers."""
    if isinstance(column, Category):
        return pa.DictionaryArray.from_arrays(_numbers(column.codes), pa.array(column.values, pa.string()))
    return _numbers(column)


def _numbers(column: NDArray[Any]) -> Any:
    kind = _KINDS[column.dtype.str]()
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(np.ascontiguousarray(column))])


def from_arrow(column: Any) -> Any:
    """Return a column of one chunk as numpy array or category, without a copy of its numbers."""
    (chunk,) = column.chunks or (pa.array([], column.type),)
    if pa.types.is_dictionary(column.type):
        return Category(_values(chunk.indices), tuple(chunk.dictionary.to_pylist()))
    return _values(chunk)


def _values(chunk: Any) -> NDArray[Any]:
    kind = next(np.dtype(name) for name, make in _KINDS.items() if make() == chunk.type)
    values = chunk.buffers()[1]
    if not len(chunk) or values is None:
        return np.empty(0, kind)
    return np.frombuffer(values, kind, len(chunk), chunk.offset * kind.itemsize)
