"""A profile in Parquet as a storage: it lists the files of the profile, and serves their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from heapq import merge
from itertools import groupby

import attrs
import numpy as np

from sm_profiler.errors import SourceError
from sm_profiler.formats import layout
from sm_profiler.formats.layout import SystemFile, TraceFile
from sm_profiler.formats.outcome import REFUSED, Outcome
from sm_profiler.formats.packed import Packed
from sm_profiler.formats.trace_rows import LooseEnd, OpenEvent, TraceRows
from sm_profiler.source.cache import Copy, Reading
from sm_profiler.source.column_builder import FileRows
from sm_profiler.source.item_table import Item
from sm_profiler.source.parquet import paths, schema
from sm_profiler.source.parquet.contents import Contents, digest_of
from sm_profiler.source.parquet.header import SourceFile
from sm_profiler.source.parquet.paths import Part
from sm_profiler.source.parquet.reading import PartFile
from sm_profiler.source.streams import Streams
from sm_profiler.storage import FileInfo, MissingFileError, Storage
from sm_profiler.storage.base import UnreadableFileError

MAX_LIST_BYTES = 64 << 20  # of the list of files as it is stored
_READ_AT_ONCE = 16  # footers
_MAX_OPEN = 1024  # unpacked accounts of files: of both tables of many nodes, at the turn of an hour
_TABLES = (paths.SYSTEM, paths.EVENTS, paths.FILES)


@attrs.frozen(eq=False)
class Place:
    """Position of the rows of a file: in a row group, from `start` on."""

    part: PartFile
    file: SourceFile
    start: int


class ParquetStorage:
    """The files of one profile, as `sm-profiler compact` found them.

    Attributes:
        base: the storage with the Parquet files.
        job: the profile's job.
        unreadable: Parquet files that cannot be used, with the reason.
    """

    parallel_reads = 1

    def __init__(self, base: Storage, job: str) -> None:
        self.base, self.job = base, job
        self.unreadable: dict[str, str] = {}
        self._listed: dict[str, tuple[Part, FileInfo]] = {}  # the Parquet files as of the last listing
        self._contents: Contents | None = (
            None  # if it is that of these files, their footers are read when they are needed
        )
        self._parts: dict[str, PartFile] = {}
        self._odd: dict[str, Place] = {}  # files that are in another part than that of their name
        self._open_parts: dict[str, _OpenPart] = {}  # the last that were used
        self._others: dict[str, tuple[FileInfo, int | None]] = {}  # with the row group of its bytes
        self._files: PartFile | None = None

    @property
    def uri(self) -> str:
        """Location of the dataset, with the job."""
        return f"{self.base.uri.rstrip('/')}/job={self.job}"

    @property
    def origin(self) -> str:
        """Location of the profile that was compacted."""
        if self._contents is not None:
            return self._contents.origin
        return next((part.header.origin for part in self._parts.values()), self.uri)

    @property
    def parts(self) -> dict[Part, PartFile]:
        """The Parquet files as of `load`."""
        return {file.part: file for file in self._parts.values()}

    @property
    def digest(self) -> str | None:
        """Digest of names, sizes and ETags of the Parquet files as of the last listing; None if one cannot be used."""
        if self.unreadable or not self._listed:
            return None
        return digest_of(info for _, info in self._listed.values())

    @property
    def contents(self) -> Contents | None:
        """The list of files that is kept with the Parquet files; None if there is none of these."""
        self._look()
        return self._contents

    def new_contents(self) -> bytes | None:
        """Return the list of files as of `load` for `paths.contents_of`; None if a Parquet file cannot be used."""
        parts = self.digest
        if parts is None:
            return None
        rows = {
            table: sum(file.count for file in self._parts.values() if file.part.table == table)
            for table in schema.KINDS
        }
        odd = {key: place.part.info.key for key, place in self._odd.items()}
        return Contents.of(parts, self.origin, rows, self._all("", ""), odd).encode()

    def _read_beside(self, key: str) -> bytes:
        try:
            data = self.base.read(key, 0, MAX_LIST_BYTES + 1)
        except SourceError:
            return b""
        return data if len(data) <= MAX_LIST_BYTES else b""

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[FileInfo]:
        """Yield the files of the profile whose key begins with `prefix` and follows `start_after`, by key.

        Raises:
            SourceError: the Parquet files cannot be listed, or a newer version wrote one.
        """
        self._look()
        after = start_after or ""
        yield from self._all(prefix, after) if self._contents is None else self._contents.list(prefix, after)

    def _all(self, prefix: str, after: str) -> Iterator[FileInfo]:
        """Yield the files as they are in the footers."""
        others = {key: info for key, (info, _) in self._others.items()}
        others |= {key: place.file.info for key, place in self._odd.items()}
        beside = sorted(key for key in others if key.startswith(prefix) and key > after)
        usual = (info for info in self._usual(prefix) if info.key > after and info.key not in others)
        yield from merge(usual, (others[key] for key in beside), key=_key)

    def _usual(self, prefix: str) -> Iterator[FileInfo]:
        """Yield the files that are in the part of their name, an hour at a time."""
        for table, folder in ((paths.EVENTS, layout.TRACE_FOLDER), (paths.SYSTEM, layout.SYSTEM_FOLDER)):
            if not folder.startswith(prefix) and not prefix.startswith(folder):
                continue
            parts = sorted((file for file in self._parts.values() if file.part.table == table), key=_hour)
            for _, group in groupby(parts, _hour):
                infos = [each.info for file in group for each in file.header.files if each.key not in self._odd]
                yield from sorted((info for info in infos if info.key.startswith(prefix)), key=_key)

    def load(self) -> None:
        """Look for Parquet files that are new or have changed, and read their footers."""
        if self._contents is not None:
            self._contents, self._parts = None, {}
        self._load(self._list_parts())

    def _look(self) -> None:
        """Look for Parquet files that are new or have changed; read their footers unless a list of files is kept with them."""
        listed = self._list_parts()
        if listed == self._listed:
            return
        if self._contents is not None or not self._listed:
            data = self._read_beside(paths.contents_of(self.job)) if listed else b""
            self._contents = Contents.decode(data, digest_of(info for _, info in listed.values())) if data else None
            if self._contents is not None:
                self._listed, self._parts, self.unreadable = listed, {}, {}
                self._odd, self._open_parts, self._others, self._files = {}, {}, {}, None
                return
            self._parts = {}  # those that were opened by need have not been indexed
        self._load(listed)

    def _list_parts(self) -> dict[str, tuple[Part, FileInfo]]:
        return {
            info.key: (part, info)
            for table in _TABLES
            for info in self.base.list(paths.folder_of(table, self.job))
            if (part := Part.parse(info.key)) is not None and part.job == self.job
        }

    def _load(self, listed: dict[str, tuple[Part, FileInfo]]) -> None:
        self._listed = listed
        known = {key: file for key, file in self._parts.items() if key in listed and file.info == listed[key][1]}
        fresh = [each for key, each in listed.items() if key not in known]
        if not fresh and len(known) == len(self._parts):
            return
        self._parts, self.unreadable = known, {}
        with ThreadPoolExecutor(min(_READ_AT_ONCE, max(self.base.parallel_reads, 1)), "sm-profiler-read") as pool:
            for (_, info), opened in zip(fresh, pool.map(self._open, fresh), strict=True):
                if isinstance(opened, PartFile):
                    self._parts[info.key] = opened
                else:
                    self.unreadable[info.key] = opened
        self._odd, self._open_parts, self._others = {}, {}, {}
        for key in sorted(self._parts):
            self._index(self._parts[key])

    def _open(self, found: tuple[Part, FileInfo]) -> PartFile | str:
        try:
            return PartFile.open(self.base, *found)
        except MissingFileError:
            return "removed before it was read"
        except ValueError as error:
            return str(error)

    def _part(self, key: str) -> PartFile | None:
        """Return a Parquet file; None if it cannot be used, or is not there."""
        part = self._parts.get(key)
        if part is not None or self._contents is None or key not in self._listed or key in self.unreadable:
            return part
        opened = self._open(self._listed[key])
        if not isinstance(opened, PartFile):
            self.unreadable[key] = opened
            return None
        self._parts[key] = opened
        return opened

    def _index(self, part: PartFile) -> None:
        if part.part.table == paths.FILES:
            try:
                for row in part.rows("group", "key", "size", "etag", "mtime", "kept"):
                    info = FileInfo(row["key"], row["size"], row["mtime"], row["etag"])
                    self._others[info.key] = info, row["group"] if row["kept"] else None
                self._files = part
            except (ValueError, KeyError, TypeError) as error:
                self.unreadable[part.info.key] = str(error)
            return
        for place in _places(part):
            if not _is_usual(place.file, part.part):
                self._odd[place.file.key] = place

    def place(self, item: Item) -> Place | None:
        """Return where the rows of a file are; None if they are not there, or those of another version of the file."""
        place = self._odd_place(item.info.key) or self._found(item)
        return place if place is not None and place.file.is_of(item) else None

    def _odd_place(self, key: str) -> Place | None:
        if self._contents is None or key not in self._contents.odd:
            return self._odd.get(key)
        part = self._part(self._contents.odd[key])
        return self._opened(part).places.get(key) if part is not None else None

    def _found(self, item: Item) -> Place | None:
        part = self._part(Part.for_item(item, self.job).key)
        if part is None or not isinstance(item.file, (SystemFile, TraceFile)):
            return None
        return self._opened(part).places.get(item.info.key)

    def _opened(self, part: PartFile) -> _OpenPart:
        opened = self._open_parts.get(part.info.key)
        if opened is None:
            while len(self._open_parts) >= _MAX_OPEN:
                self._open_parts.pop(next(iter(self._open_parts)))
            opened = self._open_parts[part.info.key] = _OpenPart.of(part)
        return opened

    def _forget_before(self, hour: str) -> None:
        """Forget the unpacked accounts of earlier hours, which have half a kilobyte for each file."""
        for key in [key for key, opened in self._open_parts.items() if opened.hour < hour]:
            del self._open_parts[key]
            if self._contents is not None:
                self._parts.pop(key, None)

    def count_rows(self, *, system: bool) -> int:
        """Return the number of measurements, or of events."""
        table = paths.SYSTEM if system else paths.EVENTS
        if self._contents is not None:
            return self._contents.rows.get(table, 0)
        return sum(file.count for file in self._parts.values() if file.part.table == table)

    @property
    def others(self) -> dict[str, FileInfo]:
        """The files that are kept as they are, or listed only, by key."""
        return {key: info for key, (info, _) in self._others.items()}

    def pieces_without_rows(self, items: Sequence[Item]) -> Iterator[FileRows]:
        """Yield files with the events that are open at their end, and without their rows."""
        for item in items:
            place = self.place(item)
            if place is not None and (place.file.ends or place.file.begins):
                yield FileRows(item, place.file.result, loose=_loose(item, place.file))

    def pieces(self, items: Sequence[Item], *, by_minute: bool = False) -> Iterator[FileRows]:
        """Yield the rows of files in this order. A row group is in memory from its first file to its last.

        Args:
            items: the files.
            by_minute: they are in the order of time, so that a group is not needed after its last minute; it is packed, as
                those of all nodes and ranks are in memory at once.

        Raises:
            SourceError: a Parquet file cannot be fetched.
        """
        groups: dict[tuple[str, int], _Group] = {}
        minute = -1
        for item in items:
            place = self.place(item)
            if by_minute and item.at_us // layout.MINUTE_US > minute:
                minute = item.at_us // layout.MINUTE_US
                self._forget_before(_hour_folder(item.at_us))
                _free(groups, lambda group: group.last_us // layout.MINUTE_US < minute)  # noqa: B023 - called at once
            if place is None:  # listed, and not compacted
                yield FileRows(item, Outcome(REFUSED, 0, "its rows are not in the Parquet files"))
                continue
            key = place.part.info.key, place.file.group
            if key not in groups and place.file.rows:
                groups[key] = _Group.of(place, *self._opened(place.part).groups[place.file.group], packed=by_minute)
            group = groups.get(key) if place.file.rows else None
            yield _rows(item, place, group.rows if group is not None else None)
            if group is not None:
                group.left -= 1
                _free(groups, lambda group: not group.left, only=key)
        _free(groups, lambda _: True)

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of a file that is kept as it is.

        Raises:
            MissingFileError: there is no such file, or only its rows are there.
        """
        if (
            self._contents is not None
            and self._files is None
            and (files := self._part(Part(paths.FILES, self.job).key))
        ):
            self._index(files)
        group = self._others.get(key, (None, None))[1]
        if group is None or self._files is None:
            raise MissingFileError(f"{self.uri} does not hold the bytes of {key}")
        try:
            data: bytes = next(row["data"] for row in self._files.rows("key", "data", only=group) if row["key"] == key)
        except (ValueError, StopIteration) as error:
            raise UnreadableFileError(f"{self._files.info.key}: {error or key}") from error
        return data[start or 0 : end]

    def write(self, key: str, data: bytes) -> None:
        """Refuse to write.

        Raises:
            SourceError: always.
        """
        del data
        raise SourceError(f"{self.uri}/{key} cannot be written: a profile in Parquet is read only")

    def exists(self, key: str) -> bool:
        """Return whether there is such a file."""
        return next((True for info in self.list(key) if info.key == key), False)


