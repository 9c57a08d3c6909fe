"""The data files of a long job as columns: about 40 bytes each, instead of a kilobyte as objects."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from itertools import zip_longest
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


def host_of(node: str) -> int:
    """Return the number of a node or process: 1 for `algo-1`; 0 for a name of another form."""
    match = _HOST.match(node)
    return int(match[1]) if match else 0


@attrs.frozen
class Item:
    """A file with data.

    Attributes:
        info: the file as listed.
        at_us: the time of its name, microseconds since the epoch.
        node, kind: as in EventColumns for traces; a system file has a node and the kind "".
        start_us: origin of the times of a trace that does not name one.
        approximate: `start_us` is an estimate.
    """

    info: FileInfo
    at_us: int
    node: str
    kind: str
    start_us: int = 0
    approximate: bool = False

    @property
    def file(self) -> Any:
        """Its parsed name: SystemFile, TraceFile or DetailedTrace."""
        return layout.parse_path(self.info.key)

    @property
    def is_system(self) -> bool:
        """True for a file of system metrics."""
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


_LOOSE = 64  # items that may stay objects when they are put in order
_PACK_AT, _PACK_MOST = 1024, 1 << 15  # items that may be objects until they are packed: an eighth, within these limits
_IN_ORDER = 2048  # the same if they come in the order of time
_MAX_TAG = 64
_TAGS = {f"|S{length}" for length in range(1, _MAX_TAG + 1)}
_ASCII = bytes(range(128))
_KINDS = (np.int64, np.int64, np.float64, np.int32, np.int32)  # of the columns of numbers
_Stream: TypeAlias = tuple[str, str]  # kind of a trace file, "" for system metrics; node or source in its name


@attrs.frozen(eq=False)
class _Packed:
    """Items with standard names, sorted by time and stream.

    Attributes:
        at_us, size, mtime: as in Item and FileInfo.
        stream, folder: numbers of the parts of the name beside the time.
        etag: bytes.
    """

    at_us: Ints
    size: Ints
    mtime: NDArray[np.float64]
    stream: NDArray[np.int32]
    folder: NDArray[np.int32]
    etag: NDArray[np.bytes_]

    @classmethod
    def of(cls, rows: Sequence[tuple[Any, ...]]) -> _Packed:
        kinds = (*_KINDS, np.bytes_)
        columns = zip(*rows, strict=True) if rows else [()] * len(kinds)
        return cls(*(np.array(values, kind) for values, kind in zip(columns, kinds, strict=True)))

    def __len__(self) -> int:
        return len(self.at_us)

    def __getitem__(self, rows: Any) -> _Packed:
        return _Packed(*(column[rows] for column in self.all()))

    def all(self) -> list[NDArray[Any]]:
        """Return the columns."""
        return [getattr(self, field.name) for field in attrs.fields(_Packed)]

    def joined(self, other: _Packed) -> _Packed:
        """Return the items of both, sorted."""
        if len(self) and len(other) and other.at_us.min() <= self.at_us[-1]:
            first = int(np.searchsorted(self.at_us, other.at_us.min()))
            return self[:first].followed_by(self[first:].followed_by(other).in_order())  # what is before stays in order
        return self.followed_by(other.in_order())  # files are read in the order of time

    def followed_by(self, other: _Packed) -> _Packed:
        """Return the items of both, as they are ordered in each."""
        return _Packed(*map(np.concatenate, zip(self.all(), other.all(), strict=True)))

    def in_order(self) -> _Packed:
        """Return the items, sorted."""
        return self[np.lexsort((self.stream, self.at_us))]


class _Names:
    """Parts of the names of files beside their time."""

    def __init__(self) -> None:
        self.streams, self.folders = Numbering(), Numbering()
        self.stream_list: list[_Stream] = []
        self.folder_list: list[str] = []

    def pack(self, item: Item) -> tuple[Any, ...] | None:
        """Return an item as numbers; None if its name holds more than these."""
        info, file = item.info, item.file
        if not isinstance(file, (SystemFile, TraceFile)) or item.start_us or item.approximate:
            return None
        folder, _, name = info.key.rpartition("/")
        stream = _stream_of(file)
        if name != _name(stream, file.at_us) or item_of(info, file) != item or len(info.etag) > _MAX_TAG:
            return None
        if not info.etag.isascii() or "\0" in info.etag or not 0 <= info.size < 1 << 62:
            return None
        codes = self.streams[stream], self.folders[folder]
        if len(self.streams) > len(self.stream_list):
            self.stream_list.append(stream)
        if len(self.folders) > len(self.folder_list):
            self.folder_list.append(folder)
        return file.at_us, info.size, info.mtime, *codes, info.etag.encode()

    def item(self, values: Sequence[Any]) -> Item:
        """Return an item again."""
        at_us, size, mtime, stream, folder, etag = values
        kind, source = self.stream_list[stream]
        file = TraceFile(at_us, source, kind) if kind else SystemFile(source, at_us // layout.SECOND_US)
        key = f"{self.folder_list[folder]}/{_name((kind, source), at_us)}"
        return item_of(FileInfo(key, size, mtime, etag.decode()), file)


def _stream_of(file: SystemFile | TraceFile) -> _Stream:
    return ("", file.node) if isinstance(file, SystemFile) else (file.kind, file.source)


def _name(stream: _Stream, at_us: int) -> str:
    kind, source = stream
    return f"{at_us}_{source}_{kind}.json" if kind else f"{at_us // layout.SECOND_US}.{source}.json"


class ItemColumns(msgspec.Struct):
    """Items with standard names as data: parts of their names, and the bytes of each column of `_Packed`."""

    streams: list[_Stream]
    folders: list[str]
    kinds: list[str]
    columns: list[bytes]


class ItemTable(MutableMapping[str, Item]):
    """Items by key. Those with standard names are packed; they are made again each time they are read."""

    def __init__(self, items: Iterable[Item] = (), *, most: int = _PACK_MOST) -> None:
        """Create a table.

        Args:
            items: the items.
            most: of a long job's items, how many may be objects until they are packed: fewer if they come in the order of
                time, which takes no sorting.
        """
        self._most = most
        self._names = _Names()
        self._packed = _Packed.of(())
        self._alive: Mask = np.ones(0, np.bool_)
        self._dead = 0
        self._marks = False  # whether packed items are in the table only once they are added
        self._objects: dict[str, Item] = {}  # not packed yet
        self._odd: dict[str, Item] = {}  # never packed
        self._ordered: OrderedItems | None = None
        for item in items:
            self.add(item)

    def add(self, item: Item) -> None:
        """Add an item, or replace the one with its key."""
        self[item.info.key] = item

    @classmethod
    def of_columns(cls, found: ItemColumns) -> ItemTable:
        """Return the items that `columns` returned.

        Raises:
            ValueError: they are damaged.
        """
        made, names = cls(), _Names()
        names.stream_list, names.folder_list = found.streams, found.folders
        names.streams.update({stream: number for number, stream in enumerate(found.streams)})
        names.folders.update({folder: number for number, folder in enumerate(found.folders)})
        *kinds, tags = found.kinds or [""]
        if (
            kinds != [kind.str for kind in map(np.dtype, _KINDS)]
            or tags not in _TAGS
            or len(found.columns) != len(_KINDS) + 1
        ):
            raise ValueError("its columns are not those of files")
        packed = _Packed(*map(np.frombuffer, found.columns, map(np.dtype, found.kinds)))
        if len({len(column) for column in packed.all()}) != 1:
            raise ValueError("its columns do not belong together")
        for codes, texts in ((packed.stream, names.streams), (packed.folder, names.folders)):
            if len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) < len(texts):
                raise ValueError("parts of its names are missing")
        if packed.etag.tobytes().translate(None, _ASCII):
            raise ValueError("its ETags are no text")
        made._names, made._packed = names, packed.in_order()
        made._alive = np.ones(len(packed), np.bool_)
        return made

    def columns(self) -> ItemColumns:
        """Return the items with standard names as data."""
        self._pack()
        columns = self._packed[self._alive].all()
        return ItemColumns(
            self._names.stream_list, self._names.folder_list, [column.dtype.str for column in columns],
            [column.tobytes() for column in columns],
        )  # fmt: skip

    def unpacked(self) -> list[Item]:
        """Return the items whose names are not standard ones."""
        self._pack()
        return list(self._odd.values())

    def copy(self) -> ItemTable:
        """Return a table of the same items, which shares what is packed."""
        if len(self._objects) > _LOOSE:
            self._pack()
        made = ItemTable(most=self._most)
        made._names, made._packed, made._alive, made._dead = self._names, self._packed, self._alive.copy(), self._dead
        made._objects, made._odd, made._ordered = dict(self._objects), dict(self._odd), self._ordered
        return made

    def marks(self) -> ItemTable:
        """Return a table without items, in which each of the items of this table that is added takes one byte."""
        if len(self._objects) > _LOOSE:
            self._pack()
        made = ItemTable(most=_IN_ORDER)
        made._names, made._packed, made._marks = self._names, self._packed, True
        made._alive, made._dead = np.zeros(len(self._packed), np.bool_), len(self._packed)
        return made

    def __setitem__(self, key: str, item: Item) -> None:
        if self._mark(item):
            self._objects.pop(key, None)
            self._odd.pop(key, None)
        else:
            self._forget(key, item.file)
            self._put(item)

    def put(self, item: Item) -> None:
        """Add an item whose key is not in the table, which is not looked up."""
        if not self._mark(item):
            self._put(item)

    def _mark(self, item: Item) -> bool:
        """Add an item that is packed already, and return whether it is."""
        row = self._row(item.info.key, item.file, alive=False) if self._marks else None
        if row is None or self._at(row) != item:
            return False
        self._dead -= not self._alive[row]
        self._alive[row], self._ordered = True, None
        return True

    def _put(self, item: Item) -> None:
        self._objects[item.info.key] = item
        if len(self._objects) > min(max(len(self._packed) // 8, _PACK_AT), self._most):
            self._pack()
        self._ordered = None

    def __getitem__(self, key: str) -> Item:
        found = self.find(key)
        if found is None:
            raise KeyError(key)
        return found

    def find(self, key: str, file: SystemFile | TraceFile | None = None) -> Item | None:
        """Return the item with a key; None if there is none.

        Args:
            key: the key.
            file: its parsed name, if that is known.
        """
        found = self._objects.get(key) or self._odd.get(key)
        if found is not None:
            return found
        row = self._row(key, file)
        return None if row is None else self._at(row)

    def __contains__(self, key: object) -> bool:
        return key in self._objects or key in self._odd or (isinstance(key, str) and self._row(key) is not None)

    def __delitem__(self, key: str) -> None:
        if not self._forget(key):
            raise KeyError(key)

    def discard(self, item: Item) -> None:
        """Remove the item with the key of this one, if there is one."""
        self._forget(item.info.key, item.file)

    def __len__(self) -> int:
        return len(self._packed) - self._dead + len(self._objects) + len(self._odd)

    def __iter__(self) -> Iterator[str]:
        yield from self.ordered().keys()

    def ordered(self) -> OrderedItems:
        """Return the items in reading order, as they are now."""
        if self._ordered is None:
            if len(self._objects) > _LOOSE or self._dead > len(self._packed) // 2:
                self._pack()
            self._ordered = OrderedItems.of(
                self._names, self._packed, self._alive, [*self._objects.values(), *self._odd.values()]
            )
        return self._ordered

    def infos(self, prefix: str, after: str) -> Iterator[FileInfo]:
        """Yield the files in the folders that may hold keys that begin with `prefix` and follow `after`."""
        chosen = [
            f"{folder}/".startswith(prefix[: len(folder) + 1]) and f"{folder}/" >= after[: len(folder) + 1]
            for folder in self._names.folder_list
        ]
        return (item.info for item in self.ordered().in_folders(np.asarray(chosen or [False], np.bool_)))

    def _forget(self, key: str, file: Any = None) -> bool:
        self._ordered = None
        if self._objects.pop(key, None) is not None or self._odd.pop(key, None) is not None:
            return True
        row = self._row(key, file)
        if row is None:
            return False
        self._alive[row] = False
        self._dead += 1
        return True

    def _row(self, key: str, file: Any = None, *, alive: bool = True) -> int | None:
        """Return the place of a packed item.

        Args:
            key: the key.
            file: its parsed name, if that is known.
            alive: leave out what is packed and not in the table.
        """
        if not len(self._packed):
            return None
        file = layout.parse_path(key) if file is None else file
        if not isinstance(file, (SystemFile, TraceFile)):
            return None
        folder, _, name = key.rpartition("/")
        stream = _stream_of(file)
        if stream not in self._names.streams or folder not in self._names.folders or name != _name(stream, file.at_us):
            return None
        codes = self._names.streams[stream], self._names.folders[folder]
        at, packed = file.at_us, self._packed
        first, last = int(packed.at_us.searchsorted(at)), int(packed.at_us.searchsorted(at, "right"))
        row = first + int(packed.stream[first:last].searchsorted(codes[0]))
        while row < last and packed.stream[row] == codes[0]:
            if packed.folder[row] == codes[1] and (self._alive[row] or not alive):
                return row
            row += 1
        return None

    def _at(self, row: int) -> Item:
        return self._names.item([column[row].item() for column in self._packed.all()])

    def _pack(self) -> None:
        rows = []
        for key, item in self._objects.items():
            packed = self._names.pack(item)
            if packed is None:
                self._odd[key] = item
            else:
                rows.append(packed)
        kept = self._packed[self._alive] if self._dead else self._packed
        self._packed = kept.joined(_Packed.of(rows)) if rows else kept
        self._alive, self._dead, self._marks = np.ones(len(self._packed), np.bool_), 0, False
        self._objects = {}


class OrderedItems(Sequence[Item]):
    """Items in reading order, which later changes of their table leave as they are.

    Attributes:
        at_us, sizes, is_system: of each item.
    """

    def __init__(self, names: _Names, packed: _Packed, objects: Sequence[Item], places: Ints) -> None:
        """Create a sequence.

        Args:
            names: of the packed items.
            packed: items.
            objects: items that are not packed.
            places: of each item, in order: the row if it is packed, else -1 minus its number among the objects.
        """
        self._names, self._packed, self._objects, self._places = names, packed, objects, places
        systems = np.asarray([not kind for kind, _ in names.stream_list] or [False], np.bool_)

        self.at_us: Ints = self._column(packed.at_us, lambda item: item.at_us)
        self.sizes: Ints = self._column(packed.size, lambda item: item.info.size)
        self.is_system: Mask = self._column(systems[packed.stream], lambda item: item.is_system)

    def _column(self, values: Any, of_object: Callable[[Item], Any]) -> Any:
        places = self._places
        found = values[np.maximum(places, 0)] if len(values) else np.zeros(len(places), values.dtype)
        for place in np.flatnonzero(places < 0):
            found[place] = of_object(self._objects[-1 - int(places[place])])
        return found

    @property
    def mtimes(self) -> NDArray[np.float64]:
        """Time of the last change of each file, seconds since the epoch."""
        found: NDArray[np.float64] = self._column(self._packed.mtime, lambda item: item.info.mtime)
        return found

    @classmethod
    def of(cls, names: _Names, packed: _Packed, alive: Mask, objects: Sequence[Item]) -> OrderedItems:
        """Put items in order."""
        folders = _ranks([f"{folder}/" for folder in names.folder_list])
        tails = _ranks([_name(stream, 0).lstrip("0") for stream in names.stream_list])
        traces = np.asarray([bool(kind) for kind, _ in names.stream_list] or [False], np.bool_)[packed.stream]
        keys = tails[packed.stream], folders[packed.folder], packed.at_us, traces, packed.at_us // layout.MINUTE_US
        rows = np.lexsort(keys)
        rows = rows[alive[rows]]
        loose = sorted(objects, key=_order)
        view = cls(names, packed, (), rows)
        orders = _Orders(view)
        before = [bisect_left(orders, item.order) for item in loose]
        return cls(names, packed, loose, np.insert(rows, before, -1 - np.arange(len(loose))))

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> list[Item]: ...
    def __getitem__(self, at: int | slice) -> Item | list[Item]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        return next(self._items(self._places[[at]]))

    def __iter__(self) -> Iterator[Item]:
        for start in range(0, len(self), _PACK_AT):
            yield from self._items(self._places[start : start + _PACK_AT])

    def chosen(self, rows: Any) -> OrderedItems:
        """Return some of the items, given by a mask or by their places in ascending order."""
        return OrderedItems(self._names, self._packed, self._objects, self._places[rows])

    def in_folders(self, chosen: Mask) -> OrderedItems:
        """Return the items in some folders, given by their numbers, and all that are not packed."""
        if not len(self._packed):
            return self
        return self.chosen((self._places < 0) | chosen[self._packed.folder[np.maximum(self._places, 0)]])

    @property
    def detailed(self) -> list[Item]:
        """The detailed traces among the items."""
        objects = [self._objects[-1 - int(place)] for place in self._places[self._places < 0]]
        return [item for item in objects if isinstance(item.file, DetailedTrace)]

    def keys(self) -> Iterator[str]:
        """Yield the key of each item, in order."""
        streams, folders = self._names.stream_list, self._names.folder_list
        for start in range(0, len(self), _PACK_AT):
            places = self._places[start : start + _PACK_AT]
            rows = np.maximum(places, 0) if len(self._packed) else places[:0]
            columns = (
                column[rows].tolist() for column in (self._packed.stream, self._packed.folder, self._packed.at_us)
            )
            for place, row in zip_longest(places.tolist(), zip(*columns, strict=True)):
                if place < 0:
                    yield self._objects[-1 - place].info.key
                else:
                    stream, folder, at_us = row
                    yield f"{folders[folder]}/{_name(streams[stream], at_us)}"

    @property
    def hosts(self) -> Ints:
        """Number of the host of each item."""
        of_streams = [
            self._names.item([0, 0, 0.0, number, 0, b""]).host for number in range(len(self._names.stream_list))
        ]
        of_rows = np.asarray(of_streams or [0], np.int64)[self._packed.stream]
        found: Ints = self._column(of_rows, lambda item: item.host)
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(Item.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def _items(self, places: Ints) -> Iterator[Item]:
        names, packed = self._names, self._packed
        columns = (
            (column[np.maximum(places, 0)].tolist() if len(packed) else [None] * len(places)) for column in packed.all()
        )
        for place, *values in zip(places.tolist(), *columns, strict=True):
            yield names.item(values) if place >= 0 else self._objects[-1 - place]


class _Orders(Sequence[Order]):
    """Sort keys of items, made one by one."""

    def __init__(self, items: OrderedItems) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, at: Any) -> Any:
        return self._items[at].order


def _ranks(texts: list[str]) -> Ints:
    ranks = np.zeros(max(len(texts), 1), np.int64)
    ranks[sorted(range(len(texts)), key=texts.__getitem__)] = np.arange(len(texts))
    return ranks


def _order(item: Item) -> Order:
    return item.order
