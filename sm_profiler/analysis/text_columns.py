"""Columns of text for frames: Arrow's, in stretches, without a Python object a row.

A profiler repeats itself: the same devices tick after tick, one process for a whole file.  Stretches that repeat an earlier
one stand in memory once.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category

_STRETCH = 1 << 13  # rows that are looked for together
_CHUNK = 1 << 16  # rows of which Arrow makes an array
_LONG = 1 << 10  # rows of the same text on average, from which on it stands once however often it comes
_REMEMBERED = 4  # stretches among which a repetition is looked for
_FEW = 256  # texts that a byte can number


def texts(array: pa.Array | pa.ChunkedArray) -> Any:
    """An Arrow array of texts as the text column of the installed pandas."""
    return _TEXT.__from_arrow__(array)


def category_texts(category: Category) -> Any:
    """A category as a text column."""
    values, codes = pa.array(category.values, pa.large_string()), category.codes
    changes = codes[1:] != codes[:-1]
    if (np.count_nonzero(changes) + 1) * _LONG <= len(codes):
        chunks = _runs(codes, [0, *(np.flatnonzero(changes) + 1).tolist(), len(codes)], values)
    elif len(category.values) <= _FEW and len(codes) > 2 * _STRETCH:
        chunks = _repetitions(codes, values)
    else:
        chunks = _taken(codes, values) if len(codes) else []
    return texts(pa.chunked_array(chunks, pa.large_string()))


def _taken(codes: NDArray[np.int32], values: pa.Array) -> list[pa.Array]:
    """Every text in its place.

    Arrow makes them a chunk at a time and they are put together here: what it makes holds up to twice the memory it needs.
    """
    lengths = np.array([len(text.as_buffer()) for text in values], np.int64)
    begins = np.empty(len(codes) + 1, np.int64)
    data = np.empty(int(lengths @ np.bincount(codes, minlength=len(lengths))), np.uint8)
    at = begins[0] = 0
    for start in range(0, len(codes), _CHUNK):
        part = values.take(pa.array(codes[start : start + _CHUNK]))
        _, own_begins, own_data = part.buffers()
        own = np.frombuffer(own_begins, np.int64, len(part) + 1)
        np.add(own[1:], at, out=begins[start + 1 : start + 1 + len(part)])
        size = int(own[-1])
        if size:
            data[at : at + size] = np.frombuffer(own_data, np.uint8, size)
        at += size
    return [pa.LargeStringArray.from_buffers(len(codes), pa.py_buffer(begins), pa.py_buffer(data))]


def _runs(codes: NDArray[np.int32], edges: list[int], values: pa.Array) -> list[pa.Array]:
    """Rows between edges have the same text, so that each text need not stand in memory more often than for one chunk."""
    spans = [
        (int(codes[start]), min(_CHUNK, stop - at))
        for start, stop in pairwise(edges)
        for at in range(start, stop, _CHUNK)
    ]
    longest: dict[int, int] = {}
    for code, length in spans:
        longest[code] = max(length, longest.get(code, 0))
    whole = {code: values.take(pa.array(np.full(length, code, np.int32))) for code, length in longest.items()}
    return [whole[code].slice(0, length) for code, length in spans]


def _repetitions(codes: NDArray[np.int32], values: pa.Array) -> list[pa.Array]:
    """Stretches that occur, anywhere, in one of the last ones that were new are parts of it."""
    narrow = codes.astype(np.uint8)
    known: list[tuple[bytes, pa.Array]] = []
    chunks: list[pa.Array] = []
    new = 0
    for start in range(0, len(codes), _STRETCH):
        wanted = narrow[start : start + _STRETCH].tobytes()
        found = next(((array, at) for before, array in known if (at := before.find(wanted)) >= 0), None)
        if found is None and new > _REMEMBERED + len(chunks) // 8:  # it does not repeat itself
            return [*chunks, *_taken(codes[start:], values)]
        if found is None:
            # Twice as long as is needed here, so that a period is in it from wherever it is begun.
            stop = start + 2 * _STRETCH
            found = values.take(pa.array(codes[start:stop])), 0
            known = [(narrow[start:stop].tobytes(), found[0]), *known[: _REMEMBERED - 1]]
            new += 1
        chunks.append(found[0].slice(found[1], len(wanted)))
    return chunks


def _text_dtype() -> Any:
    try:
        return pd.StringDtype("pyarrow", na_value=np.nan)
    except TypeError:  # pandas 2.2 has another name for it
        named: Any = "pyarrow_numpy"
        return pd.StringDtype(named)


_TEXT = _text_dtype()
