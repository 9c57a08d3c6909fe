"""What one file gave, parsed just now or copied earlier, and several of them as one table."""

from __future__ import annotations

from typing import Any

import attrs

from sm_profiler.formats.assemble import EventAssembly, SystemAssembly
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.formats.outcome import Outcome
from sm_profiler.formats.system_reader import SystemRows
from sm_profiler.formats.trace_rows import TraceRows
from sm_profiler.source.cache import Copy, Reading
from sm_profiler.source.catalog import Item
from sm_profiler.source.streams import Streams
from sm_profiler.source.wire import Rows

_TOGETHER = 1 << 16  # so many rows are put into the table together


@attrs.frozen(eq=False)
class Piece:
    """The rows of one file.

    Attributes:
        item: the file.
        outcome: what became of it.
        metadata: our own records in it.
        rows: its rows as they were parsed; none for a piece of a copy.
        copy, start, stop: for a piece of a copy, where in it the rows are.
    """

    item: Item
    outcome: Outcome
    metadata: tuple[dict[str, Any], ...] = ()
    rows: tuple[Rows, ...] = ()
    copy: Copy | None = None
    start: int = 0
    stop: int = 0

    @classmethod
    def parsed(cls, item: Item, rows: Rows | None, outcome: Outcome) -> Piece:
        """A piece parsed just now."""
        metadata = rows.metadata if isinstance(rows, TraceRows) else ()
        return cls(item, outcome, metadata, () if rows is None else (rows,))

    @classmethod
    def copied(cls, copy: Copy, reading: Reading, start: int) -> Piece:
        """A piece of a copy."""
        return cls(reading.item, reading.outcome, reading.metadata, (), copy, start, start + reading.rows)

    @property
    def count(self) -> int:
        """How many rows it has."""
        return self.stop - self.start + sum(len(rows.head) for rows in self.rows)

    @property
    def reading(self) -> Reading:
        """What became of the file, without its rows."""
        return Reading(self.item, self.count, self.outcome, self.metadata)

    def joined(self, streams: Streams) -> Piece:
        """The piece with the events that began in earlier files; a copy has them already."""
        if not self.rows or not isinstance(self.rows[0], TraceRows):
            return self
        rows, outcome = streams.take(self.rows[0], self.outcome)
        return attrs.evolve(self, rows=tuple(rows), outcome=outcome)


class Gathered:
    """Pieces in their order, to become one table."""

    def __init__(self, *, is_system: bool, size: int = 0) -> None:
        """`size`: how many bytes of files there will be; 0: unknown."""
        self._is_system = is_system
        self._size = size
        self._seen_bytes = self._seen_rows = 0
        self._tables: list[Any] = []
        self._waiting: list[SystemRows | TraceRows] = []
        self._waiting_rows = 0
        self._assembly: Any = None
        self._span: tuple[Copy, int, int] | None = None

    def __bool__(self) -> bool:
        return bool(self._tables or self._waiting or self._assembly or self._span)

    def add(self, piece: Piece) -> None:
        """Take the next piece."""
        if piece.copy is not None:
            self._close_rows()
            if self._span and self._span[0] is piece.copy and self._span[2] == piece.start:
                self._span = (piece.copy, self._span[1], piece.stop)
                return
            self._close_span()
            self._span = (piece.copy, piece.start, piece.stop)
        elif piece.rows:
            self._close_span()
            self._waiting.extend(piece.rows)
            self._waiting_rows += piece.count
            self._seen_rows += piece.count
            self._seen_bytes += piece.item.info.size
            if self._waiting_rows > _TOGETHER:
                self._assemble()

    def columns(self) -> Any:
        """All rows; where they are one stretch of a copy nothing is copied again."""
        self._close_span()
        self._close_rows()
        kind: Any = SystemColumns if self._is_system else EventColumns
        return kind.concat(self._tables)

    def _assemble(self) -> None:
        if self._assembly is None:
            probable = int(1.05 * self._seen_rows * self._size / self._seen_bytes) if self._seen_bytes else 0
            kind = SystemAssembly if self._is_system else EventAssembly
            self._assembly = kind(max(probable, self._waiting_rows))
        for rows in self._waiting:
            self._assembly.add(rows)
        self._waiting, self._waiting_rows = [], 0

    def _close_rows(self) -> None:
        if self._waiting:
            self._assemble()
        if self._assembly is not None:
            self._tables.append(self._assembly.columns())
            self._assembly = None

    def _close_span(self) -> None:
        if self._span:
            copy, start, stop = self._span
            everything = start == 0 and stop == len(copy.columns)
            self._tables.append(copy.columns if everything else copy.columns[start:stop])
            self._span = None
