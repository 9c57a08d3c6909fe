"""Write a profile as Parquet: only what is new, one file for each node and hour."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import chain

import attrs

from sm_profiler.compact.derived import DerivedTables
from sm_profiler.errors import SourceError
from sm_profiler.formats.layout import DetailedTrace
from sm_profiler.formats.outcome import READ
from sm_profiler.source import ProfileSource
from sm_profiler.source.column_builder import FileRows
from sm_profiler.source.item import Item
from sm_profiler.source.parquet import header as headers
from sm_profiler.source.parquet import paths
from sm_profiler.source.parquet.header import Header
from sm_profiler.source.parquet.paths import Part
from sm_profiler.source.parquet.storage import ParquetStorage
from sm_profiler.source.parquet.writing import PartWriter, TableWriter
from sm_profiler.source.parse import Parsed, parse_all
from sm_profiler.source.profile import SETTLED_S
from sm_profiler.source.progress import progress_bar
from sm_profiler.source.streams import Streams
from sm_profiler.storage import FileInfo, Storage, read_all

MAX_KEPT_BYTES = 64 << 20  # of a file that is kept as it is


@attrs.define
class Compacted:
    """Account of a compaction.

    Attributes:
        job: name of the job.
        files: files of the profile that were read.
        rows: their rows.
        read_bytes: their bytes.
        parts: Parquet files that were written.
        written_bytes: their bytes.
        unchanged: files that were in Parquet already.
        left: files that could not be read, or may still be written; the next time they are tried again.
    """

    job: str
    files: int = 0
    rows: int = 0
    read_bytes: int = 0
    parts: int = 0
    written_bytes: int = 0
    unchanged: int = 0
    left: int = 0


def compact(source: ProfileSource, storage: Storage, *, job: str) -> Compacted:
    """Write a profile as Parquet, or add what is new to it.

    A file that is in Parquet already and no longer in the profile stays in Parquet.

    Args:
        source: the profile.
        storage: root of the dataset.
        job: the job's name in the dataset.

    Raises:
        SourceError: the profile cannot be read, or the dataset cannot be written.
    """
    return _Compaction(source, storage, job).run()


class _Compaction:
    """One call of `compact`."""

    def __init__(self, source: ProfileSource, storage: Storage, job: str) -> None:
        self._source, self._storage = source, storage
        self._existing = ParquetStorage(storage, job)
        self._existing.load()
        if self._existing.unreadable:
            key, reason = next(iter(self._existing.unreadable.items()))
            raise SourceError(f"{storage.uri}/{key}: {reason}; delete it, and compact again")
        self._held: dict[Part, dict[str, Item]] = {}
        for item in ProfileSource(self._existing).files:
            place = self._existing.place(item)
            if place is not None:
                self._held.setdefault(place.part.part, {})[item.info.key] = item
        self._streams = Streams()
        self.done = Compacted(job)

    def run(self) -> Compacted:
        """Write all parts that have new files."""
        changed: dict[Part, list[Item]] = {}
        for item in self._source.files:
            if self._existing.place(item) is not None:
                self.done.unchanged += 1
                continue
            changed.setdefault(Part.for_item(item, self.done.job), []).append(item)
            for part, held in self._held.items():
                if held.pop(item.info.key, None):  # another version of the file
                    changed.setdefault(part, [])
        fresh = [item for part in sorted(changed, key=_in_time) for item in sorted(changed[part], key=_in_part)]
        parsed = parse_all(self._source.storage, fresh, processes=self._source.options.processes)
        with closing(parsed), progress_bar(fresh, show=self._source.options.progress) as advance:
            for part in sorted({*changed, *self._held}, key=_in_time):
                if part in changed:
                    self._write(part, list(self._parsed(parsed, len(changed[part]), advance)))
                else:
                    self._replay(part)
        self._write_files()
        return self.done

    def _parsed(self, parsed: Iterator[Parsed], count: int, advance: Callable[[Item], None]) -> Iterator[FileRows]:
        """Yield the next files, as far as they can be used."""
        for _ in range(count):
            piece = FileRows.parsed(*next(parsed))
            advance(piece.item)
            settled = self._source.finished or time.time() - piece.item.info.mtime > SETTLED_S
            if not piece.rows or (piece.outcome.status != READ and not settled):
                self.done.left += 1
                continue
            self.done.files += 1
            self.done.read_bytes += piece.item.info.size
            yield piece

    def _replay(self, part: Part) -> None:
        """Follow the events that are open at the end of a part's files, for the parts after it."""
        held = self._held[part]
        for piece in self._existing.pieces_without_rows(sorted(held.values(), key=_in_part)):
            piece.joined(self._streams)

    def _write(self, part: Part, new: Sequence[FileRows]) -> None:
        """Write a part again, with new files."""
        held = self._held.get(part, {})
        if not new and not held:
            return
        writer, derived = PartWriter(part.table, self._source.origin), DerivedTables()
        by_key = {piece.item.info.key: piece for piece in new}
        items = sorted([*held.values(), *(piece.item for piece in new)], key=_in_part)
        old = self._existing.pieces([item for item in items if item.info.key not in by_key])
        for item in items:
            raw = by_key.pop(item.info.key, None)
            self.done.rows += raw.count if raw else 0
            raw = raw or next(old)
            derived.add(writer.add(raw.joined(self._streams), raw))
        derived.add(writer.flush())
        for table, rows in derived.tables():
            made = TableWriter(table)
            made.write_rows(rows)
            self._save(part.of(table), made.finish(Header(headers.VERSION, self._source.origin)))
        self._save(part, writer.finish())  # last: it lists the files that are done

    def _save(self, part: Part, data: bytes) -> None:
        self._storage.write(part.key, data)
        self.done.parts += 1
        self.done.written_bytes += len(data)

    def _write_files(self) -> None:
        """Write the files that are kept as they are: statistics, metadata, end markers."""
        raw = [item.info for item in self._source.files if isinstance(item.file, DetailedTrace)]
        listed = {info.key: info for info in (*self._source.beside, *raw)}
        held = self._existing.others
        part = Part(paths.FILES, self.done.job)
        if part in self._existing.parts and all(held.get(key) == info for key, info in listed.items()):
            return
        made = TableWriter(paths.FILES)
        changed = {key: info for key, info in listed.items() if held.get(key) != info}
        self._add_files(made, self._existing, [info for key, info in held.items() if key not in changed])
        self._add_files(made, self._source.storage, list(changed.values()))
        self._save(part, made.finish(Header(headers.VERSION, self._source.origin)))

    def _add_files(self, made: TableWriter, storage: Storage, infos: Sequence[FileInfo]) -> None:
        """Add files, each in a row group of its own, so that one can be read without the others."""
        small = [info for info in infos if info.size <= MAX_KEPT_BYTES]
        found = [(info, None) for info in infos if info.size > MAX_KEPT_BYTES]
        for info, data in chain(read_all(storage, small), found):
            kept = data if isinstance(data, bytes) else None
            made.write_rows(
                {
                    "key": [info.key], "size": [info.size], "etag": [info.etag], "mtime": [info.mtime],
                    "kept": [kept is not None], "data": [kept or b""],
                }
            )  # fmt: skip


def _in_time(part: Part) -> tuple[str, str, str]:
    return part.hour, part.table, part.node


def _in_part(item: Item) -> tuple[int, int, str]:
    return item.rank, item.at_us, item.info.key
