"""A columnar copy of what was read, for the next time: Arrow IPC files in the user's cache folder, mapped into memory.

A copy holds files of a job, each with its identity (size, and ETag or time of change).  It is used as long as all of them
are still there, unchanged; other files are read as ever.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category, EventColumns, SystemColumns
from sm_profiler.formats.outcome import Outcome
from sm_profiler.formats.trace_rows import OpenEvent
from sm_profiler.source.catalog import Item
from sm_profiler.source.streams import Streams

try:
    import pyarrow as pa
    from pyarrow import ipc
except ImportError:  # rules and reports do without
    pa = ipc = None

VERSION = 1
WORTH_BYTES = 4 << 20  # less is read faster than it is looked up
MAX_BYTES = 8 << 30
_KEY = b"sm_profiler"
_KINDS = {"<f8": pa.float64, "<i8": pa.int64, "<i4": pa.int32, "|i1": pa.int8} if pa else {}
_writing: list[threading.Thread] = []


class _File(msgspec.Struct, array_like=True):
    key: str
    size: int
    etag: str
    mtime: float
    at_us: int
    rows: int
    outcome: tuple[str, int, str]
    metadata: list[dict[str, Any]]

    def is_of(self, item: Item) -> bool:
        info = item.info
        mine = (self.key, self.size, self.etag, self.mtime, self.at_us)
        return mine == (info.key, info.size, info.etag, info.mtime, item.at_us)


_Key = tuple[str, int | str]


class _Header(msgspec.Struct, array_like=True):
    version: int
    files: list[_File]
    open: list[tuple[str, str, _Key, tuple[str, str, int, int], float, str]]


_HEADER = msgspec.msgpack.Decoder(_Header)


@attrs.frozen(eq=False)
class Reading:
    """What became of one file of a copy.

    Attributes:
        item: the file.
        rows: how many rows it gave.
        outcome: how the reading ended.
        metadata: our own records in it.
    """

    item: Item
    rows: int
    outcome: Outcome
    metadata: tuple[dict[str, Any], ...] = ()


@attrs.frozen(eq=False)
class Copy:
    """Files of a job as columns.

    Attributes:
        columns: the rows of all of them.
        readings: the files, in their order.
        streams: what was open after the last of them.
    """

    columns: Any
    readings: Sequence[Reading]
    streams: Streams


class Cache:
    """The copies of one source."""

    def __init__(self, uri: str) -> None:
        name = hashlib.sha256(uri.encode(errors="surrogateescape")).hexdigest()[:24]
        self.folder = cache_root() / name

    @classmethod
    def of(cls, uri: str, *, wanted: bool) -> Cache | None:
        """The cache of a source; None where none is wanted, or pyarrow is not installed."""
        return cls(os.path.realpath(uri) if "://" not in uri else uri) if wanted and pa is not None else None

    def load(self, items: Sequence[Item], *, system: bool) -> Copy | None:
        """The copy of files among `items`; None where there is none, or one of its files is not among them any more."""
        path = self._path(system=system)
        wait_for_copies()
        try:
            with pa.memory_map(str(path)) as source:
                table = ipc.open_file(source).read_all()
            header = _HEADER.decode(table.schema.metadata[_KEY])
            by_key = {item.info.key: item for item in items}
            kept = [by_key.get(file.key) for file in header.files]
            mine = [item for file, item in zip(header.files, kept, strict=True) if item and file.is_of(item)]
            if header.version != VERSION or len(mine) < len(header.files) or _is_between(items, mine):
                return None
            kind = SystemColumns if system else EventColumns
            columns = kind(*(_from_arrow(table.column(field.name)) for field in attrs.fields(kind)))
        except FileNotFoundError:
            return None
        except (OSError, KeyError, ValueError, TypeError, pa.ArrowException, msgspec.MsgspecError):
            # Written by another version, or damaged: it is only a copy.
            with suppress(OSError):
                path.unlink()
            return None
        readings = [
            Reading(item, file.rows, Outcome(*file.outcome), tuple(file.metadata))
            for file, item in zip(header.files, mine, strict=True)
        ]
        streams = Streams()
        for node, stream, key, head, start_us, args in header.open:
            streams.push(node, stream, OpenEvent(key, head, start_us, args))
        return Copy(columns, readings, streams)

    def save(self, copy: Copy, *, system: bool) -> None:
        """Keep a copy for the next time; it is written in the background, and not at all where that cannot be done."""
        thread = threading.Thread(target=self._save, args=(copy, system), name="sm-profiler-copy")
        _writing.append(thread)
        thread.start()

    def _save(self, copy: Copy, system: bool) -> None:  # noqa: FBT001 - the thread hands arguments over by position
        files = [
            _File(
                each.item.info.key,
                each.item.info.size,
                each.item.info.etag,
                each.item.info.mtime,
                each.item.at_us,
                each.rows,
                (each.outcome.status, each.outcome.lost, each.outcome.reason),
                list(each.metadata),
            )
            for each in copy.readings
        ]
        left = [(n, k, event.key, event.head, event.start_us, event.args) for n, k, event in copy.streams.left()]
        header = msgspec.msgpack.encode(_Header(VERSION, files, left))
        names = [field.name for field in attrs.fields(type(copy.columns))]
        arrays = [_to_arrow(getattr(copy.columns, name)) for name in names]
        batch = pa.record_batch(arrays, names).replace_schema_metadata({_KEY: header})
        # A full disk, a read-only home: the next time is slower, that is all.
        with suppress(OSError, pa.ArrowException):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_room(batch.nbytes)
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
            try:
                with os.fdopen(handle, "wb") as file, ipc.new_file(file, batch.schema) as writer:
                    writer.write_batch(batch)
                Path(temporary).replace(self._path(system=system))
            finally:
                with suppress(OSError):
                    Path(temporary).unlink(missing_ok=True)

    def _path(self, *, system: bool) -> Path:
        return self.folder / ("system.arrow" if system else "events.arrow")

    def _make_room(self, wanted: int) -> None:
        kept = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in cache_root().glob("*/*.arrow"))
        held = sum(size for _, size, _ in kept)
        for _, size, path in kept:
            if held + wanted <= MAX_BYTES:
                return
            path.unlink(missing_ok=True)
            held -= size


def wait_for_copies() -> None:
    """Wait until the copies that this process is writing are written."""
    while _writing:
        _writing.pop().join()


def is_writing() -> bool:
    """Whether this process is writing a copy, and so still needs the columns of it."""
    return any(thread.is_alive() for thread in _writing)


def _is_between(items: Sequence[Item], mine: Sequence[Item]) -> bool:
    """Whether a file not in the copy comes before one that is, in the same stream: what it leaves open ends there."""
    last: dict[tuple[str, str], tuple[int, bool, int, str]] = {}
    for item in mine:
        stream = (item.node, item.kind)
        last[stream] = max(last.get(stream, item.order), item.order)
    copied = {item.info.key for item in mine}
    others = (item for item in items if item.kind and item.info.key not in copied)
    return any(item.order < last.get((item.node, item.kind), item.order) for item in others)


def cache_root() -> Path:
    """The folder of all copies: SM_PROFILER_CACHE, else `sm-profiler` in the user's cache folder."""
    named = os.environ.get("SM_PROFILER_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sm-profiler"


# pyarrow's own conversions from and to numpy would load pandas, half a second for nothing.
def _to_arrow(column: Any) -> Any:
    if isinstance(column, Category):
        return pa.DictionaryArray.from_arrays(_numbers(column.codes), pa.array(column.values, pa.string()))
    return _numbers(column)


def _numbers(column: NDArray[Any]) -> Any:
    kind = _KINDS[column.dtype.str]()
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(np.ascontiguousarray(column))])


def _from_arrow(column: Any) -> Any:
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
