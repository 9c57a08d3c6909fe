"""Files of a fleet: JSON, Parquet and the page."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sm_profiler.fleet.model import SCHEMA_VERSION, Fleet, FleetJob
from sm_profiler.storage import Storage, open_storage

TIMES = ("created", "started", "ended")
_PLAIN = {str: pa.string(), float: pa.float64(), int: pa.int64(), bool: pa.bool_()}


def _arrow(kind: Any) -> pa.DataType:
    """Return the type of a column for the type of a field."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is dict:
        return pa.map_(_arrow(arguments[0]), _arrow(arguments[1]))
    if origin is tuple:  # of any length
        return pa.list_(_arrow(arguments[0]))
    if arguments:  # or None
        return _arrow(arguments[0])
    return pa.struct([(name, _arrow(field)) for name, field in get_type_hints(kind).items()])


SCHEMA = pa.schema(
    [
        (name, pa.timestamp("us", "UTC") if name in TIMES else _arrow(kind))
        for name, kind in get_type_hints(FleetJob).items()
    ],
    metadata={"sm_profiler.fleet": SCHEMA_VERSION},
)


def to_parquet(jobs: Sequence[FleetJob]) -> bytes:
    """Return the rows as a Parquet file."""
    rows: list[dict[str, Any]] = msgspec.to_builtins(jobs)
    for row in rows:
        for name in TIMES:
            row[name] = None if row[name] is None else round(row[name] * 1e6)
    out = io.BytesIO()
    columns = [
        pa.array([_value(row[name], kind) for row in rows], kind)
        for name, kind in zip(SCHEMA.names, SCHEMA.types, strict=True)
    ]
    pq.write_table(pa.table(columns, schema=SCHEMA), out, compression="zstd")
    return out.getvalue()


def _value(value: Any, kind: pa.DataType) -> Any:
    return list(value.items()) if pa.types.is_map(kind) else value


HTML, JSON, TABLE = "fleet.html", "fleet.json", "fleet.parquet"


def write_fleet(fleet: Fleet, where: str | os.PathLike[str] | Storage) -> list[str]:
    """Write the files of a fleet to a folder or a storage, each in one piece.

    Args:
        fleet: the fleet.
        where: a folder, an s3:// URI, or a storage.

    Returns:
        Keys of the files, relative to `where`.

    Raises:
        SourceError: a file cannot be written.
    """
    storage: Storage = open_storage(where) if isinstance(where, (str, os.PathLike)) else where
    storage.write(JSON, fleet.to_json())
    storage.write(TABLE, to_parquet(fleet.jobs))
    from sm_profiler.fleet.page import render_html  # templates take time to load

    storage.write(HTML, render_html(fleet, storage.uri).encode())
    return [HTML, JSON, TABLE]
