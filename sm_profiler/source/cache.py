"""Columnar copies of profiles that were read, for the next time: Arrow IPC files that are mapped into memory.

A copy holds files of a job, each with its identity (size, and ETag or time of change). It is used as long as all of them
are unchanged; other files are parsed. Arrow does not survive damaged files, so the name of a copy contains its checksum.

`OwnFolder` is where all that may be deleted is kept: copies, states of reports (`metrics/scaling/kept.py`), pages of
`serve`.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
import tempfile
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category, EventColumns, SystemColumns
from sm_profiler.formats.outcome import Outcome
from sm_profiler.formats.trace_records import Streams
from sm_profiler.formats.trace_rows import OpenEvent
from sm_profiler.settings import CACHE
from sm_profiler.source.item_table import Item

_KINDS = {"<f8": "float64", "<i8": "int64", "<i4": "int32", "|i1": "int8"}

_FOLDER = "sm-profiler-copies"
_MARKER = "CACHEDIR.TAG"  # backup programs skip folders with it
_MARK = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n# Copies of profiles, made by sm-profiler; they may be deleted.\n"
)
_NAME = re.compile(r"[0-9a-f]{24}(-[0-9a-f]{8})?\..*|tmp.*\.tmp")

VERSION = 1
WORTH_BYTES = 4 << 20  # less than this is parsed faster than it is looked up
MAX_BYTES = 8 << 30
_CHECKED = re.compile(r"[0-9a-f]{24}-(?P<checksum>[0-9a-f]{8})\.arrow")
_KEY = b"sm_profiler"
_writing: list[threading.Thread] = []


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


def cache_root() -> Path | None:
    """Return the folder of all copies, in SM_PROFILER_CACHE or in the user's cache folder; None if it is switched off."""
    if CACHE.text().strip():
        named = CACHE.read()
        return Path(named) / _FOLDER if named else None
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "sm-profiler" / _FOLDER
    except RuntimeError:  # a user without a home
        return None


