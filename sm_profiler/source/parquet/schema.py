"""The tables' columns, and columns of rows to and from them.

Texts are plain strings, numbers are plain numbers, and nothing is null, so that every engine reads the same.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from sm_profiler.formats.columns import Category, EventColumns, SystemColumns
from sm_profiler.source.cache import from_arrow, to_arrow
from sm_profiler.source.parquet import paths

_TEXT, _DOUBLE, _LONG, _INT = pa.string(), pa.float64(), pa.int64(), pa.int32()


def _schema(*fields: tuple[str, Any]) -> Any:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])


SCHEMAS = {
    paths.SYSTEM: _schema(
        ("timestamp", _DOUBLE), ("value", _DOUBLE), ("node_id", _TEXT), ("type", _TEXT), ("name", _TEXT),
        ("dimension", _TEXT),
    ),
    paths.EVENTS: _schema(
        ("start_us", _DOUBLE), ("duration_us", _DOUBLE), ("name", _TEXT), ("phase", _TEXT), ("process", _TEXT),
        ("kind", _TEXT), ("step", _LONG), ("pid", _LONG), ("tid", _LONG), ("worker_id", _INT), ("num_workers", _INT),
        ("pin_memory", _INT), ("args", _TEXT), ("track", _LONG),
    ),
    paths.STEPS: _schema(
        ("process", _TEXT), ("mode", _TEXT), ("step", _LONG), ("start_us", _DOUBLE), ("duration_us", _DOUBLE),
        ("wait_us", _DOUBLE), ("forward_us", _DOUBLE), ("backward_us", _DOUBLE), ("optimizer_us", _DOUBLE),
        ("declared_us", _DOUBLE), ("gc_us", _DOUBLE),
    ),
    paths.SAMPLES: _schema(
        ("process", _TEXT), ("start_us", _DOUBLE), ("phase", _TEXT), ("long_step", pa.bool_()), ("stack", _TEXT),
        ("library", _TEXT), ("seconds", _DOUBLE), ("samples", _LONG),
    ),
    paths.FILES: _schema(
        ("key", _TEXT), ("size", _LONG), ("etag", _TEXT), ("mtime", _DOUBLE), ("kept", pa.bool_()), ("data", pa.binary()),
    ),
}  # fmt: skip
KINDS: dict[str, Any] = {paths.SYSTEM: SystemColumns, paths.EVENTS: EventColumns}
_RENAMED = {paths.SYSTEM: {"node": "node_id"}, paths.EVENTS: {"node": "process"}}


def names_of(table: str) -> list[tuple[str, str]]:
    """Return the fields of the columns in memory, each with its column in the table."""
    return [(field.name, _RENAMED[table].get(field.name, field.name)) for field in attrs.fields(KINDS[table])]


def texts_of(table: str) -> list[str]:
    return [field.name for field in SCHEMAS[table] if field.type == _TEXT]


def to_batch(columns: Any, table: str) -> Any:
    """Return rows as an Arrow table; texts are dictionaries, which Parquet stores as strings."""
    found = {}
    for name, column in names_of(table):
        values = getattr(columns, name)
        found[column] = to_arrow(values.astype(np.int32) if column == "pin_memory" else values)
    return pa.table([found[field.name] for field in SCHEMAS[table]], _with_dictionaries(table))


def _with_dictionaries(table: str) -> Any:
    text = pa.dictionary(pa.int32(), _TEXT)
    return pa.schema(
        [pa.field(field.name, text if field.type == _TEXT else field.type, nullable=False) for field in SCHEMAS[table]]
    )


def from_batch(batch: Any, table: str) -> Any:
    """Return an Arrow table with dictionaries as rows.

    Raises:
        ValueError: it does not have the columns of the schema, or they are damaged.
    """
    if not batch.schema.equals(_with_dictionaries(table), check_metadata=False):
        raise ValueError(f"its columns are not those of {table}")
    batch = batch.unify_dictionaries().combine_chunks()
    found: dict[str, Any] = {}
    for name, column in names_of(table):
        chunked = batch.column(column)
        if chunked.null_count:
            raise ValueError(f"{column} has values that are missing")
        values = from_arrow(chunked)
        if isinstance(values, Category) and len(values):
            low, high = int(values.codes.min()), int(values.codes.max())
            if low < 0 or high >= len(values.values) or None in values.values:
                raise ValueError(f"{column} has texts that are missing")
        found[name] = values.astype(np.int8) if column == "pin_memory" else values
    return KINDS[table](**found)
