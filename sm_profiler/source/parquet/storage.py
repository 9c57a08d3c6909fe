"""A profile in Parquet as a storage: it lists the files of the profile, and serves their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import attrs
import numpy as np

from sm_profiler.errors import SourceError
from sm_profiler.formats import layout
from sm_profiler.formats.columns import Packed
from sm_profiler.formats.layout import SystemFile, TraceFile
from sm_profiler.formats.outcome import REFUSED, Outcome
from sm_profiler.formats.trace_records import Streams
from sm_profiler.formats.trace_rows import LooseEnd, OpenEvent, TraceRows
from sm_profiler.source.cache import Copy, Reading
from sm_profiler.source.item_table import Item, ItemTable
from sm_profiler.source.parquet import paths, schema
from sm_profiler.source.parquet.contents import Contents, PartFile, digest_of
from sm_profiler.source.parquet.paths import PartKey
from sm_profiler.source.parquet.schema import SourceFile, check_mtime
from sm_profiler.source.parse import FileRows
from sm_profiler.storage import FileInfo, MissingFileError, Storage
from sm_profiler.storage.base import UnreadableFileError

MAX_LIST_BYTES = 64 << 20  # of the list of files as it is stored
_READ_AT_ONCE = 16  # footers
_MAX_OPEN = 1024  # unpacked accounts of files: of both tables of many nodes, at the turn of an hour
_TABLES = (paths.SYSTEM, paths.EVENTS, paths.FILES)


@attrs.frozen(eq=False)
class RowPlace:
    """Position of the rows of a file: in a row group, from `start` on."""

    part: PartFile
    file: SourceFile
    start: int


class ParquetStorage:
    """The files of one profile, as `sm-profiler compact` found them.

    Attributes:
        job: the profile's job.
        unreadable: Parquet files that cannot be used, with the reason.
    """

    parallel_reads = 1

    def __init__(self, base: Storage, job: str) -> None:
        self.base, self.job = base, job
        self.unreadable: dict[str, str] = {}
        self._listed: dict[str, tuple[PartKey, FileInfo]] = {}  # the Parquet files as of the last listing
        self._contents = Contents("", self.uri, {}, ItemTable(), {}, {})
        self._is_stored = False  # whether the list of files is that in the dataset
        self._parts: dict[str, PartFile] = {}  # whose footers have been read
        self._open_parts: dict[str, _OpenPart] = {}  # the last that were used
        self._others: dict[str, tuple[FileInfo, int | None]] | None = None  # with the row group of its bytes

    @property
    def uri(self) -> str:
        return f"{self.base.uri.rstrip('/')}/job={self.job}"

    @property
    def origin(self) -> str:
        return self._contents.origin

    @property
    def parts(self) -> dict[PartKey, FileInfo]:
        """The Parquet files that can be used, as of the last listing."""
        return {part: info for part, info in self._listed.values() if info.key not in self.unreadable}

    @property
    def digest(self) -> str | None:
        """Digest of names, sizes and ETags of the Parquet files as of the last listing; None if one cannot be used."""
        if self.unreadable or not self._listed:
            return None
        return digest_of(info for _, info in self._listed.values())

    @property
    def contents(self) -> Contents:
        self.load()
        return self._contents

    def new_contents(self) -> bytes | None:
        """Return the list of files for `paths.contents_of`; None if it is there, or if a Parquet file cannot be used."""
        self.load()
        return None if self._is_stored or self.digest is None else self._contents.encode()

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[FileInfo]:
        """Yield the files of the profile whose key begins with `prefix` and follows `start_after`, by key.

        Raises:
            SourceError: the Parquet files cannot be listed, or a newer version wrote one.
        """
        yield from self.contents.list(prefix, start_after or "")

    def load(self, *, footers: bool = False) -> None:
        """Look for Parquet files that are new or have changed; read their footers unless a list of files is kept with them."""
        listed = {
            info.key: (part, info)
            for table in _TABLES
            for info in self.base.list(paths.folder_of(table, self.job))
            if (part := PartKey.parse(info.key)) is not None and part.job == self.job
        }
        if listed == self._listed and not footers:
            return
        self._listed, self.unreadable, self._open_parts, self._others = listed, {}, {}, None
        self._parts = {key: file for key, file in self._parts.items() if key in listed and file.info == listed[key][1]}
        parts = digest_of(info for _, info in listed.values())
        stored = None if footers else Contents.decode(self._read_list() if listed else b"", parts)
        self._is_stored = stored is not None
        self._contents = stored or self._contents_of_footers(parts)

    def _read_list(self) -> bytes:
        try:
            data = self.base.read(paths.contents_of(self.job), 0, MAX_LIST_BYTES + 1)
        except SourceError:
            return b""
        return data if len(data) <= MAX_LIST_BYTES else b""

    def _contents_of_footers(self, parts: str) -> Contents:
        fresh = [key for key in self._listed if key not in self._parts]
        with ThreadPoolExecutor(min(_READ_AT_ONCE, max(self.base.parallel_reads, 1)), "sm-profiler-read") as pool:
            list(pool.map(self._part, fresh))
        odd, infos, rows = dict[str, str](), dict[str, FileInfo](self.others), Counter[str]()
        for key in sorted(self._parts):
            part = self._parts[key]
            rows[part.part.table] += part.count
            for file in part.header.files:
                if not _is_usual(file, part.part):
                    odd[file.key] = key
                infos.setdefault(file.key, file.info)
        origin = next((part.header.origin for part in self._parts.values()), self.uri)
        return Contents.of(parts, origin, {table: rows[table] for table in schema.KINDS}, infos.values(), odd)

    def _part(self, key: str) -> PartFile | None:
        """Return a Parquet file; None if it cannot be used, or is not there."""
        part = self._parts.get(key)
        if part is not None or key not in self._listed or key in self.unreadable:
            return part
        try:
            self._parts[key] = opened = PartFile.open(self.base, *self._listed[key])
        except MissingFileError:
            self.unreadable[key] = "removed before it was read"
        except ValueError as error:
            self.unreadable[key] = str(error)
        else:
            return opened
        return None

    def place(self, item: Item) -> RowPlace | None:
        """Return where the rows of a file are; None if they are not there, or those of another version of the file."""
        part = self._part(self._contents.odd.get(item.info.key) or PartKey.for_item(item, self.job).key)
        place = self._opened(part).places.get(item.info.key) if part is not None else None
        return place if place is not None and place.file.is_of(item) else None

    def _opened(self, part: PartFile) -> _OpenPart:
        opened = self._open_parts.get(part.info.key)
        if opened is None:
            while len(self._open_parts) >= _MAX_OPEN:
                self._open_parts.pop(next(iter(self._open_parts)))
            opened = self._open_parts[part.info.key] = _OpenPart.of(part)
        return opened

    def _forget_before(self, hour: str) -> None:
        """Forget the footers of earlier hours, which have half a kilobyte for each file once they are unpacked."""
        for key in [key for key, opened in self._open_parts.items() if opened.hour < hour]:
            del self._open_parts[key]
            self._parts.pop(key, None)

    def count_rows(self, *, system: bool) -> int:
        """Return the number of measurements, or of events."""
        return self._contents.rows.get(paths.SYSTEM if system else paths.EVENTS, 0)

    @property
    def others(self) -> dict[str, FileInfo]:
        """The files that are kept as they are, or listed only, by key."""
        return {key: info for key, (info, _) in self._kept().items()}

    def _kept(self) -> dict[str, tuple[FileInfo, int | None]]:
        """Return these files, each with the row group that holds its bytes."""
        if self._others is None:
            self._others = {}
            part = self._part(PartKey(paths.FILES, self.job).key)
            try:
                for row in part.rows("group", "key", "size", "etag", "mtime", "kept") if part is not None else ():
                    check_mtime(row["mtime"])
                    info = FileInfo(row["key"], row["size"], row["mtime"], row["etag"])
                    self._others[info.key] = info, row["group"] if row["kept"] else None
            except (ValueError, KeyError, TypeError) as error:
                self._others = {}
                self.unreadable[PartKey(paths.FILES, self.job).key] = str(error)
        return self._others

    def pieces_without_rows(self, items: Sequence[Item]) -> Iterator[FileRows]:
        """Yield files with the events that are open at their end, and without their rows."""
        for item in items:
            place = self.place(item)
            if place is not None and (place.file.ends or place.file.begins):
                yield FileRows(item, place.file.result, loose=_loose(item, place.file))

    def pieces(self, items: Sequence[Item], *, by_minute: bool = False) -> Iterator[FileRows]:
        """Yield the rows of files in this order. A row group is in memory from its first file to its last.

        Args:
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
        group = self._kept().get(key, (None, None))[1]
        part = self._part(PartKey(paths.FILES, self.job).key)
        if group is None or part is None:
            raise MissingFileError(f"{self.uri} does not hold the bytes of {key}")
        try:
            data: bytes = next(row["data"] for row in part.rows("key", "data", only=group) if row["key"] == key)
        except (ValueError, StopIteration) as error:
            raise UnreadableFileError(f"{part.info.key}: {error or key}") from error
        return data[start or 0 : end]

    def write(self, key: str, data: bytes) -> None:
        """Refuse to write.

        Raises:
            SourceError: always.
        """
        del data
        raise SourceError(f"{self.uri}/{key} cannot be written: a profile in Parquet is read only")

    def exists(self, key: str) -> bool:
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
    places: dict[str, RowPlace]
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
        rows: its rows, or why they cannot be used.
        left: number of its files that have not been read.
        last_us: the latest of their times.
    """

    part: PartFile
    rows: Copy | str
    left: int
    last_us: int

    @classmethod
    def of(cls, place: RowPlace, files: int, last_us: int, *, packed: bool) -> _Group:
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


def _places(part: PartFile) -> Iterator[RowPlace]:
    at: Counter[int] = Counter()
    for file in part.header.files:
        yield RowPlace(part, file, at[file.group])
        at[file.group] += file.rows


def _is_usual(file: SourceFile, part: PartKey) -> bool:
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


def _group(place: RowPlace, *, packed: bool) -> Copy | str:
    """Return the rows of a row group, or why they cannot be used."""
    try:
        columns = place.part.columns(place.file.group)
        return Copy(Packed(columns) if packed else columns, (), Streams())
    except ValueError as error:
        return f"{place.part.info.key}: {error}"


def _rows(item: Item, place: RowPlace, group: Copy | str | None) -> FileRows:
    """Return the rows of a file as the parser would return them: events that began in earlier files are not joined."""
    file = place.file
    if isinstance(group, str):
        return FileRows(item, Outcome(REFUSED, file.rows, group))
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
