"""The data files of a long job as rows of an array: about 40 bytes each, instead of a kilobyte as objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeAlias, overload

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats import layout
from sm_profiler.formats.columns import Ints, Mask, Numbering
from sm_profiler.formats.layout import DetailedTrace, SystemFile, TraceFile
from sm_profiler.storage import FileInfo

TIMELINES = (
    layout.PYTHON_TIMELINE,
    layout.MODEL_TIMELINE,
    layout.DETAILED_TRACE,
    layout.HOROVOD_TIMELINE,
    layout.SMDATAPARALLEL_TIMELINE,
)
Order: TypeAlias = tuple[int, bool, int, str]
_HOST = re.compile(r"algo-(\d{1,9})(?!\d)")

_MAX_TAG = 64
_TAGS = {f"|S{length}" for length in range(1, _MAX_TAG + 1)}
_ASCII = bytes(range(128))
_KINDS = {"at_us": "<i8", "size": "<i8", "mtime": "<f8", "stream": "<i4", "folder": "<i4", "etag": "|S1"}
_LEAST_ROWS, _AT_ONCE = 64, 1024
_UNSORTED = 4096  # rows at the end that are searched one by one: more are sorted
_ODD = -1  # as stream: the row is an object
_Stream: TypeAlias = tuple[str, str]  # kind of a trace file, "" for system metrics; node or source in its name


def host_of(node: str) -> int:
    """Return the number of a node or process: 1 for `algo-1`; 0 for a name of another form."""
    match = _HOST.match(node)
    return int(match[1]) if match else 0


@attrs.frozen
class Item:
    """A file with data.

    Attributes:
        at_us: the time of its name, microseconds since the epoch.
        node, kind: as in EventColumns for traces; a system file has a node and the kind "".
        start_us: origin of the times of a trace that does not name one.
        approximate: `start_us` is an estimate.
        number: its number in its `ItemTable`; -1 if it is in none.
    """

    info: FileInfo
    at_us: int
    node: str
    kind: str
    start_us: int = 0
    approximate: bool = False
    number: int = attrs.field(default=-1, eq=False)

    @property
    def file(self) -> Any:
        """Its parsed name: SystemFile, TraceFile or DetailedTrace."""
        return layout.parse_path(self.info.key)

    @property
    def is_system(self) -> bool:
        return not self.kind

    @property
    def host(self) -> int:
        """Number of the host: 1 for `algo-1`; 0 for a name of another form."""
        return host_of(self.node)

    @property
    def order(self) -> Order:
        """Sort key: by minute, system metrics first."""
        return self.at_us // layout.MINUTE_US, not self.is_system, self.at_us, self.info.key

    @property
    def rank(self) -> int:
        """Position of its timeline among the others."""
        return TIMELINES.index(self.kind) if self.kind in TIMELINES else len(TIMELINES)


def item_of(info: FileInfo, file: SystemFile | TraceFile) -> Item:
    """Return a file whose times are in its name."""
    return Item(info, file.at_us, file.node, "" if isinstance(file, SystemFile) else file.kind)


def _stream_of(file: SystemFile | TraceFile) -> _Stream:
    return ("", file.node) if isinstance(file, SystemFile) else (file.kind, file.source)


def _name(stream: _Stream, at_us: int) -> str:
    kind, source = stream
    return f"{at_us}_{source}_{kind}.json" if kind else f"{at_us // layout.SECOND_US}.{source}.json"


class ItemColumns(msgspec.Struct):
    """Items with standard names as data: parts of their names, and type and bytes of each column."""

    streams: list[_Stream]
    folders: list[str]
    kinds: list[str]
    columns: list[bytes]


class ItemTable:
    """The data files of a job. Each has a number, by which it first came, and which it keeps when it changes.

    Files with standard names are rows of a few arrays: time, size, time of change, ETag, and the numbers of the parts of
    the name besides the time. All others are objects. A name is found by its time, for which all but the last rows are
    sorted.

    Attributes:
        flags: of each file, eight bits for the reader.
    """

    def __init__(self) -> None:
        self._streams, self._folders = Numbering(), Numbering()
        self._columns: dict[str, NDArray[Any]] = {name: np.empty(0, kind) for name, kind in _KINDS.items()}
        self._is_shared = False  # whether another table has these columns, too
        self._count = 0
        self._by_time: Ints = np.empty(0, np.int64)  # numbers of the first files
        self._objects: dict[int, Item] = {}
        self._numbers: dict[str, int] = {}  # of the objects, by key
        self.flags = np.zeros(0, np.uint8)

    def __len__(self) -> int:
        return self._count

    def column(self, name: str) -> Any:
        """Return `at_us`, `size` or `mtime` of each file."""
        return self._columns[name][: self._count]

    def add(self, info: FileInfo, file: SystemFile | TraceFile) -> int:
        """Add a file whose times are in its name, without looking for its key, and return its number."""
        number = self._numbers.get(info.key, -1)
        number = self._next() if number < 0 else number
        self.change(number, info, file)
        return number

    def add_object(self, item: Item) -> int:
        """Add a file whose times are not in its name, and which is not in the table; return its number."""
        number = self._next()
        self.change_object(number, item)
        return number

    def without_doubles(self) -> ItemTable:
        """Return the table if each file is in it once, else one with the last of each: some servers list files twice."""
        keys = [self.column(name) for name in ("folder", "stream", "at_us")]
        order = np.lexsort(keys)
        doubles = np.all([np.diff(column[order]) == 0 for column in keys], axis=0) & (keys[1][order[1:]] != _ODD)
        if not doubles.any():
            return self
        made = ItemTable()
        for item in self.items(np.sort(np.delete(order, np.flatnonzero(doubles)))):
            made.add(item.info, item.file) if item.number not in self._objects else made.add_object(item)
        return made

    def change(self, number: int, info: FileInfo, file: SystemFile | TraceFile) -> None:
        """Set a file as it is listed now."""
        folder, _, name = info.key.rpartition("/")
        stream, tag = _stream_of(file), info.etag
        is_standard = name == _name(stream, file.at_us) and len(tag) <= _MAX_TAG and tag.isascii() and "\0" not in tag
        if not is_standard or not 0 <= info.size < 1 << 62 or number in self._objects:
            self.change_object(number, item_of(info, file))
            return
        codes = self._streams[stream], self._folders[folder]
        self._set(number, file.at_us, info.size, info.mtime, *codes, tag.encode())

    def change_object(self, number: int, item: Item) -> None:
        """Set a file as it is known now."""
        if number < len(self._by_time) and self._columns["at_us"][number] != item.at_us:
            self._by_time = self._by_time[:0]
        self._set(number, item.at_us, item.info.size, item.info.mtime, _ODD, _ODD, b"")
        self._objects[number] = attrs.evolve(item, number=number)
        self._numbers[item.info.key] = number

    def _set(self, number: int, *values: Any) -> None:
        if self._is_shared:
            self._columns = {name: column.copy() for name, column in self._columns.items()}
            self._is_shared = False
        if len(values[-1]) > self._columns["etag"].itemsize:
            self._columns["etag"] = self._columns["etag"].astype(f"|S{len(values[-1])}")
        for column, value in zip(self._columns.values(), values, strict=True):
            column[number] = value

    def _next(self) -> int:
        number = self._count
        if number >= len(self.flags):
            rows = max(number + number // 4, _LEAST_ROWS)
            self._columns = {name: _longer(column, rows) for name, column in self._columns.items()}
            self.flags, self._is_shared = _longer(self.flags, rows), False
        self._count += 1
        return number

    def number_of(self, key: str, file: SystemFile | TraceFile | None = None) -> int | None:
        """Return the number of a file; None if it is not in the table.

        Args:
            file: its parsed name, if that is known.
        """
        if key in self._numbers:
            return self._numbers[key]
        parsed = layout.parse_path(key) if file is None else file
        folder, _, name = key.rpartition("/")
        if not isinstance(parsed, (SystemFile, TraceFile)) or folder not in self._folders:
            return None
        stream = _stream_of(parsed)
        if stream not in self._streams or name != _name(stream, parsed.at_us):
            return None
        codes = self._streams[stream], self._folders[folder]
        known = len(self._by_time)
        if self._count - known > max(_UNSORTED, known // 8):
            known, self._by_time = self._count, np.argsort(self.column("at_us"), kind="stable")
        times, streams, folders = (self._columns[name] for name in ("at_us", "stream", "folder"))
        first = int(times[:known].searchsorted(parsed.at_us, "left", self._by_time))
        last = int(times[:known].searchsorted(parsed.at_us, "right", self._by_time))
        for numbers in (self._by_time[first:last], known + np.flatnonzero(times[known : self._count] == parsed.at_us)):
            found = (streams[numbers] == codes[0]) & (folders[numbers] == codes[1])
            if found.any():
                return int(numbers[found.argmax()])
        return None

    def find(self, key: str) -> Item | None:
        """Return the file with a key; None if there is none."""
        number = self.number_of(key)
        return None if number is None else self.item(number)

    def item(self, number: int) -> Item:
        return next(self.items(np.asarray([number])))

    def items(self, numbers: Ints) -> Iterator[Item]:
        streams, folders = list(self._streams), list(self._folders)
        for start in range(0, len(numbers), _AT_ONCE):
            some = numbers[start : start + _AT_ONCE]
            rows = (column[some].tolist() for column in self._columns.values())
            for number, at_us, size, mtime, stream, folder, tag in zip(some.tolist(), *rows, strict=True):
                if stream == _ODD:
                    yield self._objects[number]
                    continue
                kind, source = streams[stream]
                key = f"{folders[folder]}/{_name((kind, source), at_us)}"
                file = TraceFile(at_us, source, kind) if kind else SystemFile(source, at_us // layout.SECOND_US)
                yield Item(FileInfo(key, size, mtime, tag.decode()), at_us, file.node, kind, number=number)

    def copy(self) -> ItemTable:
        """Return a table of the same files without marks, which shares their rows."""
        made = ItemTable()
        made._streams, made._folders = Numbering(self._streams), Numbering(self._folders)
        made._columns, made._count, made._by_time = dict(self._columns), self._count, self._by_time
        made._is_shared = self._is_shared = True
        made._objects, made._numbers = dict(self._objects), dict(self._numbers)
        made.flags = np.zeros(len(self.flags), np.uint8)
        return made

    @classmethod
    def of_columns(cls, found: ItemColumns) -> ItemTable:
        """Return the files that `columns` returned.

        Raises:
            ValueError: they are damaged.
        """
        *kinds, tag = found.kinds or [""]
        if kinds != [*_KINDS.values()][:-1] or tag not in _TAGS or len(found.columns) != len(found.kinds):
            raise ValueError("its columns are not those of files")
        columns = [np.frombuffer(data, kind) for data, kind in zip(found.columns, found.kinds, strict=True)]
        if len({len(column) for column in columns}) != 1:
            raise ValueError("its columns do not belong together")
        for codes, texts in ((columns[3], found.streams), (columns[4], found.folders)):
            if len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) < len(texts) == len({*texts}):
                raise ValueError("parts of its names are missing")
        if columns[5].tobytes().translate(None, _ASCII):
            raise ValueError("its ETags are no text")
        made = cls()
        for numbering, texts in ((made._streams, found.streams), (made._folders, found.folders)):
            numbering.update({text: number for number, text in enumerate(texts)})
        made._columns, made._is_shared = dict(zip(_KINDS, columns, strict=True)), True  # they cannot be written to
        made._count, made.flags = len(columns[0]), np.zeros(len(columns[0]), np.uint8)
        return made

    def columns(self) -> ItemColumns:
        rows = np.flatnonzero(self.column("stream") != _ODD)
        columns = [column[rows] for column in self._columns.values()]
        return ItemColumns(
            list(self._streams), list(self._folders), [column.dtype.str for column in columns],
            [column.tobytes() for column in columns],
        )  # fmt: skip

    @property
    def objects(self) -> Iterable[Item]:
        """The files without standard names."""
        return self._objects.values()

    def infos(self, prefix: str, after: str) -> Iterator[FileInfo]:
        """Yield the files in the folders that may hold keys that begin with `prefix` and follow `after`."""
        chosen = [
            f"{folder}/".startswith(prefix[: len(folder) + 1]) and f"{folder}/" >= after[: len(folder) + 1]
            for folder in self._folders
        ]
        numbers = np.flatnonzero(np.asarray([*chosen, True])[self.column("folder")])  # objects: True
        return (item.info for item in self.items(numbers))

    def of_each(self, numbers: Ints, of_streams: Iterable[Any], of_object: Callable[[Item], Any], kind: Any) -> Any:
        """Return what follows from the stream of some files, or from the object."""
        streams = self._columns["stream"][numbers]
        found = np.asarray([*of_streams, 0], kind)[streams]
        for place in np.flatnonzero(streams == _ODD).tolist():
            found[place] = of_object(self._objects[int(numbers[place])])
        return found

    def ordered(self, numbers: Ints | None = None) -> OrderedItems:
        """Return files in reading order; None: all."""
        numbers = np.arange(self._count) if numbers is None else numbers
        streams, at_us, traces = (
            self._columns["stream"][numbers],
            self._columns["at_us"][numbers],
            self.are_traces(numbers),
        )
        folders = _ranks([f"{folder}/" for folder in self._folders])[self._columns["folder"][numbers]]
        tails = _ranks([_name(stream, 0).lstrip("0") for stream in self._streams])[streams]
        order = np.lexsort((tails, folders, at_us, traces, at_us // layout.MINUTE_US))
        numbers = numbers[order]
        odd = np.flatnonzero(streams[order] == _ODD)
        if len(odd):  # the keys of objects are compared as they are
            times, kinds = at_us[order], traces[order]
            runs = np.cumsum((np.diff(times, prepend=0) != 0) | np.diff(kinds, prepend=False))
            for run in np.unique(runs[odd]).tolist():
                first, last = (int(np.searchsorted(runs, run, side)) for side in ("left", "right"))
                some = {item.info.key: item.number for item in self.items(numbers[first:last])}
                numbers[first:last] = [some[key] for key in sorted(some)]
        return OrderedItems(self, numbers)

    def are_traces(self, numbers: Ints) -> Mask:
        found: Mask = self.of_each(
            numbers, (bool(kind) for kind, _ in self._streams), lambda item: bool(item.kind), np.bool_
        )
        return found

    def hosts(self, numbers: Ints) -> Ints:
        files = [TraceFile(0, source, kind) if kind else SystemFile(source, 0) for kind, source in self._streams]
        found: Ints = self.of_each(numbers, (host_of(file.node) for file in files), attrgetter("host"), np.int64)
        return found


def _longer(column: NDArray[Any], rows: int) -> NDArray[Any]:
    made = np.zeros(rows, column.dtype)
    made[: len(column)] = column
    return made


class OrderedItems(Sequence[Item]):
    """Files of a table in reading order."""

    def __init__(self, table: ItemTable, numbers: Ints) -> None:
        self._table, self.numbers = table, numbers

    @property
    def at_us(self) -> Ints:
        """The time in the name of each, microseconds since the epoch."""
        found: Ints = self._table.column("at_us")[self.numbers]
        return found

    @property
    def sizes(self) -> Ints:
        found: Ints = self._table.column("size")[self.numbers]
        return found

    @property
    def mtimes(self) -> NDArray[np.float64]:
        """Time of the last change of each, seconds since the epoch."""
        found: NDArray[np.float64] = self._table.column("mtime")[self.numbers]
        return found

    @property
    def is_system(self) -> Mask:
        return ~self._table.are_traces(self.numbers)

    @property
    def hosts(self) -> Ints:
        return self._table.hosts(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> list[Item]: ...
    def __getitem__(self, at: int | slice) -> Item | list[Item]:
        found = list(self._table.items(np.atleast_1d(self.numbers[at])))
        return found if isinstance(at, slice) else found[0]

    def __iter__(self) -> Iterator[Item]:
        return self._table.items(self.numbers)

    def keys(self) -> Iterator[str]:
        return (item.info.key for item in self)

    def chosen(self, rows: Any) -> OrderedItems:
        """Return some of the items, given by a mask or by their places in ascending order."""
        return OrderedItems(self._table, self.numbers[rows])

    @property
    def detailed(self) -> list[Item]:
        mine = set(self.numbers.tolist())
        found = [item for item in self._table.objects if isinstance(item.file, DetailedTrace) and item.number in mine]
        return sorted(found, key=attrgetter("order"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(Item.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]


def _ranks(texts: list[str]) -> Ints:
    ranks = np.zeros(len(texts) + 1, np.int64)
    ranks[sorted(range(len(texts)), key=texts.__getitem__)] = np.arange(len(texts))
    return ranks
