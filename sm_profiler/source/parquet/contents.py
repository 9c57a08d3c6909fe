"""The list of files of a profile, which `compact` keeps with the Parquet files: no footer need be read for it.

It is used while the Parquet files have the names, sizes and ETags that they had. Otherwise their footers are read.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import attrs
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sm_profiler.formats import layout
from sm_profiler.formats.bounds import check_elements
from sm_profiler.formats.layout import SystemFile, TraceFile
from sm_profiler.source.column_builder import ColumnBuilder, FileRows
from sm_profiler.source.item_table import ItemColumns, ItemTable
from sm_profiler.source.parquet import paths, schema
from sm_profiler.source.parquet.schema import KEY, SCHEMA_VERSION, Header, SourceFile, encode_header
from sm_profiler.storage import FileInfo

GROUP_ROWS = 1 << 16  # what a reader holds of each node and timeline
_LEVEL = 6  # of zstd

VERSION = 1  # of this format
FREE_BYTES, MAX_TIMES = 1 << 20, 16  # unpacked: so much, and so many times what is stored
FREE_ELEMENTS, BYTES_AN_ELEMENT = 1 << 14, 4  # names, and files without rows, in relation to what is stored


class TableWriter:
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
        self.rows += len(batch)
        self._writer.write_table(batch.cast(schema.SCHEMAS[self._table]), row_group_size=max(len(batch), 1))

    def write_rows(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Append columns of Python values or numpy arrays as a row group."""
        fields = schema.SCHEMAS[self._table]
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
        self._writer.write(schema.to_batch(columns, self._table))
        self._group += 1
        self._start()
        return columns

    def finish(self) -> bytes:
        """Return the file; call `flush` before."""
        return self._writer.finish(self._header)


class _Stored(msgspec.Struct):
    """A list as it is stored.

    Attributes:
        versions: of this format and of the schema of the Parquet files.
        parts: digest of the Parquet files.
        packed: compressed _Body.
    """

    versions: tuple[int, int]
    parts: str
    packed: bytes


class _Body(msgspec.Struct):
    """The list: fields as in Contents; files as key, size, mtime and ETag."""

    origin: str
    rows: dict[str, int]
    items: ItemColumns
    beside: list[tuple[str, int, float, str]]
    odd: dict[str, str]


_STORED, _BODY = msgspec.msgpack.Decoder(_Stored), msgspec.msgpack.Decoder(_Body)


@attrs.frozen(eq=False)
class Contents:
    """The files of a profile in Parquet.

    Attributes:
        parts: digest of the Parquet files.
        origin: location of the profile that was compacted.
        rows: number of rows by table.
        items: the files with rows and standard names.
        beside: all others, by key.
        odd: those whose rows are in another part than that of their name → its key.
    """

    parts: str
    origin: str
    rows: dict[str, int]
    items: ItemTable
    beside: dict[str, FileInfo]
    odd: dict[str, str]

    @classmethod
    def of(
        cls, parts: str, origin: str, rows: dict[str, int], infos: Iterable[FileInfo], odd: dict[str, str]
    ) -> Contents:
        """Return the contents of a profile.

        Args:
            parts: see there, as the next two.
            origin: see there.
            rows: see there.
            odd: see there.
        """
        items, beside = ItemTable(), dict[str, FileInfo]()
        for info in infos:
            parsed = layout.parse_path(info.key)
            if isinstance(parsed, (SystemFile, TraceFile)) and info.key not in odd:
                items.add(info, parsed)
            else:
                beside[info.key] = info
        beside |= {item.info.key: item.info for item in items.objects}
        return cls(parts, origin, rows, items, beside, odd)

    @classmethod
    def decode(cls, data: bytes, parts: str) -> Contents | None:
        """Return contents; None if the bytes are not those of these Parquet files."""
        try:
            stored = _STORED.decode(data)
            if (stored.versions, stored.parts) != ((VERSION, SCHEMA_VERSION), parts):
                return None
            size = len(stored.packed)
            unpacked = zlib.decompressobj().decompress(stored.packed, FREE_BYTES + MAX_TIMES * size)
            check_elements(unpacked, FREE_ELEMENTS + size // BYTES_AN_ELEMENT)
            body = _BODY.decode(unpacked)
            beside = {info[0]: FileInfo(*info) for info in body.beside}
            return cls(parts, body.origin, body.rows, ItemTable.of_columns(body.items), beside, body.odd)
        except (zlib.error, msgspec.MsgspecError, ValueError, RecursionError, MemoryError):
            return None

    def encode(self) -> bytes:
        beside = [(info.key, info.size, info.mtime, info.etag) for info in self.beside.values()]
        body = _Body(self.origin, self.rows, self.items.columns(), beside, self.odd)
        packed = zlib.compress(msgspec.msgpack.encode(body))
        return msgspec.msgpack.encode(_Stored((VERSION, SCHEMA_VERSION), self.parts, packed))

    def beside_in(self, prefix: str) -> Iterator[FileInfo]:
        """Yield the files of `beside` whose key begins with `prefix`, by key."""
        return (self.beside[key] for key in sorted(self.beside) if key.startswith(prefix))

    def list(self, prefix: str, after: str) -> Iterator[FileInfo]:
        """Yield the files whose key begins with `prefix` and follows `after`, by key."""
        found = [*self.items.infos(prefix, after), *self.beside.values()]
        yield from sorted(
            (info for info in found if info.key.startswith(prefix) and info.key > after), key=attrgetter("key")
        )


def digest_of(parts: Iterable[FileInfo]) -> str:
    """Return a digest of names, sizes and ETags of Parquet files."""
    return hashlib.sha256(msgspec.json.encode(sorted((info.key, info.size, info.etag) for info in parts))).hexdigest()
