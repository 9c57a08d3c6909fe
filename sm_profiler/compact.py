"""A profile as Parquet: a twentieth of the bytes of a long job, for every engine that reads it, and our reports.

Only what is new is written, one file for each node and hour:
`compact(open_source("/path/to/profiler-output"), open_storage("s3://bucket/profiles"))`.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from itertools import chain
from typing import Any

import attrs
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sm_profiler.errors import SourceError
from sm_profiler.executors import Meter, Pool, Remote, map_tasks, open_pool
from sm_profiler.formats import layout
from sm_profiler.formats.columns import EventColumns
from sm_profiler.formats.event_names import SAMPLES
from sm_profiler.formats.outcome import READ, Outcome
from sm_profiler.formats.trace_records import Streams
from sm_profiler.formats.trace_rows import LooseEnd, OpenEvent
from sm_profiler.metrics.sample_fold import decode_stacks
from sm_profiler.metrics.step_fold import GC, MODES, StepFold, column, each_process
from sm_profiler.source import ProfileSource
from sm_profiler.source.item_table import Item
from sm_profiler.source.opening import ListedStorage, place_of, shared_location
from sm_profiler.source.parquet import paths
from sm_profiler.source.parquet.paths import PartKey
from sm_profiler.source.parquet.schema import KEY, SCHEMA_VERSION, SCHEMAS, Header, SourceFile, encode_header, to_batch
from sm_profiler.source.parquet.storage import ParquetStorage, loose_rows
from sm_profiler.source.parse import ColumnBuilder, FileRows, Parsed, parse_all
from sm_profiler.source.profile import SETTLED_S, megabytes, reading_meter
from sm_profiler.storage import FileInfo, Storage, open_storage, read_all

__all__ = ["Compacted", "athena_ddl", "compact"]

Open = tuple[str, str, OpenEvent]  # node, kind and event

MAX_KEPT_BYTES = 64 << 20  # of a file that is kept as it is
GROUP_ROWS = 1 << 16  # what a reader holds of each node and timeline
LEVEL = 6  # of zstd

_TYPES = {
    pa.string(): "string", pa.float64(): "double", pa.int64(): "bigint", pa.int32(): "int", pa.bool_(): "boolean",
    pa.binary(): "binary",
}  # fmt: skip
DATABASE = "sm_profiler"


@attrs.frozen(eq=False)
class _Window:
    """Events as the folds read them."""

    start_us: int
    new_events: EventColumns


class TableWriter:
    def __init__(self, table: str) -> None:
        self._out = io.BytesIO()
        self._writer = pq.ParquetWriter(
            self._out, SCHEMAS[table], version="1.0", compression="zstd", compression_level=LEVEL,
            use_dictionary=[
                field.name for field in SCHEMAS[table] if field.type not in {pa.float64(), pa.binary()}
            ],
            write_statistics=[field.name for field in SCHEMAS[table] if field.name not in {"args", "data"}],
            write_page_checksum=True, store_schema=False,
        )  # fmt: skip
        self._table = table
        self.rows = 0

    def write(self, batch: Any) -> None:
        self.rows += len(batch)
        self._writer.write_table(batch.cast(SCHEMAS[self._table]), row_group_size=max(len(batch), 1))

    def write_rows(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Append columns of Python values or numpy arrays as a row group."""
        fields = SCHEMAS[self._table]
        self.write(pa.table([pa.array(columns[field.name], field.type) for field in fields], fields))

    def finish(self, header: Header) -> bytes:
        self._writer.add_key_value_metadata({KEY.decode(): encode_header(header).decode()})
        self._writer.close()
        return self._out.getvalue()


