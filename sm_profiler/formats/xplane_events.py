"""The events of a plane of an xplane trace: places in the file to columns, field by field for many events at once."""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Ints, Mask, Numbering
from sm_profiler.formats.outcome import Tally

Bytes: TypeAlias = NDArray[np.uint8]

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types
_MAX_VARINT = 10  # bytes
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


HLO_OP, HLO_MODULE, TF_OP, PROGRAM = "hlo_op", "hlo_module", "tf_op", "program_id"
STATS = (HLO_OP, HLO_MODULE, TF_OP, PROGRAM)  # the arguments of events that are read
# Columns of events: offset in their line and duration (nanoseconds), number of the name, of the line, and STATS.
Part: TypeAlias = tuple[NDArray[Any], ...]
KINDS = (np.float64, np.float64, np.int32, np.int32, np.int32, np.int32, np.int32, np.int64)

_CHUNK = 1 << 16  # events decoded together
_MIN_EVENT = 2  # bytes: it refers to its name
_MAX_FIELDS = 64  # of an event; further ones are not read
_FIXED = {FIXED64: 8, FIXED32: 4}  # bytes
_EVENT_TAG = 0x22  # a line's events
_MORE = 0x80  # a byte that another one follows
# Field numbers of the messages.
_EVENTS = 4
_EVENT_ID, _OFFSET, _DURATION, _EVENT_STATS = 1, 2, 3, 4
_STAT_ID, _UNSIGNED, _SIGNED, _TEXT, _REFERENCE = 1, 3, 4, 5, 7


class Shared:
    """State that the events of all planes share: the file, its texts, and the columns so far.

    Attributes:
        view, data: the file.
        tally: what was lost.
        names: texts of names → their numbers.
        texts: texts of arguments → their numbers.
        parts: the columns.
    """

    def __init__(self, view: memoryview, tally: Tally) -> None:
        self.view = view
        self.data: Bytes = np.frombuffer(view, np.uint8)
        self.tally = tally
        self.names, self.texts = Numbering(), Numbering()
        self.no_text = self.texts[""]
        self.parts: list[Part] = []


class _Lookup:
    """Ids of a plane as numbers of texts that all planes share."""

    def __init__(self, names: Mapping[int, str], numbers: Numbering) -> None:
        keys = sorted(names)
        self._order = np.array(keys, np.int64)
        self._codes = np.array([numbers[names[key]] for key in keys], np.int32)
        self._unknown = numbers[""]

    def __call__(self, ids: Ints) -> NDArray[np.int32]:
        """Return the numbers of ids; unknown ones have an empty text."""
        if not len(self._order):
            return np.full(len(ids), self._unknown, np.int32)
        place = np.minimum(np.searchsorted(self._order, ids), len(self._order) - 1)
        found: NDArray[np.int32] = np.where(self._order[place] == ids, self._codes[place], self._unknown).astype(
            np.int32
        )
        return found


