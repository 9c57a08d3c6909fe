"""What one file gave, parsed just now or copied earlier, and several of them as one table."""

from __future__ import annotations

from typing import Any

import attrs

from sm_profiler.formats.assemble import event_columns, system_columns
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.formats.outcome import Outcome
from sm_profiler.formats.system_reader import SystemRows
from sm_profiler.formats.trace_rows import TraceRows
from sm_profiler.source.cache import Copy, Reading
from sm_profiler.source.catalog import Item
from sm_profiler.source.streams import Streams
from sm_profiler.source.wire import Rows


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

    def joined(self, streams: Streams) -> Piece:
        """The piece with the events that began in earlier files; a copy has them already."""
        if not self.rows or not isinstance(self.rows[0], TraceRows):
            return self
        rows, outcome = streams.take(self.rows[0], self.outcome)
        return attrs.evolve(self, rows=tuple(rows), outcome=outcome)


class Gathered:
    """Pieces in their order, to become one table."""

    def __init__(self, *, is_system: bool) -> None:
        self._is_system = is_system
        self._tables: list[Any] = []
        self._rows: list[Any] = []
        self._span: tuple[Copy, int, int] | None = None

    def __bool__(self) -> bool:
        return bool(self._tables or self._rows or self._span)

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
            self._rows.extend(piece.rows)

    def columns(self) -> Any:
        """All rows; where they are one stretch of a copy nothing is copied again."""
        self._close_span()
        self._close_rows()
        kind: Any = SystemColumns if self._is_system else EventColumns
        return kind.concat(self._tables)

    def _close_rows(self) -> None:
        if self._rows:
            whole: list[SystemRows | TraceRows] = self._rows
            assemble: Any = system_columns if self._is_system else event_columns
            self._tables.append(assemble(whole))
            self._rows = []

    def _close_span(self) -> None:
        if self._span:
            copy, start, stop = self._span
            everything = start == 0 and stop == len(copy.columns)
            self._tables.append(copy.columns if everything else copy.columns[start:stop])
            self._span = None