class PartWriter:
    def __init__(self, table: str, origin: str) -> None:
        self._table = table
        self._header = Header(SCHEMA_VERSION, origin)
        self._writer = TableWriter(table)
        self._group = 0
        self._rank: int | None = None
        self._start()

    def _start(self) -> None:
        self._builder = ColumnBuilder(is_system=self._table == paths.SYSTEM)
        self._count = 0

    def add(self, piece: FileRows, raw: FileRows) -> Any:
        """Append the rows of a file: `piece` with the events that began in earlier files, `raw` without them.

        Returns:
            The columns of the row group that this file has completed before its own rows; None if it has not.
        """
        item = piece.item
        complete = None
        if self._count and (self._count >= GROUP_ROWS or item.rank != self._rank):
            complete = self.flush()
        self._rank = item.rank
        ends, begins = raw.loose_ends, raw.open_events
        self._header.files.append(
            SourceFile(
                item.info.key, item.info.size, item.info.etag, item.info.mtime, item.at_us, item.start_us, self._group,
                piece.count, piece.count - raw.count, (raw.outcome.status, raw.outcome.lost, raw.outcome.reason),
                msgspec.Raw(msgspec.json.encode(raw.metadata)), tuple((end.key, end.end_us, end.args) for end in ends),
                tuple((event.key, event.head, event.start_us, event.args) for event in begins),
            )
        )  # fmt: skip
        self._builder.add(piece)
        self._count += piece.count
        return complete

    def flush(self) -> Any:
        """Complete the row group and return its columns; None if it has no rows."""
        if not self._count:
            return None
        columns = self._builder.columns()
        self._writer.write(to_batch(columns, self._table))
        self._group += 1
        self._start()
        return columns

    def finish(self) -> bytes:
        """Return the file; call `flush` before."""
        return self._writer.finish(self._header)


class DerivedTables:
    """Steps and stacks of one part."""

    def __init__(self) -> None:
        self._steps = StepFold()
        self._samples: list[dict[str, Any]] = []
        self._count = 0

    def add(self, events: Any) -> None:
        """Add whole files, if there are any with events."""
        if not isinstance(events, EventColumns):
            return
        self._count += 1
        own = events[events.kind.mask(layout.PYTHON_TIMELINE)]
        self._steps.update(_Window(self._count, own))
        self._samples.extend(_stacks(own))

    def tables(self) -> Iterator[tuple[str, dict[str, Any]]]:
        found = [(name, rows) for name, rows in each_process(self._steps.result()) if len(rows)]
        if found:
            together = [rows for _, rows in found]
            modes = [MODES[mode] for rows in together for mode in rows.mode]
            columns = {
                "process": [name for name, rows in found for _ in range(len(rows))],
                "mode": modes,
                "step": np.concatenate([rows.number for rows in together]),
                "start_us": np.concatenate([rows.start for rows in together]),
                "duration_us": np.concatenate([rows.duration for rows in together]),
            }
            for part in ("wait", "forward", "backward", "optimizer", "declared", GC):
                columns[f"{part}_us"] = np.concatenate([rows.parts[:, column(part)] for rows in together])
            yield paths.STEPS, columns
        if self._samples:
            names = SCHEMAS[paths.SAMPLES].names
            yield paths.SAMPLES, {name: [sample[name] for sample in self._samples] for name in names}


def _stacks(events: EventColumns) -> Iterator[dict[str, Any]]:
    rows = events[events.phase.mask(SAMPLES)]
    for node, start_us, code in zip(rows.node.codes, rows.start_us, rows.args.codes, strict=True):
        for stack in decode_stacks(rows.args.values[code]):
            yield {
                "process": rows.node.values[node],
                "start_us": float(start_us),
                "phase": stack.phase,
                "long_step": stack.long,
                "stack": ";".join(f"{place.function} ({place.file}:{place.line})" for place in stack.places),
                "library": stack.leaf,
                "seconds": stack.microseconds / 1e6,
                "samples": stack.count,
            }


