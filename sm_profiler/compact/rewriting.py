"""One part of a dataset written again: the rows that it holds, and those of new files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from sm_profiler.formats import layout
from sm_profiler.formats.columns import EventColumns
from sm_profiler.formats.event_names import SAMPLES
from sm_profiler.formats.outcome import READ
from sm_profiler.metrics.sample_fold import decode_stacks
from sm_profiler.metrics.step_fold import GC, MODES, StepFold, column, each_process
from sm_profiler.source.column_builder import FileRows
from sm_profiler.source.item_table import Item
from sm_profiler.source.parquet import header as headers
from sm_profiler.source.parquet import paths
from sm_profiler.source.parquet.contents import PartWriter, TableWriter
from sm_profiler.source.parquet.header import Header
from sm_profiler.source.parquet.paths import Part
from sm_profiler.source.parquet.schema import SCHEMAS
from sm_profiler.source.parquet.storage import ParquetStorage, loose_rows
from sm_profiler.source.parse import Parsed
from sm_profiler.source.profile import SETTLED_S
from sm_profiler.source.streams import Streams
from sm_profiler.storage import Storage


@attrs.frozen(eq=False)
class _Window:
    """Events as the folds read them."""

    start_us: int
    new_events: EventColumns


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
        """Yield each table that has rows, as columns."""
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
            yield paths.SAMPLES, {name: [one[name] for one in self._samples] for name in names}


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

    def add(self, other: Compacted) -> None:
        """Add the counts of a part."""
        for name in ("files", "rows", "read_bytes", "parts", "written_bytes", "unchanged", "left"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def save(self, storage: Storage, part: Part, data: bytes) -> None:
        """Write and count a Parquet file."""
        storage.write(part.key, data)
        self.parts += 1
        self.written_bytes += len(data)


class Rewriting:
    """The new content of one part.

    Attributes:
        done: account of it.
    """

    def __init__(self, part: Part, held: Sequence[Item], existing: ParquetStorage, origin: str) -> None:
        """Begin with the files whose rows the part holds already.

        Args:
            part: the part.
            held: these files.
            existing: the dataset, for their rows.
            origin: location of the profile.
        """
        self._part, self._held, self._existing, self._origin = part, held, existing, origin
        self._new: dict[str, FileRows] = {}
        self.done = Compacted(part.job)

    def take(
        self, parsed: Iterator[Parsed], count: int, *, finished: bool, advance: Callable[[Item], object] = bool
    ) -> None:
        """Add the next parsed files, as far as they can be used."""
        for _ in range(count):
            piece = FileRows.parsed(*next(parsed))
            advance(piece.item)
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
            self.done.save(storage, self._part.of(table), made.finish(Header(headers.VERSION, self._origin)))
        self.done.save(storage, self._part, writer.finish())  # last: it lists the files that are done


def in_time(part: Part) -> tuple[str, str, str]:
    """Return the place of a part among the others."""
    return part.hour, part.table, part.node


def in_part(item: Item) -> tuple[int, int, str]:
    """Return the place of a file in its part."""
    return item.rank, item.at_us, item.info.key