class PlaneEvents:
    """The events of a plane: their places in the file, decoded when there are enough of them.

    Attributes:
        count: number of events so far.
    """

    def __init__(self, shared: Shared, event_names: Mapping[int, str], stat_names: Mapping[int, str]) -> None:
        self._shared = shared
        self.count = 0
        self._starts, self._ends, self._lines = array("q"), array("q"), array("q")
        self._names = _Lookup(event_names, shared.names)
        self._references = _Lookup(stat_names, shared.texts)
        wanted = {key: STATS.index(name) for key, name in stat_names.items() if name in STATS and 0 <= key < _CHUNK}
        self._column = np.full(max(wanted, default=0) + 2, -1, np.int8)  # the last is for all larger ids
        self._column[list(wanted)] = list(wanted.values())

    def add(self, line: Field, row: int) -> Generator[Field]:  # calls would take as long as the rest
        """Take the events of a line; yield its other fields."""
        view, tally = self._shared.view, self._shared.tally
        starts, ends = self._starts, self._ends
        add_start, add_end = starts.append, ends.append
        at, end = line.value, line.end
        empty = 0  # each would take a column's row, thirty times its bytes
        while at < end:
            # One event after another, as fast as Python can: a tag of one byte, a length of one or two.
            for _ in range(_CHUNK - len(starts)):
                if end - at < 3 or view[at] != _EVENT_TAG:  # what the fast way needs
                    break
                size = view[at + 1]
                after = at + 2
                if size >= _MORE:
                    second = view[after]
                    if second >= _MORE:
                        break
                    size += (second - 1) << 7
                    after += 1
                if size > end - after:
                    break
                at = after + size
                if size < _MIN_EVENT:
                    empty += 1
                    continue
                add_start(after)
                add_end(at)
            if len(starts) >= _CHUNK:
                self._fill_lines(row)
                self.decode()
                continue
            field = next(sound_fields(view, at, end, tally), None)
            if field is None:
                break
            at = field.end
            if field.number == _EVENTS and field.wire == LENGTH:
                if field.end - field.value < _MIN_EVENT:
                    empty += 1
                    continue
                add_start(field.value)
                add_end(field.end)
            else:
                self._fill_lines(row)  # the reader may stop here
                yield field
        self._fill_lines(row)
        tally.drop("event without a name", empty)

    def _fill_lines(self, row: int) -> None:
        fresh = len(self._starts) - len(self._lines)
        self._lines.extend([row] * fresh)
        self.count += fresh

    def decode(self) -> None:
        """Append the columns of the events so far."""
        count = len(self._starts)
        if not count:
            return
        at, end, lines = (np.array(places, np.int64) for places in (self._starts, self._ends, self._lines))
        del self._starts[:], self._ends[:], self._lines[:]
        scalars = {number: np.zeros(count, np.int64) for number in (_EVENT_ID, _OFFSET, _DURATION)}
        no_text = self._shared.no_text
        stats = [np.full(count, -1 if name == PROGRAM else no_text, np.int64) for name in STATS]
        keep = self._decode_fields(at, end, scalars, stats)
        columns: Part = (
            scalars[_OFFSET] / 1000,
            scalars[_DURATION] / 1000,
            self._names(scalars[_EVENT_ID]),
            lines.astype(np.int32),
            *(column.astype(kind) for column, kind in zip(stats, KINDS[-len(STATS) :], strict=True)),
        )
        self._shared.parts.append(columns if keep.all() else tuple(column[keep] for column in columns))

    def _decode_fields(self, at: Ints, end: Ints, scalars: Mapping[int, Ints], stats: list[Ints]) -> Mask:
        """Advance all events by one field at a time; return which are whole."""
        data, tally = self._shared.data, self._shared.tally
        whole = np.ones(len(at), np.bool_)
        rows = np.flatnonzero(at < end)
        for _ in range(_MAX_FIELDS):
            if not len(rows):
                break
            tag, after = varints(data, at[rows])
            value, behind = varints(data, after)
            next_at = behind.copy()
            for kind in np.unique(tag):
                mine = np.flatnonzero(tag == kind)
                number, wire = int(kind) >> 3, int(kind) & 7
                if wire == VARINT and number in scalars:
                    scalars[number][rows[mine]] = value[mine]
                elif wire == LENGTH:
                    next_at[mine] += value[mine]
                    if number == _EVENT_STATS:
                        self._decode_stats(rows[mine], behind[mine], next_at[mine], stats)
                elif wire != VARINT:
                    next_at[mine] = after[mine] + _FIXED.get(wire, -len(data))
            bad = (next_at > end[rows]) | (next_at <= at[rows])
            whole[rows[bad]] = False
            at[rows] = next_at
            rows = rows[~bad & (next_at < end[rows])]
        tally.drop("event damaged", int((~whole).sum()))
        if len(rows):
            tally.mend("arguments of some events were not read")
        return whole

    def _decode_stats(self, rows: Ints, at: Ints, end: Ints, stats: list[Ints]) -> None:
        """Read one argument of many events, if it is one of `STATS`."""
        shared, data = self._shared, self._shared.data
        key, after = varints(data, at + 1)
        number = self._column[np.minimum(key.view(np.uint64), len(self._column) - 1).astype(np.int64)]
        wanted = np.flatnonzero((number >= 0) & (end <= len(data)) & (after < end))
        wanted = wanted[data[at[wanted]] == _STAT_ID << 3]
        if not len(wanted):
            return
        rows, end, after, number = rows[wanted], end[wanted], after[wanted], number[wanted]
        tag, after = varints(data, after)
        value, behind = varints(data, after)
        for which, target in enumerate(stats):
            mine = np.flatnonzero(number == which)
            if not len(mine):
                continue
            if STATS[which] == PROGRAM:
                mine = mine[(tag[mine] == _SIGNED << 3) | (tag[mine] == _UNSIGNED << 3)]
                target[rows[mine]] = value[mine]
                continue
            referring = mine[tag[mine] == _REFERENCE << 3]
            target[rows[referring]] = self._references(value[referring])
            for place in mine[(tag[mine] == (_TEXT << 3 | LENGTH)) & (value[mine] == end[mine] - behind[mine])]:
                content = bytes(shared.view[behind[place] : end[place]])
                target[rows[place]] = shared.texts[content.decode(errors="replace")]
