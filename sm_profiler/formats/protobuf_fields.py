"""Encode fields of Protocol Buffers."""

from __future__ import annotations

import struct

_DOUBLE = struct.Struct("<d").pack
_MASK = (1 << 64) - 1


def _encoded(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:  # seven bits a byte
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


# Most numbers of a trace are lengths, fields and texts: looking them up takes a third of the time of encoding them.
_SHORT = tuple(map(_encoded, range(1 << 14)))


def varint(number: int) -> bytes:
    """Encode an unsigned integer; a negative one as 64 bits."""
    return _SHORT[number] if 0 <= number < len(_SHORT) else _encoded(number & _MASK)


def whole(field: int, number: int) -> bytes:
    """Encode a field with an integer."""
    return varint(field << 3) + varint(number)


def data(field: int, content: bytes) -> bytes:
    """Encode a field with bytes: a text or a message."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def text(field: int, content: str) -> bytes:
    """Encode a field with text."""
    return data(field, content.encode("utf-8", "replace"))


def fixed(field: int, number: int) -> bytes:
    """Encode a field with an integer of 64 bits."""
    return varint(field << 3 | 1) + struct.pack("<Q", number & _MASK)


def real(field: int, number: float) -> bytes:
    """Encode a field with a floating-point number."""
    return varint(field << 3 | 1) + _DOUBLE(number)
