"""Contents of a profile in Parquet: the rows of each Parquet file, by row group, and the list of all files that they came from.

The list is written by `compact`, so that no footer need be read for it.

It is used while the Parquet files have the names, sizes and ETags that they had. Otherwise their footers are read.
"""

from __future__ import annotations

import hashlib
import io
import threading
import zlib
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any

import attrs
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sm_profiler.errors import SourceError
from sm_profiler.formats import layout
from sm_profiler.formats.bounds import MAX_FOOTER_OBJECTS, Group, check_elements, groups_of, inflate, unpacked_size
from sm_profiler.formats.layout import SystemFile, TraceFile
from sm_profiler.source.item_table import ItemColumns, ItemTable
from sm_profiler.source.parquet import schema
from sm_profiler.source.parquet.paths import FILES, PartKey
from sm_profiler.source.parquet.schema import KEY, SCHEMA_VERSION, Header, check_mtime, decode_header
from sm_profiler.storage import FileInfo, Storage

_TAIL_BYTES = 64 << 10  # a footer is often smaller
_END_BYTES = 8  # after a footer: its length, and a mark
FREE_ROWS = 1 << 18  # of a row group, and one more for each of its bytes: `compact` writes 65,536 and what a file has
FREE_GROUP_BYTES, MAX_GROUP_TIMES = 16 << 20, 32  # of a row group, unpacked: so much, and so many times its bytes
MAX_KEPT_BYTES = 65 << 20  # of a file that is kept as it is, in a row group, unpacked
DAMAGE = (pa.ArrowException, ValueError, TypeError, KeyError, OSError, OverflowError, EOFError)

VERSION = 1  # of this format
FREE_BYTES, MAX_TIMES = 1 << 20, 16  # unpacked: so much, and so many times what is stored
FREE_ELEMENTS, BYTES_AN_ELEMENT = 1 << 14, 4  # names, and files without rows, in relation to what is stored


class RangeFile(io.RawIOBase):
    """A file of a storage that is fetched in ranges; Arrow reads a column at a time, which would be one request each."""

    def __init__(self, storage: Storage, info: FileInfo) -> None:
        super().__init__()
        self._storage, self._info = storage, info
        self._at = self._start = 0
        self._held = b""
        self._groups: list[Group] = []

    def groups(self) -> list[Group]:
        """Return the row groups, by the footer.

        Raises:
            ValueError: it is damaged.
        """
        if not self._groups:
            size = self._info.size
            self.hold(size - _END_BYTES, size)
            length = int.from_bytes(self.held(size - _END_BYTES, size)[:4], "little")
            start = max(size - _END_BYTES - length, 0)
            self.hold(start, size)
            self._groups = groups_of(self.held(start, size))
        return self._groups

    def hold(self, start: int, end: int) -> None:
        """Fetch a range that the next reads lie in."""
        start, end = max(start, 0), min(end, self._info.size)
        if self._start <= start and end <= self._start + len(self._held):
            return
        self._held, self._start = self._storage.read(self._info.key, start, end), start

    def held(self, start: int, end: int) -> memoryview:
        return memoryview(self._held)[start - self._start : end - self._start]

    def forget(self) -> None:
        """Free the range: files of all nodes are open at the same time."""
        self._held = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._info.size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = self._info.size if size is None or size < 0 else min(self._at + size, self._info.size)
        if not self._start <= self._at <= end <= self._start + len(self._held):
            self.hold(self._at, end)
        found = self._held[self._at - self._start : end - self._start]
        self._at += len(found)
        return found


