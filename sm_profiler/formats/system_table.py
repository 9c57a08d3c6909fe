"""System metric files in the form that profilers write, split by Arrow, which may run in several threads.

The lines of such a file have the same keys in the same order and no blanks. With commas and closing braces replaced by
colons they are a table of values between names. `system_reader` reads all other files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from sm_profiler.formats.system_reader import Head, SystemRows

_KEYS = ('{"Type"', '"Name"', '"Dimension"', '"Value"', '"NodeId"', '"Timestamp"')
_NUMBERS = {"Value", "Timestamp"}
_NAMES = [key.strip('{"') for key in _KEYS]
_END = "end"  # nothing follows the closing brace
_COLUMNS = [column for key in _NAMES for column in (f"key of {key}", key)] + [_END]
_ONE_MARK = bytes.maketrans(b",}", b"::")
_TEXT = pa.dictionary(pa.int32(), pa.string())
_PARSE = csv.ParseOptions(delimiter=":", quote_char=False, escape_char=False)
_CONVERT = csv.ConvertOptions(
    column_types={column: pa.float64() if column in _NUMBERS else _TEXT for column in _COLUMNS},
    null_values=[],
    strings_can_be_null=False,
)
_POOL = pa.system_memory_pool()  # Arrow's own keeps freed memory
_MAX_BYTES = 1 << 30  # of a block of Arrow's
_MAX_HEADS = 1 << 40  # combinations of texts that are numbered


def read_table(data: bytes, node: str) -> SystemRows | None:
    """Return the rows of a file in the usual form; None for any other file.

    Args:
        node: the node in the file's name, for records whose node is empty.
    """
    if not data.startswith(b'{"Type":"') or b"\\" in data or b"\r" in data or len(data) > _MAX_BYTES:
        return None
    try:
        read = csv.ReadOptions(column_names=_COLUMNS, use_threads=False, block_size=len(data) + 1)
        table = csv.read_csv(pa.py_buffer(data.translate(_ONE_MARK)), read, _PARSE, _CONVERT, _POOL)
    except (pa.ArrowException, ValueError, OSError):
        return None
    columns = {name: table.column(name).chunk(0) for name in _COLUMNS}
    expected = [*zip(_KEYS, (columns[f"key of {name}"] for name in _NAMES), strict=True), ("", columns[_END])]
    if any(column.dictionary.to_pylist() != [key] for key, column in expected):
        return None
    value, timestamp = (_values(columns[name], np.float64) for name in ("Value", "Timestamp"))
    if not (np.isfinite(value).all() and np.isfinite(timestamp).all()):
        return None
    texts = [_texts(columns[name]) for name in ("Type", "Name", "Dimension", "NodeId")]
    numbers = [
        _values(columns[name].indices, np.int32).astype(np.int64) for name in ("Type", "Name", "Dimension", "NodeId")
    ]
    if None in texts or np.prod([len(each or ()) for each in texts], dtype=float) > _MAX_HEADS:
        return None
    return SystemRows(timestamp, value, *_heads(numbers, [each or [] for each in texts], node))


def _values(column: Any, kind: type[np.generic]) -> NDArray[Any]:
    # Arrow's own conversions from and to numpy would import pandas, which takes half a second.
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * np.dtype(kind).itemsize)


def _texts(column: Any) -> list[str] | None:
    """Return the texts between quotation marks; None if one of them has none, or needs decoding."""
    quoted = column.dictionary.to_pylist()
    texts = [text[1:-1] for text in quoted]
    sound = all(
        text == f'"{inner}"' and '"' not in inner and inner.isprintable()
        for text, inner in zip(quoted, texts, strict=True)
    )
    return texts if sound else None


def release_unused() -> None:
    _POOL.release_unused()


def _heads(
    numbers: list[NDArray[np.int64]], texts: list[list[str]], node: str
) -> tuple[NDArray[np.int32], tuple[Head, ...]]:
    """Return the index of each row's combination of texts, and the combinations in order of first appearance."""
    mixed = numbers[0]
    for column, values in zip(numbers[1:], texts[1:], strict=True):
        mixed = mixed * len(values) + column
    plain = pa.Array.from_buffers(pa.int64(), len(mixed), [None, pa.py_buffer(mixed)])
    coded = plain.dictionary_encode()
    left, found = coded.dictionary.to_pylist(), []
    for values in reversed(texts):
        found.append([values[number % len(values)] for number in left])
        left = [number // len(values) for number in left]
    nodes, dimensions, names, kinds = found
    heads: Any = tuple(zip(kinds, names, dimensions, (each or node for each in nodes), strict=True))
    return _values(coded.indices, np.int32), heads
