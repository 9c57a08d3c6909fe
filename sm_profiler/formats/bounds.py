"""Sizes of MessagePack, JSON and Parquet before they are unpacked: a byte can take 72 bytes as an object, or gigabytes."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from typing import Any

import attrs

COUNTED_BYTES = 1 << 20  # MessagePack of less than this cannot take much memory
FREE_ELEMENTS = 1 << 20  # of what other processes sent, and one more for each byte that arrived

_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # bytes of the length
_EXTENSIONS = {0xC7, 0xC8, 0xC9}  # with one byte more

MAX_FOOTER_OBJECTS = 1 << 17  # of a kind
FREE_ROWS = 1 << 18  # of a file, and one more for each of its bytes
FREE_BYTES, MAX_TIMES = 16 << 20, 64  # of a file, unpacked: so much, and so many times its bytes

_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 12
_INT16, _INT32, _INT64 = 4, 5, 6
_UNCOMPRESSED, _COMPRESSED = 2, 3  # fields of a page header
_PARTS = (5, 7, 8)  # its structs with the number of values, their field 1
_ENCODINGS = {5: 2, 8: 4}  # structs → their field with the encoding of the values
_SHARED_BEGINNINGS = 7  # DELTA_BYTE_ARRAY
_MAX_DEPTH = 12
_SCHEMA, _GROUPS, _CHUNKS, _ROWS, _CHUNK = 2, 4, 1, 3, 3  # fields of a footer, a row group and a column
_PATH, _SIZE, _DATA, _DICTIONARY = 3, 7, 9, 11  # fields of a column's metadata
_NAME, _CHILDREN = 4, 5  # fields of an element of the schema
_MAX_LEVELS = 64  # of columns in columns
_MAGIC = b"PAR1"
_SHORT = 15


def _sizes() -> list[int]:
    """Return the bytes of an element by its first byte, without its parts; 0: they vary, or there is no such element."""
    sizes = [1] * 256
    sizes[0xA0:0xC0] = range(1, 33)  # short texts
    for first in (0xC1, *range(0xC4, 0xCA), 0xD9, 0xDA, 0xDB):
        sizes[first] = 0
    sizes[0xCA:0xD4] = 5, 9, 2, 3, 5, 9, 2, 3, 5, 9
    sizes[0xD4:0xD9] = 3, 4, 6, 10, 18
    sizes[0xDC:0xE0] = 3, 5, 3, 5
    return sizes


_SIZES = _sizes()


def inflate(data: bytes, most: int) -> bytes:
    """Return what zlib compressed.

    Raises:
        ValueError: it is damaged, cut off, or larger than `most` bytes.
    """
    unpack = zlib.decompressobj()
    try:
        found = unpack.decompress(data, most)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not unpack.eof:
        raise ValueError("cut off, or larger than what sm-profiler writes")
    return found


def check_elements(data: bytes | memoryview, most: int) -> None:
    """Raise an error if MessagePack has more elements than this; it may be damaged in other ways.

    Raises:
        ValueError: it has.
    """
    at = count = 0
    end = len(data)
    while at < end:
        first = data[at]
        size = _SIZES[first]
        if size:
            at += size
        else:
            begin = at + 1
            at = begin + _LENGTHS.get(first, 0)
            at += int.from_bytes(data[begin:at], "big") + (first in _EXTENSIONS)
        count += 1
        if count > most:
            raise ValueError("too many elements")


def check_json(text: bytes | bytearray, most: int) -> None:
    """Raise an error if JSON may have more elements than this; brackets and commas in texts count, too.

    Raises:
        ValueError: it may.
    """
    if sum(map(text.count, (b",", b"{", b"["))) > most:
        raise ValueError("too many elements")


class _Int32(int):
    """A number that is stored as one of 32 bits: Arrow skips a field whose number is not as wide as it should be."""


class _Structs:
    """Reads structs from bytes, as far as pages and footers need them."""

    def __init__(self, data: memoryview, at: int) -> None:
        self.data, self.at = data, at

    def _varint(self) -> int:
        value = shift = 0
        while shift < 70:  # ten bytes of seven bits
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:  # the last byte
                return value
            shift += 7
        raise ValueError("a page's header is damaged")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > _MAX_DEPTH:
            raise ValueError("a page's header is damaged")
        found: dict[int, Any] = {}
        number = 0
        while True:
            head = self.data[self.at]
            self.at += 1
            kind = head & 15
            if kind == _STOP:
                return found
            number = number + (head >> 4) if head >> 4 else self._integer()
            if number in found:  # others may take either
                raise ValueError("a field is there twice")
            found[number] = kind == _TRUE if kind in {_TRUE, _FALSE} else self._value(kind, depth + 1)

    def _value(self, kind: int, depth: int) -> Any:
        if kind in {_INT16, _INT32, _INT64}:
            number = self._integer()
            return number if kind == _INT64 else _Int32(number) if kind == _INT32 else None
        if kind == _STRUCT:
            return self.struct(depth)
        if kind in {_TRUE, _FALSE, _BYTE, _DOUBLE}:  # the first two in a list
            self.at += 8 if kind == _DOUBLE else 1
            return None
        if kind == _BINARY:
            length = self._varint()
            self.at += length
            return bytes(self.data[self.at - length : self.at])
        if kind != _LIST or depth > _MAX_DEPTH:  # there are neither sets nor maps
            raise ValueError("a page's header is damaged")
        head = self.data[self.at]
        self.at += 1
        count = head >> 4 if head >> 4 < _SHORT else self._varint()
        if count > MAX_FOOTER_OBJECTS:
            raise ValueError("too many elements")
        return [self._value(head & 15, depth + 1) for _ in range(count)]


def unpacked_size(chunk: memoryview, rows: int) -> int:
    """Return the bytes of a column's pages once they are unpacked.

    Args:
        chunk: the column of a row group as it is stored.
        rows: number of the row group's rows.

    Raises:
        ValueError: it is damaged, or has more values than rows.
    """
    at = size = 0
    try:
        while at < len(chunk):
            read = _Structs(chunk, at)
            header = read.struct()
            packed, unpacked = header.get(_COMPRESSED), header.get(_UNCOMPRESSED)
            if not isinstance(packed, int) or not isinstance(unpacked, int) or packed < 0 or unpacked < 0:
                raise ValueError("a page's header is damaged")
            counts = [part.get(1) for number in _PARTS if isinstance(part := header.get(number), dict)]
            if any(not isinstance(count, int) or not 0 <= count <= rows for count in counts):
                raise ValueError("a page has more values than there are rows")
            values = [part.get(field) for key, field in _ENCODINGS.items() if isinstance(part := header.get(key), dict)]
            if _SHARED_BEGINNINGS in values:
                raise ValueError("a page's texts share their beginnings")
            size += unpacked
            at = read.at + packed
    except IndexError:
        raise ValueError("a page is cut off") from None
    return size


def check_groups(data: memoryview, names: Collection[str]) -> None:
    """Check that columns of a Parquet file do not unpack to much more than the file.

    Args:
        data: the file.
        names: the columns that will be read.

    Raises:
        ValueError: they do, or the file is damaged.
    """
    wanted = {name.encode() for name in names}
    rows = unpacked = 0
    for group in groups_of(data):
        rows += group.rows
        if group.rows < 0 or rows > FREE_ROWS + len(data):
            raise ValueError("more rows than a table has in as many bytes")
        for start, end in (span for name, span in group.columns if name in wanted):
            if not 0 <= start <= end <= len(data):
                raise ValueError("its columns are not where its footer puts them")
            unpacked += unpacked_size(data[start:end], group.rows)
            if unpacked > FREE_BYTES + MAX_TIMES * len(data):
                raise ValueError("more than a table has in as many bytes")


@attrs.frozen
class Group:
    """A row group of a Parquet file.

    Attributes:
        rows: number of its rows.
        columns: (path, its place in the file: first byte and the one after the last).
    """

    rows: int
    columns: list[tuple[bytes, tuple[int, int]]]


def groups_of(tail: memoryview) -> list[Group]:
    """Return the row groups of a Parquet file from its bytes, or its last ones with the whole footer.

    Arrow's own view of a footer ends the process if a column's statistics are damaged.

    Raises:
        ValueError: it is damaged.
    """
    length = int.from_bytes(tail[-8:-4], "little")
    if bytes(tail[-4:]) != _MAGIC or not 0 < length <= len(tail) - 8:
        raise ValueError("its footer is damaged")
    try:
        footer = _Structs(tail, len(tail) - 8 - length).struct()
        groups = [
            Group(_wide(group[_ROWS]), [_column(chunk[_CHUNK]) for chunk in group[_CHUNKS]])
            for group in footer[_GROUPS]
        ]
        paths = _paths(footer[_SCHEMA])
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ValueError("its footer is damaged") from None
    if any([path for path, _ in group.columns] != paths for group in groups):
        raise ValueError("its columns are not those of its schema")  # by which Arrow finds them
    return groups


def _paths(schema: list[Any]) -> list[bytes]:
    """Return the paths of the columns with values, in their order."""
    found: list[bytes] = []
    above: list[tuple[bytes, int]] = []  # names around an element, and how many elements each still has
    left = _children(schema[0])
    for element in schema[1:]:
        while above and not left:
            left = above.pop()[1]
        left -= 1
        if children := _children(element):
            above.append((element[_NAME], left))
            left = children
        else:
            found.append(b".".join([*(name for name, _ in above), element[_NAME]]))
        if left < 0 or len(above) > _MAX_LEVELS:
            raise ValueError("its schema is damaged")
    if left or any(rest for _, rest in above):
        raise ValueError("its schema is damaged")
    return found


def _children(element: dict[int, Any]) -> int:
    count = element.get(_CHILDREN, _Int32(0))
    if not isinstance(count, _Int32) or count < 0:
        raise ValueError("its schema is damaged")
    return count


def _column(column: Any) -> tuple[bytes, tuple[int, int]]:
    dictionary = column.get(_DICTIONARY)
    places = [_wide(column[_DATA]), *([] if dictionary is None else [_wide(dictionary)])]
    start = min(filter(None, places), default=0)
    return b".".join(column[_PATH]), (start, start + _wide(column[_SIZE]))


def _wide(number: Any) -> int:
    if type(number) is not int:
        raise ValueError("its footer is damaged")
    return number
