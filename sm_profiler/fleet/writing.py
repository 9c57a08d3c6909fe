"""Files of a fleet: JSON, Parquet and the page."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sm_profiler.fleet.model import SCHEMA_VERSION, Fleet, FleetJob
from sm_profiler.storage import Storage, open_storage

_TEXT, _NUMBER, _WHOLE = pa.string(), pa.float64(), pa.int64()
_TIME = pa.timestamp("us", "UTC")
TIMES = ("created", "started", "ended")
_SUMS = pa.map_(_TEXT, _NUMBER)
_LOSS = pa.struct([
    ("cause", _TEXT), ("seconds", _NUMBER), ("usd", _NUMBER), ("headline", _TEXT), ("next_step", _TEXT), ("confidence", _TEXT),
])  # fmt: skip
_LINE = pa.struct([("file", _TEXT), ("line", _WHOLE), ("function", _TEXT), ("share", _NUMBER)])
_NODE = pa.struct([("node", _TEXT), ("host", _TEXT), ("relative", _NUMBER), ("slow", pa.bool_())])
_RANGE = pa.struct([("low", _NUMBER), ("value", _NUMBER), ("high", _NUMBER)])
_TEXTS = (
    "name", "source", "report", "judged", "error", "arn", "status", "failure", "instance_type", "user", "image", "git",
    "account", "namespace", "tuning_job", "stem",
    "week", "billed_by", "price_from", "verdict", "label", "confidence", "headline", "next_step",
)  # fmt: skip
_NUMBERS = (
    "billable_s", "price", "bill_usd", "saved_s", "saved_usd", "lost_s", "lost_usd", "lost_share", "gpu_hours",
    "steps_per_second", "step_ms", "profiling_cost", "interrupted_s", "interrupted_usd", "failed_usd",
)  # fmt: skip
_WHOLES = ("lost_records", "instances", "gpus", "steps", "loader_workers", "interruptions")
_OTHERS = {
    "spot": pa.bool_(), "tags": pa.map_(_TEXT, _TEXT), "groups": pa.map_(_TEXT, _TEXT), "types": pa.map_(_TEXT, _WHOLE),
    "stages": _SUMS, "losses": pa.list_(_LOSS), "where": pa.list_(_LINE), "nodes": pa.list_(_NODE), "gain_s": _RANGE,
    "gain_usd": _RANGE,
}  # fmt: skip
SCHEMA = pa.schema(
    [
        *((name, _TEXT) for name in _TEXTS),
        *((name, _TIME) for name in TIMES),
        *((name, _NUMBER) for name in _NUMBERS),
        *((name, _WHOLE) for name in _WHOLES),
        *_OTHERS.items(),
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
