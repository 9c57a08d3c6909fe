"""The number of elements in MessagePack and JSON, before they become objects: a byte can take 72 bytes as an object."""

from __future__ import annotations

COUNTED_BYTES = 1 << 20  # MessagePack of less than this cannot take much memory
FREE_ELEMENTS = 1 << 20  # of what other processes sent, and one more for each byte that arrived


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
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # bytes of the length
_EXTENSIONS = {0xC7, 0xC8, 0xC9}  # with one byte more


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
