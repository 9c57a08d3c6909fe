"""A profile in Parquet as a storage: it lists the files of the profile, and serves their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import attrs
import numpy as np

from sm_profiler.errors import SourceError
from sm_profiler.formats.outcome import REFUSED, Outcome
from sm_profiler.formats.packed import Packed
from sm_profiler.formats.trace_rows import LooseEnd, OpenEvent, TraceRows
from sm_profiler.source.cache import Copy, Reading
from sm_profiler.source.column_builder import FileRows
from sm_profiler.source.item import Item
from sm_profiler.source.parquet import paths
from sm_profiler.source.parquet.header import SourceFile
from sm_profiler.source.parquet.paths import Part
from sm_profiler.source.parquet.reading import PartFile
from sm_profiler.source.streams import Streams
from sm_profiler.storage import FileInfo, MissingFileError, Storage
from sm_profiler.storage.base import UnreadableFileError

_READ_AT_ONCE = 16  # footers
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
        self._parts: dict[str, PartFile] = {}
        self._places: dict[str, Place] = {}
        self._others: dict[str, tuple[FileInfo, int | None]] = {}  # with the row group of its bytes
        self._files: PartFile | None = None

    @property
    def uri(self) -> str:
        """Location of the dataset, with the job."""
        return f"{self.base.uri.rstrip('/')}/job={self.job}"

    @property
    def origin(self) -> str:
        """Location of the profile that was compacted."""
        return next((part.header.origin for part in self._parts.values()), self.uri)

    @property
    def parts(self) -> dict[Part, PartFile]:
        """The Parquet files as of the last listing."""
        return {file.part: file for file in self._parts.values()}

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[FileInfo]:
        """Yield the files of the profile whose key begins with `prefix` and follows `start_after`, by key.

        Raises:
            SourceError: the Parquet files cannot be listed, or a newer version wrote one.
        """
        self.load()
        found = {key: place.file.info for key, place in self._places.items()}
        found |= {key: info for key, (info, _) in self._others.items()}
        for key in sorted(found):
            if key.startswith(prefix) and key > (start_after or ""):
                yield found[key]

    def load(self) -> None:
        """Look for Parquet files that are new or have changed, and read their footers."""
        listed = {
            info.key: (part, info)
            for table in _TABLES
            for info in self.base.list(paths.folder_of(table, self.job))
            if (part := Part.parse(info.key)) is not None and part.job == self.job
        }
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
        self._places, self._others = {}, {}
        for key in sorted(self._parts):
            self._index(self._parts[key])

    def _open(self, found: tuple[Part, FileInfo]) -> PartFile | str:
        try:
            return PartFile.open(self.base, *found)
        except MissingFileError:
            return "removed before it was read"
        except ValueError as error:
            return str(error)

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
        at: Counter[int] = Counter()
        for file in part.header.files:
            self._places[file.key] = Place(part, file, at[file.group])
            at[file.group] += file.rows

    def place(self, item: Item) -> Place | None:
        """Return where the rows of a file are; None if they are not there, or those of another version of the file."""
        place = self._places.get(item.info.key)
        return place if place is not None and place.file.is_of(item) else None

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

    def pieces(self, items: Sequence[Item]) -> Iterator[FileRows]:
        """Yield the rows of files in this order. A row group is in memory from its first file to its last.

        Raises:
            SourceError: a Parquet file cannot be fetched.
        """
        places = [self.place(item) for item in items]
        left = Counter((place.part.info.key, place.file.group) for place in places if place is not None)
        waiting = Counter(place.part.info.key for place in places if place is not None)
        groups: dict[tuple[str, int], Copy | str] = {}
        for item, place in zip(items, places, strict=True):
            if place is None:  # listed, and not compacted
                yield FileRows(item, Outcome(REFUSED, 0, "its rows are not in the Parquet files"))
                continue
            key = place.part.info.key
            group = key, place.file.group
            if group not in groups and place.file.rows:
                groups[group] = _group(place)
            yield _rows(item, place, groups.get(group))
            left[group] -= 1
            if not left[group]:
                groups.pop(group, None)
            waiting[key] -= 1
            if not waiting[key]:
                place.part.close()

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of a file that is kept as it is.

        Raises:
            MissingFileError: there is no such file, or only its rows are there.
        """
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
        return key in self._places or key in self._others


def _group(place: Place) -> Copy | str:
    """Return the rows of a row group, or why they cannot be used."""
    try:
        return Copy(Packed(place.part.columns(place.file.group)), (), Streams())
    except ValueError as error:
        return f"{place.part.info.key}: {error}"


def _rows(item: Item, place: Place, group: Copy | str | None) -> FileRows:
    """Return the rows of a file as the parser would return them: events that began in earlier files are not joined."""
    file = place.file
    if isinstance(group, str):
        return FileRows(item, Outcome(REFUSED, 0, group))
    reading = Reading(item, file.rows - file.joined, file.result, tuple(file.metadata))
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
