"""Columnar copies of profiles that were read, for the next time: Arrow IPC files that are mapped into memory.

A copy holds files of a job, each with its identity (size, and ETag or time of change). It is used as long as all of them
are unchanged; other files are parsed.

Arrow does not survive damaged files, so the name of a copy contains its checksum, and a copy of another user is never
opened. Nothing is deleted but copies by their name in a folder that this module has made and marked.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category, EventColumns, SystemColumns
from sm_profiler.formats.outcome import Outcome
from sm_profiler.formats.trace_rows import OpenEvent
from sm_profiler.settings import CACHE
from sm_profiler.source.item_table import Item
from sm_profiler.source.streams import Streams

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


VERSION = 1
WORTH_BYTES = 4 << 20  # less than this is parsed faster than it is looked up
MAX_BYTES = 8 << 30
_FOLDER = "sm-profiler-copies"
_MARKER = "CACHEDIR.TAG"  # backup programs skip folders with it
_MARK = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n# Copies of profiles, made by sm-profiler; they may be deleted.\n"
)
_SOURCE_NAME = re.compile(r"[0-9a-f]{24}")
_COPY_NAME = re.compile(r"(?P<kind>system|events)-(?P<checksum>[0-9a-f]{8})\.arrow")
_KEY = b"sm_profiler"
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
    """Result of reading one file of a copy.

    Attributes:
        item: the file.
        rows: number of its rows.
        outcome: the outcome.
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
        columns: the rows of all of them.
        readings: the files, in their order.
        streams: the events still open after the last of them.
    """

    columns: Any
    readings: Sequence[Reading]
    streams: Streams


class Cache:
    """The copies of one source."""

    def __init__(self, uri: str, root: Path) -> None:
        self.root = root
        self.folder = root / hashlib.sha256(os.fsencode(uri)).hexdigest()[:24]

    @classmethod
    def of(cls, uri: str, *, wanted: bool) -> Cache | None:
        """Return the cache of a source; None if it is not wanted or switched off, or pyarrow is not installed."""
        root = cache_root() if wanted and find_spec("pyarrow") else None
        return cls(os.path.realpath(uri) if "://" not in uri else uri, root) if root else None

    def load(self, items: Sequence[Item], *, system: bool) -> Copy | None:
        """Return the copy of files among `items`; None if there is none, or one of its files has gone or changed."""
        wait_for_copies()
        copies = self._copies(system=system)
        if not copies:
            return None
        path, pa = max(copies).path, arrow()
        try:
            table = pa.ipc.open_file(_checked(path)).read_all()
            header = _HEADER.decode(table.schema.metadata[_KEY])
            by_key = {item.info.key: item for item in items}
            kept = [by_key.get(file.key) for file in header.files]
            mine = [item for file, item in zip(header.files, kept, strict=True) if item and file.is_of(item)]
            if header.version != VERSION or len(mine) < len(header.files) or _is_between(items, mine):
                return None
            kind = SystemColumns if system else EventColumns
            columns = kind(*(from_arrow(table.column(field.name)) for field in attrs.fields(kind)))
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
        """Keep a copy for the next time. It is written in the background; failures are ignored."""
        thread = threading.Thread(target=self._save, args=(copy, system), name="sm-profiler-copy")
        _writing.append(thread)
        thread.start()

    def _save(self, copy: Copy, system: bool) -> None:  # the thread hands arguments over by position
        pa = arrow()
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
        # A full disk, a read-only home, numbers too large for the header: the next time is slower, that is all.
        with suppress(OSError, ValueError, OverflowError, pa.ArrowException):
            header = msgspec.msgpack.encode(_Header(VERSION, files, left))
            names = [field.name for field in attrs.fields(type(copy.columns))]
            arrays = [to_arrow(getattr(copy.columns, name)) for name in names]
            batch = pa.record_batch(arrays, names).replace_schema_metadata({_KEY: header})
            _make_root(self.root)
            self.folder.mkdir(exist_ok=True, mode=0o700)
            self._make_room(batch.nbytes)
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
            try:
                with os.fdopen(handle, "wb") as file:
                    summed = _Summed(file)
                    with pa.ipc.new_file(pa.PythonFile(summed, "w"), batch.schema) as writer:
                        writer.write_batch(batch)
                earlier = [kept.path for kept in self._copies(system=system)]
                written = self.folder / f"{_kind(system=system)}-{summed.checksum:08x}.arrow"
                Path(temporary).replace(written)
                for path in earlier:
                    if path != written:
                        path.unlink(missing_ok=True)
            finally:
                with suppress(OSError):
                    Path(temporary).unlink(missing_ok=True)

    def _copies(self, *, system: bool) -> list[_Kept]:
        return [kept for kept in _copies_in(self.folder) if kept.path.name.startswith(_kind(system=system))]

    def _make_room(self, wanted: int) -> None:
        """Delete the oldest copies, so that all of them with a new one take MAX_BYTES at most."""
        found: list[_Kept] = []
        for folder in self.root.iterdir():
            if _SOURCE_NAME.fullmatch(folder.name) and not folder.is_symlink():
                found += _copies_in(folder)
        held = sum(kept.size for kept in found)
        for kept in sorted(found):
            if held + wanted <= MAX_BYTES:
                return
            kept.path.unlink(missing_ok=True)
            held -= kept.size


class _Kept(NamedTuple):
    """A copy on disk; sorts by age."""

    mtime: float
    size: int
    path: Path


class _Summed:
    """A file that Arrow writes to, with the checksum of its bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.checksum = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self.checksum = zlib.crc32(data, self.checksum)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        """Leave the file to its owner."""


