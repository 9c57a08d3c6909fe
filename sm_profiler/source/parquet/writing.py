"""Parquet files: rows to bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sm_profiler.source.column_builder import ColumnBuilder, FileRows
from sm_profiler.source.parquet import header as headers
from sm_profiler.source.parquet import paths, schema
from sm_profiler.source.parquet.header import Header, SourceFile

GROUP_ROWS = 1 << 16  # what a reader holds of each node and timeline
_LEVEL = 6  # of zstd


class TableWriter:
    """A Parquet file in memory."""

    def __init__(self, table: str) -> None:
        self._out = io.BytesIO()
        self._writer = pq.ParquetWriter(
            self._out, schema.SCHEMAS[table], version="1.0", compression="zstd", compression_level=_LEVEL,
            use_dictionary=[
                field.name for field in schema.SCHEMAS[table] if field.type not in {pa.float64(), pa.binary()}
            ],
            write_statistics=[field.name for field in schema.SCHEMAS[table] if field.name not in {"args", "data"}],
            write_page_checksum=True, store_schema=False,
        )  # fmt: skip
        self._table = table
        self.rows = 0

    def write(self, batch: Any) -> None:
        """Append an Arrow table as a row group."""
        self.rows += len(batch)
        self._writer.write_table(batch.cast(schema.SCHEMAS[self._table]), row_group_size=max(len(batch), 1))

    def write_rows(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Append columns of Python values or numpy arrays as a row group."""
        fields = schema.SCHEMAS[self._table]
        self.write(pa.table([pa.array(columns[field.name], field.type) for field in fields], fields))

    def finish(self, header: Header) -> bytes:
        """Return the file."""
        self._writer.add_key_value_metadata({headers.KEY.decode(): headers.encode(header).decode()})
        self._writer.close()
        return self._out.getvalue()


class PartWriter:
    """The rows of one part, file by file."""

    def __init__(self, table: str, origin: str) -> None:
        self._table = table
        self._header = Header(headers.VERSION, origin)
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
        self._writer.write(schema.to_batch(columns, self._table))
        self._group += 1
        self._start()
        return columns

    def finish(self) -> bytes:
        """Return the file; call `flush` before."""
        return self._writer.finish(self._header)
