"""The wire format of Protocol Buffers: single messages as Python objects, many small ones as columns.

No content raises an error: what ends early or cannot be a message stops there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Ints
from sm_profiler.formats.outcome import Tally

Bytes: TypeAlias = NDArray[np.uint8]

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types
_MAX_VARINT = 10  # bytes
_MORE = 0x80  # a byte that another one follows
_MASK64 = (1 << 64) - 1
_MAX_NUMBER = (1 << 29) - 1  # of a field


class Field(NamedTuple):
    """One field of a message.

    Attributes:
        number: its number.
        wire: VARINT, FIXED64, LENGTH or FIXED32.
        value: the number of a VARINT; else where the content starts.
        end: where the content ends.
    """

    number: int
    wire: int
    value: int
    end: int


class DamagedMessageError(Exception):
    """A message that ends early, or that is none."""


def varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return the unsigned number at a place, and where it ends.

    Raises:
        DamagedMessageError: it does not end before `end`.
    """
    value = shift = 0
    for place in range(at, min(end, at + _MAX_VARINT)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            return value & _MASK64, place + 1
        shift += 7
    raise DamagedMessageError


def fields(data: memoryview, at: int, end: int) -> Iterator[Field]:
    """Yield the fields of a message.

    Raises:
        DamagedMessageError: the message is cut off or damaged after the fields so far.
    """
    while at < end:
        tag, at = varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number <= _MAX_NUMBER:
            raise DamagedMessageError
        if wire == VARINT:
            value, at = varint(data, at, end)
            yield Field(number, wire, value, at)
            continue
        if wire == LENGTH:
            size, at = varint(data, at, end)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise DamagedMessageError
        if size > end - at:
            raise DamagedMessageError
        yield Field(number, wire, at, at + size)
        at += size


def sound_fields(data: memoryview, at: int, end: int, tally: Tally) -> Iterator[Field]:
    """Yield the fields of a message up to the first damage, which is counted."""
    try:
        yield from fields(data, at, end)
    except DamagedMessageError:
        tally.drop("cut off or damaged, the rest")


def signed(value: int) -> int:
    """Return an int64 from its unsigned form."""
    return value - (1 << 64) if value >> 63 else value


def text(data: memoryview, field: Field) -> str:
    """Return a field's content as text."""
    return bytes(data[field.value : field.end]).decode(errors="replace")


def varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Return the numbers at many places, as int64, and where they end; places behind the data read its last byte."""
    last = len(data) - 1
    byte = data[np.minimum(at, last)]
    value = (byte & 0x7F).astype(np.int64)
    after = at + 1
    rows = np.flatnonzero(byte >= _MORE)
    for count in range(1, _MAX_VARINT):
        if not len(rows):
            break
        byte = data[np.minimum(after[rows], last)]
        value[rows] |= (byte & 0x7F).astype(np.int64) << (7 * count)
        after[rows] += 1
        rows = rows[byte >= _MORE]
    after[rows] = np.iinfo(np.int64).max // 2  # no end: beyond any message
    return value, after