@attrs.frozen
class OwnFolder:
    """A folder of files in this user's cache, of which the oldest are deleted.

    Nothing is read that another user may have written, and nothing is deleted but files by their name in a folder with
    our mark.

    Attributes:
        name: its name in the cache.
        suffix: of the files' names.
        file_bytes: a larger file is neither written nor read.
        files, total_bytes: limits of all files.
    """

    name: str
    suffix: str
    file_bytes: int
    files: int
    total_bytes: int

    def write(self, what: str, data: bytes | Callable[[IO[bytes]], str]) -> None:
        """Keep a file in place of an earlier one; a folder that cannot be written to is left alone.

        Args:
            what: what it is about.
            data: its content, or what writes that and returns what its name has, too.
        """
        path = self._path(what)
        if path is None or (isinstance(data, bytes) and len(data) > self.file_bytes):
            return
        with suppress(OSError):
            if not self._is_marked(path.parent):
                return
            descriptor, temporary = tempfile.mkstemp(".tmp", dir=path.parent)
            try:
                with os.fdopen(descriptor, "w+b") as file:
                    more = ""
                    if callable(data):
                        more = data(file)
                    else:
                        file.write(data)
                written = path.with_name(f"{path.name.removesuffix(self.suffix)}{more}{self.suffix}")
                earlier = [old for old in self._files_of(path) if old != written]
                Path(temporary).replace(written)
                for old in earlier:
                    old.unlink(missing_ok=True)
            finally:
                Path(temporary).unlink(missing_ok=True)
            self._make_room(path.parent)

    def open(self, what: str) -> tuple[Path, IO[bytes]] | None:
        """Open a file that this user has written; None if there is none."""
        path = self._path(what)
        with suppress(OSError):
            if path is None or not _is_own(path.parent.lstat(), stat.S_ISDIR):
                return None
            found = max(self._files_of(path), key=lambda each: each.lstat().st_mtime, default=path)
            descriptor = os.open(found, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            file = os.fdopen(descriptor, "rb")
            status = os.fstat(descriptor)
            if _is_own(status, stat.S_ISREG) and status.st_size <= self.file_bytes:
                return found, file
            file.close()
        return None

    def read(self, what: str) -> bytes:
        """Return a file that this user has written; b"" if there is none."""
        opened = self.open(what)
        if opened is None:
            return b""
        with opened[1] as file, suppress(OSError):
            return file.read()
        return b""

    def _path(self, what: str) -> Path | None:
        root = cache_root()
        name = hashlib.sha256(os.fsencode(what)).hexdigest()[:24]
        return root.parent / self.name / f"{name}{self.suffix}" if root is not None else None

    def _files_of(self, path: Path) -> list[Path]:
        return sorted(path.parent.glob(f"{path.name.removesuffix(self.suffix)}*{self.suffix}"))

    def _is_marked(self, folder: Path) -> bool:
        """Make the folder and its mark; return False if it holds what is not ours, or is of another user."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_own(folder.lstat(), stat.S_ISDIR):
            return False
        mark = folder / _MARKER
        if not mark.exists():
            if not all(_NAME.fullmatch(path.name) for path in folder.iterdir()):
                return False
            mark.write_bytes(_MARK)
        return mark.read_bytes() == _MARK

    def _make_room(self, folder: Path) -> None:
        """Delete the oldest files beyond the limits."""
        found = [(path.lstat(), path) for path in folder.iterdir() if _NAME.fullmatch(path.name)]
        held = 0
        for number, (status, old) in enumerate(sorted(found, key=lambda each: -each[0].st_mtime)):
            held += status.st_size
            if number >= self.files or held > self.total_bytes:
                old.unlink(missing_ok=True)


def _is_own(found: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    """Return whether no other user can have written a file or folder."""
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and is_kind(found.st_mode)


def _copies() -> OwnFolder:
    return OwnFolder(_FOLDER, ".arrow", file_bytes=MAX_BYTES, files=1 << 20, total_bytes=MAX_BYTES)


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


class _Header(msgspec.Struct, array_like=True):
    version: int
    files: list[_File]
    open: list[tuple[str, str, OpenEvent]]


_HEADER = msgspec.msgpack.Decoder(_Header)


@attrs.frozen(eq=False)
class Reading:
    """Result of reading one file of a copy.

    Attributes:
        rows: number of its rows.
        metadata: sm-profiler's own records in it.
    """

    item: Item
    rows: int
    outcome: Outcome
    metadata: tuple[dict[str, Any], ...] = ()


@attrs.frozen(eq=False)
class Copy:
    """Files of a job as columns.

    Attributes:
        readings: the files, in their order.
        streams: the events still open after the last of them.
    """

    columns: Any
    readings: Sequence[Reading]
    streams: Streams


class Cache:
    def __init__(self, uri: str) -> None:
        self._uri = uri

    @classmethod
    def of(cls, uri: str, *, wanted: bool) -> Cache | None:
        """Return the cache of a source; None if it is not wanted or switched off, or pyarrow is not installed."""
        if not wanted or cache_root() is None or not find_spec("pyarrow"):
            return None
        return cls(os.path.realpath(uri) if "://" not in uri else uri)

    def _name(self, *, system: bool) -> str:
        return f"{self._uri}\n{'system' if system else 'events'}"

    def load(self, items: Sequence[Item], *, system: bool) -> Copy | None:
        """Return the copy of files among `items`; None if there is none, or one of its files has gone or changed."""
        wait_for_copies()
        opened = _copies().open(self._name(system=system))
        if opened is None:
            return None
        path, pa = opened[0], arrow()
        try:
            table = pa.ipc.open_file(_checked(*opened)).read_all()
            header = _HEADER.decode(table.schema.metadata[_KEY])
            by_key = {item.info.key: item for item in items}
            kept = [by_key.get(file.key) for file in header.files]
            mine = [item for file, item in zip(header.files, kept, strict=True) if item and file.is_of(item)]
            if header.version != VERSION or len(mine) < len(header.files) or _is_between(items, mine):
                return None
            kind = SystemColumns if system else EventColumns
            columns = kind(*(from_arrow(table.column(field.name)) for field in attrs.fields(kind)))
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
        for node, stream, event in header.open:
            streams.push(node, stream, event)
        return Copy(columns, readings, streams)

    def save(self, copy: Copy, *, system: bool) -> None:
        """Keep a copy for the next time. It is written in the background; failures are ignored."""
        thread = threading.Thread(target=self._save, args=(copy, self._name(system=system)), name="sm-profiler-copy")
        _writing.append(thread)
        thread.start()

    def _save(self, copy: Copy, name: str) -> None:
        pa = arrow()

        def write(file: IO[bytes]) -> str:
            with pa.ipc.new_file(pa.PythonFile(file, "w"), batch.schema) as writer:
                writer.write_batch(batch)
            file.flush()
            return f"-{_checksum(file):08x}"

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
        # Numbers too large for the header: the next time is slower, that is all. So it is with a full disk.
        with suppress(ValueError, OverflowError, pa.ArrowException):
            header = msgspec.msgpack.encode(_Header(VERSION, files, list(copy.streams.left())))
            names = [field.name for field in attrs.fields(type(copy.columns))]
            arrays = [to_arrow(getattr(copy.columns, name)) for name in names]
            batch = pa.record_batch(arrays, names).replace_schema_metadata({_KEY: header})
            _copies().write(name, write)


def _checksum(file: IO[bytes]) -> int:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return zlib.crc32(mapped)


def _checked(path: Path, file: IO[bytes]) -> Any:
    """Map a copy into memory.

    Raises:
        ValueError: its contents do not have the checksum in its name.
    """
    with file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    name = _CHECKED.fullmatch(path.name)
    if name is None or zlib.crc32(mapped) != int(name["checksum"], 16):
        raise ValueError(path)
    return arrow().BufferReader(arrow().py_buffer(mapped))


def wait_for_copies() -> None:
    """Wait until this process has written its copies."""
    while _writing:
        _writing.pop().join()


def is_writing() -> bool:
    """Return whether this process is writing a copy, and so still needs its columns."""
    return any(thread.is_alive() for thread in _writing)


def _is_between(items: Sequence[Item], mine: Sequence[Item]) -> bool:
    """Return whether a file outside the copy precedes one of its stream: events open in it may end in the copy."""
    last: dict[tuple[str, str], tuple[int, bool, int, str]] = {}
    for item in mine:
        stream = (item.node, item.kind)
        last[stream] = max(last.get(stream, item.order), item.order)
    copied = {item.info.key for item in mine}
    others = (item for item in items if item.kind and item.info.key not in copied)
    return any(item.order < last.get((item.node, item.kind), item.order) for item in others)