@attrs.define(eq=False)
class _OpenPart:
    """A Parquet file with its account of files unpacked.

    Attributes:
        hour: its hour, as in the folder's name.
        places: of the rows of each file.
        groups: row group → number of its files, and the latest of their times.
    """

    hour: str
    places: dict[str, Place]
    groups: dict[int, tuple[int, int]]

    @classmethod
    def of(cls, part: PartFile) -> _OpenPart:
        places = list(_places(part))
        groups: dict[int, tuple[int, int]] = {}
        for file in (place.file for place in places if place.file.rows):
            count, last_us = groups.get(file.group, (0, file.at_us))
            groups[file.group] = count + 1, max(last_us, file.at_us)
        return cls(part.part.hour, {place.file.key: place for place in places}, groups)


@attrs.define(eq=False)
class _Group:
    """A row group in memory.

    Attributes:
        part: its file.
        rows: its rows, or why they cannot be used.
        left: number of its files that have not been read.
        last_us: the latest of their times.
    """

    part: PartFile
    rows: Copy | str
    left: int
    last_us: int

    @classmethod
    def of(cls, place: Place, files: int, last_us: int, *, packed: bool) -> _Group:
        return cls(place.part, _group(place, packed=packed), files, last_us)


def _free(
    groups: dict[tuple[str, int], _Group], done: Callable[[_Group], bool], only: tuple[str, int] | None = None
) -> None:
    """Forget row groups, and close the files of which no other group is in memory."""
    for key in [only] if only is not None else list(groups):
        if done(groups[key]):
            part = groups.pop(key).part
            if not any(other == part.info.key for other, _ in groups):
                part.close()


