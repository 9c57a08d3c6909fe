"""Slices and counters of a timeline as columns, and their bytes as matrices, so that a format writes many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category, Floats, Ints, Mask

Bytes: TypeAlias = NDArray[np.uint8]
Announce: TypeAlias = Callable[[], None]  # writes the name of a process or of a lane

_DENSE = 64  # possible numbers for each row up to which a table of all of them is faster than sorting
_GROUP = 10_000  # four digits are looked up at once


def distinct(numbers: NDArray[Any], top: int) -> tuple[Ints, Ints]:
    """Number the distinct values among numbers from 0 to below `top`.

    Returns:
        The number of each row's value, and the first row of each value.
    """
    if top > _DENSE * len(numbers) + 1024:
        _, first, codes = np.unique(numbers, return_index=True, return_inverse=True)
        return codes.reshape(-1).astype(np.int64), first.astype(np.int64)
    first = np.full(top, -1, np.int64)
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]  # of several, the last one stays
    found = np.flatnonzero(first >= 0)
    places = np.empty(top, np.int64)
    places[found] = np.arange(len(found))
    return places[numbers], first[found]


@attrs.frozen(eq=False)
class SliceRows:
    """Slices in the order in which they are written, times in nanoseconds since the timeline's origin.

    Attributes:
        track: index into `tracks` of each.
        tracks: process and thread of each lane.
        name: shown.
        category: shown.
        start: when it begins.
        length: at least 0.
        step: number of the step; -1 if unknown.
        named: row → what names the processes and lanes that are used there for the first time.
    """

    track: Ints
    tracks: Sequence[tuple[int, int]]
    name: Category
    category: Category
    start: Ints
    length: Ints
    step: Ints
    named: dict[int, list[Announce]]

    def __len__(self) -> int:
        return len(self.track)

    def kinds(self) -> tuple[Ints, Ints]:
        """Number the combinations of lane, name and category, as `distinct` does."""
        names, categories = len(self.name.values), len(self.category.values)
        mixed = (self.track * names + self.name.codes) * categories + self.category.codes
        return distinct(mixed, len(self.tracks) * names * categories)

    def kind_at(self, row: int) -> tuple[int, int, str, str]:
        """Return process, thread, name and category of a slice."""
        process, thread = self.tracks[self.track[row]]
        return (
            process,
            thread,
            self.name.values[self.name.codes[row]],
            self.category.values[self.category.codes[row]],
        )


@attrs.frozen(eq=False)
class CounterRows:
    """Values of counters in the order in which they are written, times in nanoseconds since the timeline's origin.

    Attributes:
        process: number of each value's process.
        name: the counter's.
        series: name of the value.
        at: the moment.
        value: finite.
        first: True for the first value of a counter at a moment.
        named: row → what names the processes that are used there for the first time.
    """

    process: Ints
    name: Category
    series: Category
    at: Ints
    value: Floats
    first: Mask
    named: dict[int, list[Announce]]

    def __len__(self) -> int:
        return len(self.process)


def right_aligned(texts: Sequence[bytes]) -> Bytes:
    """Return texts as rows of equal width, with zeros before the shorter ones."""
    width = max(map(len, texts))
    joined = b"".join([text.rjust(width, b"\0") for text in texts])
    return np.frombuffer(joined, np.uint8).reshape(len(texts), width)


def _table(texts: Sequence[bytes]) -> NDArray[np.uint32]:
    return np.frombuffer(b"".join(texts), np.uint32)


# Digits of a group without the zeros before them, followed by those of groups that others precede.
_WHOLE = [b"%04d" % number for number in range(_GROUP)]
_BARE = [(b"%d" % number if number else b"").rjust(4, b"\0") for number in range(_GROUP)]
_DIGITS, _LAST_DIGITS = _table(_BARE + _WHOLE), _table([b"\0\0\0" + b"0", *_BARE[1:], *_WHOLE])
_THOUSANDTHS = _table([(b".%03d" % number).rstrip(b"0").rstrip(b".").ljust(4, b"\0") for number in range(1000)])


def decimals(numbers: Ints) -> Bytes:
    """Return whole numbers from 0 on in decimal, one a row, with zero bytes before the shorter ones."""
    groups = max(-(-len(str(int(numbers.max()))) // 4), 1)
    made = np.empty((len(numbers), groups), np.uint32)
    table, rest = _LAST_DIGITS, numbers
    for place in range(groups - 1, -1, -1):
        above = rest // _GROUP
        index = rest - above * _GROUP
        index[above > 0] += _GROUP
        made[:, place] = table[index]
        table, rest = _DIGITS, above
    return made.view(np.uint8).reshape(len(numbers), 4 * groups)


def thousandths(numbers: Ints) -> Bytes:
    """Return a thousandth of each number as decimals does, with up to three digits behind the point, then zero bytes."""
    whole = numbers // 1000
    rest = _THOUSANDTHS[numbers - whole * 1000]
    return np.concatenate([decimals(whole), rest.view(np.uint8).reshape(len(numbers), 4)], axis=1)