@attrs.define
class Compacted:
    """Account of a compaction.

    Attributes:
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

    def add(self, other: Compacted) -> None:
        for name in ("files", "rows", "read_bytes", "parts", "written_bytes", "unchanged", "left"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def save(self, storage: Storage, part: PartKey, data: bytes) -> None:
        storage.write(part.key, data)
        self.parts += 1
        self.written_bytes += len(data)


class Rewriting:
    """The new content of one part."""

    def __init__(self, part: PartKey, held: Sequence[Item], existing: ParquetStorage, origin: str) -> None:
        """Begin with the files whose rows the part holds already.

        Args:
            held: these files.
            existing: the dataset, for their rows.
        """
        self._part, self._held, self._existing, self._origin = part, held, existing, origin
        self._new: dict[str, FileRows] = {}
        self.done = Compacted(part.job)

    def take(self, parsed: Iterator[Parsed], count: int, *, finished: bool, meter: Meter | None = None) -> None:
        """Add the next parsed files, as far as they can be used."""
        for _ in range(count):
            piece = FileRows.parsed(*next(parsed))
            if meter is not None:
                meter.add(megabytes(piece.item))
            settled = finished or time.time() - piece.item.info.mtime > SETTLED_S
            if not piece.rows or (piece.outcome.status != READ and not settled):
                self.done.left += 1
                continue
            self.done.files += 1
            self.done.rows += piece.count
            self.done.read_bytes += piece.item.info.size
            self._new[piece.item.info.key] = piece

    @property
    def _items(self) -> list[Item]:
        held = [item for item in self._held if item.info.key not in self._new]
        return sorted([*held, *(piece.item for piece in self._new.values())], key=in_part)

    def loose(self) -> Iterator[FileRows]:
        """Yield the files with the ends and begins of events that have no counterpart in them, without their rows."""
        for item in self._items:
            piece = self._new.get(item.info.key)
            if piece is None:
                yield from self._existing.pieces_without_rows([item])
            elif piece.loose_ends or piece.open_events:
                yield FileRows(item, piece.outcome, loose=loose_rows(item, piece.loose_ends, piece.open_events))

    def write(self, storage: Storage, streams: Streams) -> None:
        """Write the part and the tables that are computed from it.

        Args:
            storage: root of the dataset.
            streams: events that are open at the start of the part; afterwards, those at its end.
        """
        items = self._items
        if not items:
            return
        writer, derived = PartWriter(self._part.table, self._origin), DerivedTables()
        old = self._existing.pieces([item for item in items if item.info.key not in self._new])
        for item in items:
            raw = self._new.pop(item.info.key, None) or next(old)
            derived.add(writer.add(raw.joined(streams), raw))
        derived.add(writer.flush())
        for table, rows in derived.tables():
            made = TableWriter(table)
            made.write_rows(rows)
            self.done.save(storage, self._part.of(table), made.finish(Header(SCHEMA_VERSION, self._origin)))
        self.done.save(storage, self._part, writer.finish())  # last: it lists the files that are done


def in_time(part: PartKey) -> tuple[str, str, str]:
    """Return the place of a part among the others."""
    return part.hour, part.table, part.node


def in_part(item: Item) -> tuple[int, int, str]:
    """Return the place of a file in its part."""
    return item.rank, item.at_us, item.info.key


class PartTask(msgspec.Struct):
    """A part for a worker.

    Attributes:
        source, target: locations of the profile and of the dataset.
        origin: where the profile was recorded.
        new: files to read.
        held: files whose rows the part holds already.
        file: the part's Parquet file, if there is one.
        finished: the job has ended.
        opened: events that are open at the start of the part.
        is_known: these are all of them.
    """

    source: str
    target: str
    origin: str
    part: PartKey
    new: list[Item]
    held: list[Item]
    file: FileInfo | None
    finished: bool
    opened: list[Open]
    is_known: bool


class WrittenPart(msgspec.Struct):
    """Result of a part.

    Attributes:
        missed: nothing was written, as the begin of an event is missing.
        loose: files with ends and begins of events that have no counterpart in them, in their order.
    """

    done: Compacted
    missed: bool = False
    loose: list[tuple[Item, list[LooseEnd], list[OpenEvent]]] = []

    def pieces(self) -> Iterator[FileRows]:
        """Yield the files in `loose`, without rows."""
        for item, ends, begins in self.loose:
            rows = loose_rows(item, tuple(ends), tuple(begins))
            yield FileRows(item, Outcome(READ, 0, ""), loose=rows)


def spread(pool: Pool, tasks: Sequence[PartTask], meter: Meter) -> Iterator[tuple[PartKey, WrittenPart]]:
    """Have workers write parts; yield them as they are done.

    Raises:
        SourceError: one cannot be read or written, or the workers failed.
    """
    for number, answer in map_tasks(pool, rewrite_part, tasks, waiting=meter.draw):
        if not answer.missed:
            meter.add(len(tasks[number].new), answer.done.rows)
        yield tasks[number].part, answer


@Remote
def rewrite_part(task: PartTask) -> WrittenPart:
    storage = open_storage(task.target)
    existing = ParquetStorage(ListedStorage(storage, [task.file] if task.file else []), task.part.job)
    existing.load(footers=True)
    for key, reason in existing.unreadable.items():
        raise SourceError(f"{storage.uri}/{key}: {reason}")
    rewriting = Rewriting(task.part, task.held, existing, task.origin)
    parsed = parse_all(open_storage(task.source), task.new, processes=1)
    rewriting.take(parsed, len(task.new), finished=task.finished)
    found = list(rewriting.loose())
    loose = [(piece.item, list(piece.loose_ends), list(piece.open_events)) for piece in found]
    if not task.is_known and _misses(found):
        return WrittenPart(rewriting.done, missed=True, loose=loose)
    streams = Streams()
    for opened in task.opened:
        streams.push(*opened)
    rewriting.write(storage, streams)
    return WrittenPart(rewriting.done, loose=loose)


def _misses(pieces: Iterable[FileRows]) -> bool:
    """Return whether an event ends in these files that does not begin in them."""
    streams = Streams()
    for piece in pieces:
        piece.joined(streams)
    return streams.failed


def compact(source: ProfileSource, storage: Storage, *, job: str, executor: str | Executor | None = None) -> Compacted:
    """Write a profile as Parquet, or add what is new to it.

    A file that is in Parquet already and no longer in the profile stays in Parquet. Of a job in the dataset itself, only the
    list of files is written, if it is not there or of another version.

    Args:
        storage: root of the dataset.
        job: the job's name in the dataset.
        executor: have the workers of an executor read the files and write the dataset, as in `report.build_report`. The
            dataset has the same bytes.

    Raises:
        SourceError: the profile cannot be read, or is in another dataset already, or the dataset cannot be written or holds
            another job of this name.
    """
    if isinstance(source.storage, ParquetStorage) and place_of(source) != (shared_location(storage), job):
        raise SourceError(f"{source.uri} is in Parquet already: copy its files, and compact the copy into itself")
    compaction = _Compaction(source, storage, job)
    if executor is None:
        return compaction.run()
    with open_pool(executor) as pool:
        return compaction.run(pool)


class _Compaction:
    def __init__(self, source: ProfileSource, storage: Storage, job: str) -> None:
        self._source, self._storage = source, storage
        self._existing = ParquetStorage(storage, job)
        self._existing.load(footers=True)
        if self._existing.unreadable:
            key, reason = next(iter(self._existing.unreadable.items()))
            raise SourceError(f"{storage.uri}/{key}: {reason}; delete it, and compact again")
        self._held: dict[PartKey, dict[str, Item]] = {}
        for item in ProfileSource(self._existing).files:
            place = self._existing.place(item)
            if place is not None:
                self._held.setdefault(place.part.part, {})[item.info.key] = item
        self._refuse_another_job()
        self._streams = Streams()
        self.done = Compacted(job)

    def _refuse_another_job(self) -> None:
        """Raise an error if the dataset's job is another one of this name; a copy or move of a profile shares files with it."""
        sizes = {key: item.info.size for items in self._held.values() for key, item in items.items()}
        is_moved = any(sizes.get(item.info.key) == item.info.size for item in self._source.files)
        if sizes and not is_moved and self._existing.origin != self._source.origin:
            raise SourceError(
                f"{self._existing.uri} holds another job, of {self._existing.origin}: give this job another name with --job"
            )

    def run(self, pool: Pool | None = None) -> Compacted:
        changed: dict[PartKey, list[Item]] = {}
        for item in self._source.files:
            if self._existing.place(item) is not None:
                self.done.unchanged += 1
                continue
            changed.setdefault(PartKey.for_item(item, self.done.job), []).append(item)
            for part, held in self._held.items():
                if held.pop(item.info.key, None):  # another version of the file
                    changed.setdefault(part, [])
        for items in changed.values():
            items.sort(key=in_part)
        if pool is None:
            self._write_here(changed)
        else:
            self._write_there(changed, pool)
        self._write_files()
        self._write_list()
        return self.done

    def _write_here(self, changed: Mapping[PartKey, Sequence[Item]]) -> None:
        fresh = [item for part in sorted(changed, key=in_time) for item in changed[part]]
        parsed = parse_all(self._source.storage, fresh, processes=self._source.options.processes)
        with closing(parsed), reading_meter(fresh, show=self._source.options.progress) as meter:
            for part in sorted({*changed, *self._held}, key=in_time):
                if part not in changed:
                    self._replay(part)
                    continue
                held = list(self._held.get(part, {}).values())
                rewriting = Rewriting(part, held, self._existing, self._source.origin)
                rewriting.take(parsed, len(changed[part]), finished=self._source.finished, meter=meter)
                rewriting.write(self._storage, self._streams)
                self.done.add(rewriting.done)

    def _write_there(self, changed: Mapping[PartKey, Sequence[Item]], pool: Pool) -> None:
        """Have workers write the parts.

        The first time, a worker has none of the events that are open at the start of its part. If one is missing, it writes nothing,
        and a second task writes the part with the events that are open once those before it are known.
        """
        source, target = place_of(self._source)[0], shared_location(self._storage)
        files = self._existing.parts

        def task(part: PartKey, opened: list[Open], *, is_known: bool) -> PartTask:
            held = list(self._held.get(part, {}).values())
            return PartTask(
                source, target, self._source.origin, part, list(changed[part]), held,
                files.get(part) if held else None, self._source.finished, opened, is_known,
            )  # fmt: skip

        show = self._source.options.progress
        with Meter(sum(map(len, changed.values())), pool.workers, show=show) as meter:
            tasks = [task(part, [], is_known=False) for part in sorted(changed, key=in_time)]
            answers = dict(spread(pool, tasks, meter))
            again = [task(part, opened, is_known=True) for part, opened in self._missed(answers)]
            answers.update(spread(pool, again, meter))
        for answer in answers.values():
            self.done.add(answer.done)

    def _missed(self, answers: Mapping[PartKey, WrittenPart]) -> Iterator[tuple[PartKey, list[Open]]]:
        """Yield the parts that were not written as here, each with the events that are open at its start."""
        for part in sorted({*answers, *self._held}, key=in_time):
            if part not in answers:
                self._replay(part)
                continue
            opened = list(self._streams.left()) if answers[part].loose else []
            self._streams.failed = False
            for piece in answers[part].pieces():
                piece.joined(self._streams)
            if answers[part].missed or self._streams.failed:
                own = {(item.node, item.kind) for item, _, _ in answers[part].loose}
                yield part, [event for event in opened if event[:2] in own]

    def _replay(self, part: PartKey) -> None:
        """Follow the events that are open at the end of a part's files, for the parts after it."""
        held = self._held[part]
        for piece in self._existing.pieces_without_rows(sorted(held.values(), key=in_part)):
            piece.joined(self._streams)

    def _write_list(self) -> None:
        contents = ParquetStorage(self._storage, self.done.job).new_contents()
        if contents is not None:
            self._storage.write(paths.contents_of(self.done.job), contents)
            self.done.written_bytes += len(contents)

    def _write_files(self) -> None:
        """Write the files that are kept as they are: statistics, metadata, end markers."""
        raw = [item.info for item in self._source.files.detailed]
        listed = {info.key: info for info in (*self._source.beside, *raw)}
        held = self._existing.others
        part = PartKey(paths.FILES, self.done.job)
        if part in self._existing.parts and all(held.get(key) == info for key, info in listed.items()):
            return
        made = TableWriter(paths.FILES)
        changed = {key: info for key, info in listed.items() if held.get(key) != info}
        self._add_files(made, self._existing, [info for key, info in held.items() if key not in changed])
        self._add_files(made, self._source.storage, list(changed.values()))
        self.done.save(self._storage, part, made.finish(Header(SCHEMA_VERSION, self._source.origin)))

    def _add_files(self, made: TableWriter, storage: Storage, infos: Sequence[FileInfo]) -> None:
        """Add files, one to a row group, so that each can be read without the others."""
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


def athena_ddl(location: str, *, database: str = DATABASE) -> str:
    """Return the statements for a dataset.

    The last statement of each table adds its partitions: repeat it after new jobs or hours.

    Args:
        location: s3:// URI of the dataset.
    """
    quoted = location.rstrip("/").replace("'", "\\'")
    statements = [f"CREATE DATABASE IF NOT EXISTS {database};"]
    for table, schema in SCHEMAS.items():
        columns = ",\n".join(f"  `{field.name}` {_TYPES[field.type]}" for field in schema)
        keys = ["job string"] if table == paths.FILES else ["job string", "node string", "hour string"]
        statements.append(
            f"CREATE EXTERNAL TABLE IF NOT EXISTS {database}.{table} (\n{columns}\n)\n"
            f"PARTITIONED BY ({', '.join(keys)})\nSTORED AS PARQUET\nLOCATION '{quoted}/{table}/';"
        )
        statements.append(f"MSCK REPAIR TABLE {database}.{table};")
    return "\n\n".join(statements) + "\n"
