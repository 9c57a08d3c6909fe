"""The tables' columns, and columns of rows to and from them.

Texts are plain strings, numbers are plain numbers, and nothing is null, so that every engine reads the same.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import attrs
import msgspec
import numpy as np
import pyarrow as pa

from sm_profiler.errors import SourceError
from sm_profiler.formats.bounds import check_json, inflate
from sm_profiler.formats.columns import Category, EventColumns, SystemColumns
from sm_profiler.formats.outcome import LAST_US, Outcome
from sm_profiler.formats.trace_rows import Key, LooseEnd, OpenEvent
from sm_profiler.source.cache import from_arrow, to_arrow
from sm_profiler.source.item_table import Item
from sm_profiler.source.parquet import paths
from sm_profiler.storage import FileInfo

_TEXT, _DOUBLE, _LONG, _INT = pa.string(), pa.float64(), pa.int64(), pa.int32()

KINDS: dict[str, Any] = {paths.SYSTEM: SystemColumns, paths.EVENTS: EventColumns}
_RENAMED = {paths.SYSTEM: {"node": "node_id"}, paths.EVENTS: {"node": "process"}}

SCHEMA_VERSION = 1  # of the schema; docs/parquet.md describes it
KEY = b"sm_profiler"
MAX_BYTES = 64 << 20  # unpacked
FREE_BYTES, MAX_TIMES = 64 << 10, 16  # the same, in relation to the packed header: accounts of files pack to a tenth

_RECORDS = msgspec.json.Decoder(tuple[dict[str, Any], ...])


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
    _check_numbers(found)
    return KINDS[table](**found)


def _check_numbers(columns: Mapping[str, Any]) -> None:
    """Check numbers as the readers of the files do that the rows come from.

    Raises:
        ValueError: a time is none, or a value is not finite.
    """
    for name in ("start_us", "timestamp", "duration_us", "value"):
        values = columns.get(name, np.empty(0))
        latest = {"timestamp": LAST_US / 1e6, "value": np.inf}.get(name, LAST_US)
        if not ((values < latest) & (values >= (-np.inf if name == "value" else 0))).all():
            raise ValueError(f"{name} has values that are not finite, negative or too large")


# What a Parquet footer holds of the files that its rows come from


class SourceFile(msgspec.Struct):
    """A file of the profile, and where its rows are.

    Attributes:
        at_us, start_us: as in `Item`.
        group: index of the row group that holds its rows; files of a group follow each other.
        rows: number of its rows.
        joined: number of these, the first, that began in earlier files; a reader joins them again.
        outcome: status, lost records and reason of reading it.
        metadata: sm-profiler's own records in it, as JSON; see `records`.
        ends, begins: ends and begins of events without a counterpart in it.
    """

    key: str
    size: int
    etag: str
    mtime: float
    at_us: int
    start_us: int
    group: int
    rows: int
    joined: int = 0
    outcome: tuple[str, int, str] = ("read", 0, "")
    metadata: msgspec.Raw = msgspec.Raw(b"[]")
    ends: tuple[tuple[Key, float, str], ...] = ()
    begins: tuple[tuple[Key, tuple[str, str, int, int], float, str], ...] = ()

    @property
    def info(self) -> FileInfo:
        return FileInfo(self.key, self.size, self.mtime, self.etag)

    @property
    def loose(self) -> tuple[tuple[LooseEnd, ...], tuple[OpenEvent, ...]]:
        """Its ends and begins without a counterpart."""
        return tuple(LooseEnd(*each) for each in self.ends), tuple(OpenEvent(*each) for each in self.begins)

    def is_of(self, item: Item) -> bool:
        """Return whether the rows are those of a file as it is now."""
        return (self.info, self.at_us, self.start_us) == (item.info, item.at_us, item.start_us)

    @property
    def records(self) -> tuple[dict[str, Any], ...]:
        """sm-profiler's own records in it; none if they are none."""
        text = bytes(self.metadata)
        try:
            check_json(text, len(text) // 4 + 2)  # of records, it is a tenth
            return _RECORDS.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return ()

    @property
    def result(self) -> Outcome:
        return Outcome(*self.outcome)


class Header(msgspec.Struct):
    """Description of a Parquet file in its footer.

    Attributes:
        version: of the schema.
        origin: location of the profile.
        files: the files in the order of their rows.
    """

    version: int
    origin: str
    files: list[SourceFile] = []


class _Version(msgspec.Struct):
    version: int


_HEADER, _VERSION = msgspec.json.Decoder(Header), msgspec.json.Decoder(_Version)


def check_mtime(mtime: float) -> None:
    """Check the time at which a file was changed.

    Raises:
        ValueError: it is none.
    """
    if not abs(mtime) < LAST_US / 1e6:
        raise ValueError("the time at which a file was changed is none")


def encode_header(header: Header) -> bytes:
    """Return a header as text, as other readers take these values for text."""
    return base64.b64encode(zlib.compress(msgspec.json.encode(header)))


def decode_header(data: bytes) -> Header:
    """Return a header.

    Raises:
        ValueError: it is damaged.
        SourceError: a newer version wrote it.
    """
    try:
        most = min(MAX_BYTES, FREE_BYTES + MAX_TIMES * len(data))
        text = inflate(base64.b64decode(data, validate=True), most)
        version = _VERSION.decode(text).version
        if version > SCHEMA_VERSION:
            raise SourceError(
                f"written with version {version} of the schema, which is newer than this one ({SCHEMA_VERSION}): update sm-profiler"
            )
        header = _HEADER.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
    outcomes: dict[tuple[str, int, str], tuple[str, int, str]] = {}
    for file in header.files:  # a long job has a hundred thousand, most of them read as they were
        check_mtime(file.mtime)
        file.outcome = outcomes.setdefault(file.outcome, file.outcome)
    return header
