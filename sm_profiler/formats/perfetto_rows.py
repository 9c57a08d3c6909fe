"""Packets of a Perfetto trace as matrices: a row of bytes for each slice or value, of which some are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Ints, Mask
from sm_profiler.formats.timeline_rows import Bytes, CounterRows, SliceRows, right_aligned

MOMENT_BYTES = 9  # of a time from 1972 to 2262
_FIRST, _LAST = 1 << 56, (1 << 63) - 1
_DOUBLE_BYTES = 8
# Two bytes of a varint that others follow.
PAIRS = tuple(bytes((number & 0x7F | 0x80, number >> 7 | 0x80)) for number in range(1 << 14))
_PAIRS = np.frombuffer(b"".join(PAIRS), np.uint16)
_MOMENT = np.dtype([("0", "u2"), ("14", "u2"), ("28", "u2"), ("42", "u2"), ("56", "u1")])


class Packets(NamedTuple):
    """The parts of one packet or two that are the same for many rows.

    Attributes:
        before: what precedes the time.
        named: what follows it, before the step or the value.
        after: what follows that, up to the second packet's time.
        end: what follows that; b"" if there is no second packet.
    """

    before: bytes
    named: bytes
    after: bytes
    end: bytes


def fits(first: int, last: int) -> bool:
    """Return whether all times between two, in nanoseconds since the epoch, have MOMENT_BYTES."""
    return first >= _FIRST and last <= _LAST


def varint_lengths(numbers: Ints) -> Ints:
    """Return the bytes of each number as a varint; 0 for negative ones, which are not written."""
    found = (numbers >= 0).astype(np.int64)
    if len(numbers) and (top := int(numbers.max())) > 0:
        for bits in range(7, top.bit_length(), 7):
            found += numbers >= 1 << bits
    return found


def _moments(at: Ints) -> Bytes:
    made = np.empty(len(at), _MOMENT)
    for bits in (0, 14, 28, 42):
        made[str(bits)] = _PAIRS[at >> bits & 0x3FFF]
    made["56"] = at >> 56
    return made.view(np.uint8).reshape(len(at), MOMENT_BYTES)


def _varints(numbers: Ints, width: int) -> Bytes:
    made = np.empty((len(numbers), width), np.uint8)
    for place in range(width):
        rest = numbers >> 7 * place
        made[:, place] = rest & 0x7F | (rest > 0x7F) << 7  # seven bits a byte
    return made


def slices(rows: SliceRows, origin: int, variants: Ints, packets: Sequence[Packets]) -> tuple[Bytes, Mask]:
    """Return the packets of slices.

    Args:
        rows: the slices.
        origin: of their times, nanoseconds since the epoch.
        variants: index into `packets` of each.
        packets: what those of a kind, with steps of a length, have in common.

    Returns:
        A matrix with a row for each slice, and which of its bytes are used.
    """
    lengths = varint_lengths(rows.step)
    width = int(lengths.max())
    steps = _varints(np.maximum(rows.step, 0), width), np.arange(width) < lengths[:, None]
    start = rows.start + origin
    return _rows(variants, packets, _moments(start), steps, _moments(start + rows.length))


def counters(rows: CounterRows, origin: int, kinds: Ints, packets: Sequence[Packets]) -> tuple[Bytes, Mask]:
    """Return the packets of values of counters, as `slices` does."""
    values = rows.value.astype("<f8").view(np.uint8).reshape(len(rows), _DOUBLE_BYTES)
    whole = np.ones(values.shape, np.bool_)
    return _rows(kinds, packets, _moments(rows.at + origin), (values, whole), None)


def _rows(
    kinds: Ints, packets: Sequence[Packets], begin: Bytes, middle: tuple[Bytes, Any], end: Bytes | None
) -> tuple[Bytes, Mask]:
    holes = [MOMENT_BYTES, middle[0].shape[1], 0 if end is None else MOMENT_BYTES]
    texts: list[NDArray[np.uint8]] = []
    masks: list[NDArray[np.uint8]] = []
    places = []
    at = 0
    for part, hole in zip(zip(*packets, strict=True), [*holes, 0], strict=True):
        text = right_aligned(part)
        texts += [text, np.zeros((len(packets), hole), np.uint8)]
        masks += [right_aligned([b"\1" * len(one) for one in part]), np.ones((len(packets), hole), np.uint8)]
        at += text.shape[1]
        places.append(at)
        at += hole
    lines = np.concatenate(texts, axis=1).take(kinds, axis=0)
    used = np.concatenate(masks, axis=1).view(np.bool_).take(kinds, axis=0)
    lines[:, places[0] : places[0] + holes[0]] = begin
    lines[:, places[1] : places[1] + holes[1]] = middle[0]
    used[:, places[1] : places[1] + holes[1]] = middle[1]
    if end is not None:
        lines[:, places[2] : places[2] + holes[2]] = end
    return lines, used