def _kind(*, system: bool) -> str:
    return "system" if system else "events"


def _copies_in(folder: Path) -> Iterator[_Kept]:
    """Yield the copies in a folder: files of this user with the name of a copy."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    for path in paths:
        with suppress(OSError):
            status = path.lstat()
            if _COPY_NAME.fullmatch(path.name) and stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                yield _Kept(status.st_mtime, status.st_size, path)


def _checked(path: Path) -> Any:
    """Map a copy into memory.

    Raises:
        ValueError: its contents do not have the checksum in its name.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    name = _COPY_NAME.fullmatch(path.name)
    if name is None or zlib.crc32(mapped) != int(name["checksum"], 16):
        raise ValueError(path)
    return arrow().BufferReader(arrow().py_buffer(mapped))


def _make_root(root: Path) -> None:
    """Make the folder of all copies, unless it is there with its mark.

    Raises:
        OSError: it cannot be made, or another program has made it.
    """
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        # It gets its name with its mark in it already; of two processes that make it the first wins.
        made = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}-", dir=root.parent))
        (made / _MARKER).write_bytes(_MARK)
        try:
            made.rename(root)
        except OSError:
            (made / _MARKER).unlink()
            made.rmdir()
    if root.lstat().st_uid != os.geteuid() or (root / _MARKER).read_bytes() != _MARK:
        raise PermissionError(root)


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


_PRIVATE = 0o700


@attrs.frozen
class OwnFolder:
    """A folder of files, of which the oldest are deleted.

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

    def write(self, what: str, data: bytes) -> None:
        """Keep a file; a folder that cannot be written to is left alone."""
        path = self._path(what)
        if path is None or len(data) > self.file_bytes:
            return
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
            if not _is_own(path.parent.lstat(), stat.S_ISDIR):
                return
            descriptor, temporary = tempfile.mkstemp(dir=path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                Path(temporary).replace(path)
            finally:
                Path(temporary).unlink(missing_ok=True)
            self._make_room(path.parent)

    def _make_room(self, folder: Path) -> None:
        held = 0
        for number, old in enumerate(sorted(folder.iterdir(), key=lambda one: -one.lstat().st_mtime)):
            held += old.lstat().st_size
            if number >= self.files or held > self.total_bytes:
                old.unlink(missing_ok=True)

    def read(self, what: str) -> bytes:
        """Return a file that this user has written; b"" if there is none."""
        path = self._path(what)
        if path is None:
            return b""
        try:
            if not _is_own(path.parent.lstat(), stat.S_ISDIR):
                return b""
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                return file.read() if _is_own(found, stat.S_ISREG) and found.st_size <= self.file_bytes else b""
        except OSError:
            return b""

    def _path(self, what: str) -> Path | None:
        root = cache_root()
        name = hashlib.sha256(os.fsencode(what)).hexdigest()[:24]
        return root.parent / self.name / f"{name}{self.suffix}" if root is not None else None


def _is_own(found: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    """Return whether no other user can have written a file or folder."""
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and is_kind(found.st_mode)
