"""Sizes of MessagePack, JSON and Parquet before they are unpacked: a byte can take 72 bytes as an object, or gigabytes."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from typing import Any

COUNTED_BYTES = 1 << 20  # MessagePack of less than this cannot take much memory
FREE_ELEMENTS = 1 << 20  # of what other processes sent, and one more for each byte that arrived

_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # bytes of the length
_EXTENSIONS = {0xC7, 0xC8, 0xC9}  # with one byte more

MAX_FOOTER_OBJECTS = 1 << 17  # of a kind
FREE_ROWS = 1 << 18  # of a file, and one more for each of its bytes
FREE_BYTES, MAX_TIMES = 16 << 20, 64  # of a file, unpacked: so much, and so many times its bytes

_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 0, 1, 2, 3, 7, 8, 12
_INTEGERS = (4, 5, 6)
_UNCOMPRESSED, _COMPRESSED = 2, 3  # fields of a page header
_PARTS = (5, 7, 8)  # its structs with the number of values, their field 1
_ENCODINGS = {5: 2, 8: 4}  # structs → their field with the encoding of the values
_SHARED_BEGINNINGS = 7  # DELTA_BYTE_ARRAY
_MAX_DEPTH = 8
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


class _Structs:
    """Reads structs from bytes, as far as pages need them."""

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

    def struct(self, depth: int = 0) -> dict[int, int | dict[int, object]]:
        if depth > _MAX_DEPTH:
            raise ValueError("a page's header is damaged")
        found: dict[int, int | dict[int, object]] = {}
        number = 0
        while True:
            head = self.data[self.at]
            self.at += 1
            kind = head & 15
            if kind == _STOP:
                return found
            number = number + (head >> 4) if head >> 4 else self._integer()
            if kind in _INTEGERS:
                found[number] = self._integer()
            elif kind == _STRUCT:
                found[number] = dict(self.struct(depth + 1))
            elif kind == _BINARY:
                length = self._varint()
                self.at += length
            elif kind == _BYTE:
                self.at += 1
            elif kind == _DOUBLE:
                self.at += 8
            elif kind not in {_TRUE, _FALSE}:  # page headers have neither lists nor maps
                raise ValueError("a page's header is damaged")


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


def check_groups(metadata: Any, data: memoryview, names: Collection[str]) -> None:
    """Check that columns of a file do not unpack to much more than the file.

    Args:
        metadata: the footer, as Arrow has read it.
        names: the columns that will be read.

    Raises:
        ValueError: they do, or the file is damaged.
    """
    rows = unpacked = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        rows += group.num_rows
        if group.num_rows < 0 or rows > FREE_ROWS + len(data):
            raise ValueError("more rows than a table has in as many bytes")
        for at in range(group.num_columns):
            column = group.column(at)
            if column.path_in_schema not in names:
                continue
            start = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)), default=0)
            end = start + column.total_compressed_size
            if not 0 <= start <= end <= len(data):
                raise ValueError("its columns are not where its footer puts them")
            unpacked += unpacked_size(data[start:end], group.num_rows)
            if unpacked > FREE_BYTES + MAX_TIMES * len(data):
                raise ValueError("more than a table has in as many bytes")
