"""The list of files of a profile, which `compact` keeps beside the Parquet files: no footer need be read for it.

It is used while the Parquet files have the names, sizes and ETags that they had. Otherwise their footers are read.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator

import attrs
import msgspec

from sm_profiler.formats import layout
from sm_profiler.formats.elements import check_elements
from sm_profiler.formats.layout import SystemFile, TraceFile
from sm_profiler.source.item import item_of
from sm_profiler.source.item_table import ItemColumns, ItemTable
from sm_profiler.source.parquet import header as headers
from sm_profiler.storage import FileInfo

VERSION = 1  # of this format
FREE_BYTES, MAX_TIMES = 1 << 20, 16  # unpacked: so much, and so many times what is stored
FREE_ELEMENTS, BYTES_AN_ELEMENT = 1 << 14, 4  # names, and files beside the tables, in relation to what is stored


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
            infos: all of its files.
            odd: see there.
        """
        items, beside = ItemTable(), dict[str, FileInfo]()
        for info in infos:
            parsed = layout.parse_path(info.key)
            if isinstance(parsed, (SystemFile, TraceFile)) and info.key not in odd:
                items.put(item_of(info, parsed))
            else:
                beside[info.key] = info
        beside |= {item.info.key: item.info for item in items.unpacked()}
        return cls(parts, origin, rows, items, beside, odd)

    @classmethod
    def decode(cls, data: bytes, parts: str) -> Contents | None:
        """Return contents; None if the bytes are not those of these Parquet files."""
        try:
            stored = _STORED.decode(data)
            if (stored.versions, stored.parts) != ((VERSION, headers.VERSION), parts):
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
        """Return them as bytes."""
        beside = [(info.key, info.size, info.mtime, info.etag) for info in self.beside.values()]
        body = _Body(self.origin, self.rows, self.items.columns(), beside, self.odd)
        packed = zlib.compress(msgspec.msgpack.encode(body))
        return msgspec.msgpack.encode(_Stored((VERSION, headers.VERSION), self.parts, packed))

    def beside_in(self, prefix: str) -> Iterator[FileInfo]:
        """Yield the files of `beside` whose key begins with `prefix`, by key."""
        return (self.beside[key] for key in sorted(self.beside) if key.startswith(prefix))

    def list(self, prefix: str, after: str) -> Iterator[FileInfo]:
        """Yield the files whose key begins with `prefix` and follows `after`, by key."""
        found = [*self.items.infos(prefix, after), *self.beside.values()]
        yield from sorted((one for one in found if one.key.startswith(prefix) and one.key > after), key=_key)


def digest_of(parts: Iterable[FileInfo]) -> str:
    """Return a digest of names, sizes and ETags of Parquet files."""
    return hashlib.sha256(msgspec.json.encode(sorted((info.key, info.size, info.etag) for info in parts))).hexdigest()


def _key(info: FileInfo) -> str:
    return info.key
