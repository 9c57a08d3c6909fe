"""Columns to and from Arrow."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category

_KINDS = {"<f8": "float64", "<i8": "int64", "<i4": "int32", "|i1": "int8"}


@cache
def arrow() -> Any:
    """Return pyarrow, which is loaded once it is needed: it takes 35 MB."""
    import pyarrow.ipc  # see above

    return pyarrow


# pyarrow's own conversions from and to numpy would import pandas, which takes half a second.
def to_arrow(column: Any) -> Any:
    """Return a column as an Arrow array, without a copy of its numbers."""
    if isinstance(column, Category):
        pa = arrow()
        return pa.DictionaryArray.from_arrays(_numbers(column.codes), pa.array(column.values, pa.string()))
    return _numbers(column)


def _numbers(column: NDArray[Any]) -> Any:
    pa = arrow()
    kind = getattr(pa, _KINDS[column.dtype.str])()
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(np.ascontiguousarray(column))])


def from_arrow(column: Any) -> Any:
    """Return a column of one chunk as numpy array or category, without a copy of its numbers."""
    pa = arrow()
    (chunk,) = column.chunks or (pa.array([], column.type),)
    if pa.types.is_dictionary(column.type):
        return Category(_values(chunk.indices), tuple(chunk.dictionary.to_pylist()))
    return _values(chunk)


def _values(chunk: Any) -> NDArray[Any]:
    kind = next(np.dtype(name) for name, its in _KINDS.items() if getattr(arrow(), its)() == chunk.type)
    values = chunk.buffers()[1]
    if not len(chunk) or values is None:
        return np.empty(0, kind)
    return np.frombuffer(values, kind, len(chunk), chunk.offset * kind.itemsize)