def _places(part: PartFile) -> Iterator[Place]:
    at: Counter[int] = Counter()
    for file in part.header.files:
        yield Place(part, file, at[file.group])
        at[file.group] += file.rows


def _is_usual(file: SourceFile, part: Part) -> bool:
    """Return whether a file is in the part, and has the folder, that follow from its name."""
    parsed = layout.parse_path(file.key)
    if not isinstance(parsed, (SystemFile, TraceFile)) or parsed.at_us != file.at_us:
        return False
    table, folder = (
        (paths.SYSTEM, layout.SYSTEM_FOLDER) if isinstance(parsed, SystemFile) else (paths.EVENTS, layout.TRACE_FOLDER)
    )
    mine = part.table == table and part.node == paths.host_of(parsed.node) and part.hour == _hour_folder(file.at_us)
    return mine and file.key.startswith(f"{folder}/{part.hour}/")


@lru_cache(64)
def _hour_name(hour: int) -> str:
    return layout.hour_folder(hour * 3600 * layout.SECOND_US)


def _hour_folder(at_us: int) -> str:
    return _hour_name(at_us // (3600 * layout.SECOND_US))


def _hour(part: PartFile) -> str:
    return part.part.hour


def _key(info: FileInfo) -> str:
    return info.key


def _group(place: Place, *, packed: bool) -> Copy | str:
    """Return the rows of a row group, or why they cannot be used."""
    try:
        columns = place.part.columns(place.file.group)
        return Copy(Packed(columns) if packed else columns, (), Streams())
    except ValueError as error:
        return f"{place.part.info.key}: {error}"


def _rows(item: Item, place: Place, group: Copy | str | None) -> FileRows:
    """Return the rows of a file as the parser would return them: events that began in earlier files are not joined."""
    file = place.file
    if isinstance(group, str):
        return FileRows(item, Outcome(REFUSED, 0, group))
    reading = Reading(item, file.rows - file.joined, file.result, file.records)
    loose = _loose(item, file) if file.ends or file.begins else None
    if group is None:
        return FileRows(item, file.result, reading.metadata, loose=loose)
    return attrs.evolve(FileRows.copied(group, reading, place.start + file.joined), loose=loose)


def _loose(item: Item, file: SourceFile) -> TraceRows:
    return loose_rows(item, *file.loose)


def loose_rows(item: Item, ends: tuple[LooseEnd, ...], begins: tuple[OpenEvent, ...]) -> TraceRows:
    """Return the ends and begins in a file without a counterpart there, as rows without any whole event."""
    floats, codes = np.empty(0), np.empty(0, np.int32)
    numbers = np.empty((0, 6), np.int64)
    return TraceRows(
        floats, floats, codes, codes, (), numbers, (), item.node, item.kind, loose_ends=ends, open_events=begins
    )
