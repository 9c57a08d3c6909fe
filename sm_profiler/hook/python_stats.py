"""Conversion of cProfile's results to the bytes that `dump_stats` writes, with hardly an object that is garbage-collected.

`Profile.create_stats` makes hundreds of thousands of tuples and dictionaries.  Beside a training, these start garbage
collections, for which the training waits.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Iterator, Sequence
from cProfile import label
from typing import Any

PLAIN = 2  # version of marshal without references, which are written here
REFERABLE = 0x80  # flag of a type: references may point to the object
FIGURES_START = b"(" + struct.pack("<i", 5)  # a tuple of four numbers and the callers
_call = struct.Struct("<iqqdd")  # number of the caller's name, calls, primitive calls, own and cumulative time


def marshalled(entries: Sequence[Any]) -> bytes:
    """Return the statistics of `Profile.getstats()` as marshal data: function → calls, times and callers.

    Functions of the same name are one, as in `create_stats`: the last one's figures stay.
    """
    names: dict[bytes, int] = {}
    numbers: dict[int, int] = {}  # id of a function's code → number of its name
    calls: dict[int, bytearray] = {}  # the same → its callers
    for entry in entries:
        key = id(entry.code)
        numbers[key] = names.setdefault(marshal.dumps(label(entry.code), PLAIN), len(names))
        calls[key] = bytearray()
    for entry in entries:
        for call in entry.calls or ():
            into = calls.get(id(call.code))
            if into is not None:
                primitive = call.callcount - call.reccallcount
                into += _call.pack(numbers[id(entry.code)], call.callcount, primitive, call.inlinetime, call.totaltime)
    return _joined(entries, list(names), numbers, calls)


def _joined(entries: Sequence[Any], names: list[bytes], numbers: dict[int, int], calls: dict[int, bytearray]) -> bytes:
    written: dict[int, int] = {}  # number of a name → its reference
    data = bytearray(b"{")

    def name(number: int) -> bytes:
        reference = written.get(number)
        if reference is not None:
            return b"r" + struct.pack("<i", reference)
        written[number] = len(written)
        return bytes((names[number][0] | REFERABLE,)) + names[number][1:]

    for entry in entries:
        key = id(entry.code)
        data += name(numbers[key])
        data += FIGURES_START
        for figure in (entry.callcount - entry.reccallcount, entry.callcount, entry.inlinetime, entry.totaltime):
            data += marshal.dumps(figure, PLAIN)
        data += b"{"
        for caller, figures in _merged(calls[key]):
            data += name(caller)
            data += figures
        data += b"0"
    return bytes(data + b"0")


def _merged(calls: bytearray) -> Iterator[tuple[int, bytes]]:
    """Yield the callers of a function with their figures; those of the same name are added up."""
    callers = [call[0] for call in _call.iter_unpack(calls)]
    if len(set(callers)) == len(callers):
        for caller, *figures in _call.iter_unpack(calls):
            yield caller, marshal.dumps(tuple(figures), PLAIN)
        return
    sums: dict[int, tuple[Any, ...]] = {}
    for caller, *figures in _call.iter_unpack(calls):
        known = sums.get(caller, (0, 0, 0.0, 0.0))
        sums[caller] = tuple(a + b for a, b in zip(known, figures, strict=True))
    for caller, total in sums.items():
        yield caller, marshal.dumps(total, PLAIN)