@attrs.define(eq=False)
class PartFile:
    """A Parquet file.

    Attributes:
        part: whose rows it holds.
        packed_header: the footer's account of the files that its rows come from, which a long job has a hundred thousand of.
        count: number of its rows.
    """

    storage: Storage
    part: PartKey
    info: FileInfo
    packed_header: bytes
    count: int
    _open: tuple[RangeFile, Any] | None = None

    @classmethod
    def open(cls, storage: Storage, part: PartKey, info: FileInfo) -> PartFile:
        """Read the footer.

        Raises:
            SourceError: it cannot be fetched, or a newer version wrote it.
            ValueError: it is damaged.
        """
        _, file = _opened(storage, info)
        try:
            packed = (file.metadata.metadata or {})[KEY]
            header = decode_header(packed)
        except KeyError:
            raise ValueError("not written by sm-profiler compact") from None
        except SourceError as error:
            raise SourceError(f"{info.key}: {error}") from None
        counts = [0] * file.metadata.num_row_groups
        for each in header.files:
            if (
                each.rows < 0
                or not 0 <= each.joined <= each.rows
                or not (each.rows == 0 or 0 <= each.group < len(counts))
            ):
                raise ValueError("its files are not those of its rows")
            if each.rows:
                counts[each.group] += each.rows
        if header.files and counts != [file.metadata.row_group(group).num_rows for group in range(len(counts))]:
            raise ValueError("its files are not those of its rows")
        return cls(storage, part, info, packed, sum(counts))

    @property
    def header(self) -> Header:
        """The footer's account of the files that its rows come from."""
        return decode_header(self.packed_header)

    def columns(self, group: int) -> Any:
        """Return the rows of a row group as columns.

        Raises:
            ValueError: they are damaged.
            SourceError: they cannot be fetched.
        """
        try:
            if self._open is None:
                self._open = _opened(self.storage, self.info)
            source, file = self._open
            table = self.part.table
            names = [field.name for field in schema.SCHEMAS[table]]
            self._check(file, source, group, names)
            with _from_system:
                return schema.from_batch(file.read_row_group(group, columns=names, use_threads=False), table)
        except SourceError:
            raise
        except DAMAGE as error:
            raise ValueError(_damage(error)) from error
        finally:
            if self._open is not None:
                self._open[0].forget()

    def _check(self, file: Any, source: RangeFile, group: int, names: list[str]) -> None:
        """Fetch columns of a row group, unless they are more than `compact` writes for as many bytes.

        Raises:
            ValueError: they are.
        """
        described = source.groups()[group]
        if [field.name for field in file.schema_arrow] != [field.name for field in schema.SCHEMAS[self.part.table]]:
            raise ValueError(f"its columns are not those of {self.part.table}")
        spans = [span for name, span in described.columns if name.decode() in names]
        begin, end = min(spans)[0], max(end for _, end in spans)
        size = sum(end - begin for begin, end in spans)
        if begin < 0 or end > self.info.size or min(end - begin for begin, end in spans) < 0 or size > end - begin:
            raise ValueError("its columns are not where its footer puts them")
        source.hold(begin, end)
        is_raw = self.part.table == FILES
        rows = described.rows
        held = source.held(begin, end)
        unpacked = sum(unpacked_size(held[at - begin : to - begin], rows) for at, to in spans)
        most = MAX_KEPT_BYTES if is_raw else FREE_GROUP_BYTES + MAX_GROUP_TIMES * size
        if unpacked > most or rows > (1 if is_raw else FREE_ROWS + size):
            raise ValueError("a row group has more than sm-profiler writes for as many bytes")

    def rows(self, *columns: str, only: int | None = None) -> list[dict[str, Any]]:
        """Return rows of the table of files as dictionaries.

        Args:
            columns: the columns; "group" is the number of the row group.
            only: the row group; default: all.

        Raises:
            ValueError: they are damaged.
        """
        wanted = [name for name in columns if name != "group"]
        try:
            source, file = _opened(self.storage, self.info)
            groups = range(file.metadata.num_row_groups) if only is None else [only]
            found: list[dict[str, Any]] = []
            for group in groups:
                self._check(file, source, group, wanted)
                read = file.read_row_group(group, columns=wanted, use_threads=False).to_pylist()
                found += [{**row, "group": group} for row in read]
        except SourceError:
            raise
        except DAMAGE as error:
            raise ValueError(_damage(error)) from error
        return found

    def close(self) -> None:
        self._open = None


class _SystemPool:
    """Has Arrow allocate from the C library while any thread is in it: its own allocator keeps what is freed.

    The pool is the whole process's, so the last thread that leaves puts back what the first one found.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = pa.default_memory_pool()
                pa.set_memory_pool(pa.system_memory_pool())
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                pa.set_memory_pool(self._before)


_from_system = _SystemPool()


def _damage(error: Exception) -> str:
    if isinstance(error, KeyError) and error.args:  # of Arrow, with the name in bytes
        name = error.args[0]
        return f"damaged: it has no column {name.decode(errors='replace') if isinstance(name, bytes) else name}"
    return f"damaged: {' '.join(str(error).split())[:200]}"


def _opened(storage: Storage, info: FileInfo) -> tuple[RangeFile, Any]:
    """Open a Parquet file.

    Raises:
        ValueError: it is damaged.
        SourceError: it cannot be fetched.
    """
    source = RangeFile(storage, info)
    source.hold(info.size - _TAIL_BYTES, info.size)
    part = PartKey.parse(info.key)
    texts = schema.texts_of(part.table) if part and part.table in schema.KINDS else []
    try:
        with _from_system:
            file = pq.ParquetFile(
                pa.PythonFile(source, "r"),
                read_dictionary=texts,
                page_checksum_verification=True,
                pre_buffer=False,
                thrift_container_size_limit=MAX_FOOTER_OBJECTS,
            )
    except SourceError:
        raise
    except DAMAGE as error:
        raise ValueError(_damage(error)) from error
    return source, file


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
        """Return the contents of a profile; its files are sorted into `items` and `beside`."""
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
            unpacked = inflate(stored.packed, FREE_BYTES + MAX_TIMES * size)
            check_elements(unpacked, FREE_ELEMENTS + size // BYTES_AN_ELEMENT)
            body = _BODY.decode(unpacked)
            beside, items = {info[0]: FileInfo(*info) for info in body.beside}, ItemTable.of_columns(body.items)
            for mtime in (*(info.mtime for info in beside.values()), *_ends(items.column("mtime"))):
                check_mtime(mtime)
            return cls(parts, body.origin, body.rows, items, beside, body.odd)
        except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError):
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


def _ends(values: Any) -> tuple[float, ...]:
    return (float(values.min()), float(values.max())) if len(values) else ()


def digest_of(parts: Iterable[FileInfo]) -> str:
    """Return a digest of names, sizes and ETags of Parquet files."""
    return hashlib.sha256(msgspec.json.encode(sorted((info.key, info.size, info.etag) for info in parts))).hexdigest()
