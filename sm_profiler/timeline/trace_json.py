"""Trace events as JSON, which Perfetto and chrome://tracing read, written many at once: a matrix of bytes with a row each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, BinaryIO, TypeAlias

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats import event_names
from sm_profiler.formats.columns import Category, Floats, Ints, Mask

Arguments = Mapping[str, Any]  # values that JSON has
Bytes: TypeAlias = NDArray[np.uint8]
Announce: TypeAlias = Callable[[], None]  # writes the name of a process or of a lane

_DENSE = 64  # possible numbers for each row up to which a table of all of them is faster than sorting
_GROUP = 10_000  # four digits are looked up at once
_REMEMBERED = 50_000  # names whose JSON is kept
_FAR_NS = 1 << 62  # times beyond are converted as Python's integers
_LONGEST = 512  # bytes of what precedes the times of slices that are written together
_SHOWN_AS_THEY_ARE = 1e-3, 1e15  # numbers between these have no exponent, from any writer of JSON
_DURATION, _STEP, _END = b',"dur":', b',"args":{"step":', b"}"


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
    """Return texts as rows of equal width, padded with zeros on the left."""
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
    """Return non-negative integers in decimal, one per row, padded with zero bytes on the left."""
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


class JsonTrace:
    """Writes a trace, times in nanoseconds since its origin; processes and threads are numbers that are named first.

    The trace is an object whose times count from its origin. If the origin is given, microseconds since the epoch, it is an
    array of events whose times count from the epoch.
    """

    def __init__(self, out: BinaryIO, absolute_us: int | None = None) -> None:
        self._out = out
        self._separator = "\n"
        self._written: dict[str, str] = {}
        self._is_array = absolute_us is not None
        self._origin = 1000 * (absolute_us or 0)
        out.write(b"[" if self._is_array else b'{"displayTimeUnit":"ms","traceEvents":[')

    def _write(self, text: str) -> None:
        self._out.write((self._separator + text).encode("ascii"))
        self._separator = ",\n"

    def _meta(self, name: str, process: int, thread: int, args: Mapping[str, Any]) -> None:
        self._write(json.dumps({"name": name, "ph": "M", "pid": process, "tid": thread, "ts": 0, "args": args}))

    def _text(self, text: str) -> str:
        found = self._written.get(text)
        if found is None:
            if len(self._written) >= _REMEMBERED:
                self._written.clear()
            found = self._written[text] = json.dumps(text)
        return found

    def name_process(self, process: int, name: str, order: int) -> None:
        """Name a process; processes with a smaller order are shown first."""
        self._meta("process_name", process, 0, {"name": name})
        self._meta("process_sort_index", process, 0, {"sort_index": order})

    def label_process(self, process: int, label: str) -> None:
        """Show a text next to the name of a process."""
        self._meta("process_labels", process, 0, {"labels": label})

    def name_thread(self, process: int, thread: int, name: str, order: int) -> None:
        self._meta("thread_name", process, thread, {"name": name})
        self._meta("thread_sort_index", process, thread, {"sort_index": order})

    def slice(  # one argument a field
        self, process: int, thread: int, name: str, category: str, start: int, length: int, args: Arguments, flow: int
    ) -> None:
        """Write a slice; a positive flow begins here, and its negative ends here."""
        at = f'"pid":{process},"tid":{thread},"ts":{_microseconds(start + self._origin)}'
        more = f',"args":{_json(args, (",", ":"))}' if args else ""
        head = f'{{"name":{self._text(name)},"cat":{self._text(category)},"ph":"X"'
        self._write(f'{head},{at},"dur":{_microseconds(length)}{more}}}')
        if flow:
            half = '"ph":"s"' if flow > 0 else '"ph":"f","bp":"e"'
            self._write(f'{{"name":"launch","cat":"launch",{half},"id":{abs(flow)},{at}}}')

    def slices(self, rows: SliceRows) -> None:
        """Write slices, and the names of what is new there before each."""
        kinds, first = rows.kinds()
        heads = [self._head(*rows.kind_at(row)) for row in first.tolist()]
        fits = np.array([len(head) <= _LONGEST for head in heads])[kinds]
        rows = attrs.evolve(rows, start=rows.start + self._origin)
        fits &= (np.abs(rows.start) < _FAR_NS) & (rows.length < _FAR_NS)
        singly = np.union1d(np.flatnonzero(~fits), np.array(list(rows.named), np.int64)).tolist()
        lines = _lines([head if len(head) <= _LONGEST else b"" for head in heads], kinds, rows, fits)
        begin = 0
        for row in [*singly, len(rows)]:
            if row > begin:
                self._out.write(lines[begin:row].tobytes().translate(None, b"\0"))
            if row == len(rows):
                break
            for announce in rows.named.get(row, ()):
                announce()
            begin = row
            if not fits[row]:
                step = int(rows.step[row])
                args = {"step": step} if step >= 0 else {}
                self.slice(*rows.kind_at(row), int(rows.start[row]) - self._origin, int(rows.length[row]), args, 0)
                begin = row + 1

    def _head(self, process: int, thread: int, name: str, category: str) -> bytes:
        """Return what the events of a name and category on a lane begin with; another one precedes them."""
        names = f'"name":{self._text(name)},"cat":{self._text(category)}'
        return f',\n{{{names},"ph":"X","pid":{process},"tid":{thread},"ts":'.encode("ascii")

    def counter(self, process: int, name: str, at: int, values: Arguments) -> None:
        """Write the values of a counter from a moment on."""
        self._moment("C", process, name, at, _json(values))

    def mark(self, process: int, name: str, at: int, args: Arguments) -> None:
        """Mark a moment across all processes."""
        self._moment('i","s":"g', process, name, at, _json(args))

    def _moment(self, kind: str, process: int, name: str, at: int, args: str) -> None:
        ts = _microseconds(at + self._origin)
        self._write(f'{{"name":{self._text(name)},"ph":"{kind}","pid":{process},"tid":0,"ts":{ts},"args":{args}}}')

    def counters(self, rows: CounterRows) -> None:
        """Write values of counters, and the names of what is new there before each."""
        later = [f", {json.dumps(text)}: ".encode("ascii") for text in rows.series.values]
        before = [later[code] for code in rows.series.codes.tolist()]
        names = [self._text(text) for text in rows.name.values]
        begins = np.flatnonzero(rows.first)
        for row, process, name, at in zip(
            *(column.tolist() for column in (begins, rows.process[begins], rows.name.codes[begins], rows.at[begins])),
            strict=True,
        ):
            ts = _microseconds(at + self._origin)
            head = f'}}}},\n{{"name":{names[name]},"ph":"C","pid":{process},"tid":0,"ts":{ts},"args":{{'
            before[row] = head.encode("ascii") + before[row][2:]
        parts = list(chain.from_iterable(zip(before, _numbers(rows.value), strict=True)))
        edges = sorted({0, *rows.named, len(rows)})
        for begin, end in pairwise(edges):
            for announce in rows.named.get(begin, ()):
                announce()
            self._out.write(b"".join(parts[2 * begin : 2 * end])[2:] + b"}}")

    def close(self, about: Mapping[str, Any]) -> None:
        """End the trace, with facts about it."""
        if self._is_array:
            self._meta(event_names.CLOCK, 0, 0, {**about, "start_time_since_epoch_in_micros": 0})
            self._out.write(b"\n]\n")
            return
        self._out.write(f'\n],"otherData":{json.dumps(about)}}}\n'.encode("ascii"))


def _json(value: Any, separators: tuple[str, str] = (", ", ": ")) -> str:
    """Return a value in JSON, with null for NaN and infinite numbers, which JSON does not have."""
    try:
        return json.dumps(value, allow_nan=False, separators=separators)
    except ValueError:
        return json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None), separators=separators)


def _microseconds(nanoseconds: int) -> str:
    whole, rest = divmod(abs(nanoseconds), 1000)
    text = f"{whole}.{rest:03}".rstrip("0").rstrip(".") if rest else str(whole)
    return f"-{text}" if nanoseconds < 0 else text


def _lines(heads: list[bytes], kinds: Ints, rows: SliceRows, fits: Any) -> Any:
    """Return a row of bytes for each event, with zeros among them; those that do not fit are meaningless."""
    start, length = np.where(fits, rows.start, 0), np.where(fits, rows.length, 0)
    has_step = rows.step >= 0
    negative = start < 0
    parts = [thousandths(np.abs(start)), thousandths(length), decimals(np.where(has_step, rows.step, 0))]
    at, lasting, step = (part.shape[1] for part in parts)
    ends = [bytes(len(_STEP) + step) + _END, _STEP + bytes(step) + _END + _END]
    begin = right_aligned(heads)
    rest = right_aligned([bytes(1 + at) + _DURATION + bytes(lasting) + end.rjust(len(ends[1]), b"\0") for end in ends])
    templates = np.concatenate([np.repeat(begin, 2, axis=0), np.tile(rest, (len(begin), 1))], axis=1)
    lines = templates.take(kinds * 2 + has_step, axis=0)
    place = begin.shape[1]
    lines[negative, place] = ord("-")
    place += 1
    lines[:, place : place + at] = parts[0]
    place += at + len(_DURATION)
    lines[:, place : place + lasting] = parts[1]
    place += lasting + len(_STEP)
    lines[:, place : place + step] = parts[2] * has_step[:, None]
    return lines


def _numbers(values: Floats) -> list[bytes]:
    """Return numbers in JSON, as `json` writes them: the shortest decimals that are read as the same number."""
    low, high = _SHOWN_AS_THEY_ARE
    size = np.abs(values)
    plain = (size == 0) | ((size >= low) & (size < high))
    texts = msgspec.json.encode(np.where(plain, values, 0.0).tolist())[1:-1].split(b",")
    for row in np.flatnonzero(~plain).tolist():
        texts[row] = repr(float(values[row])).encode("ascii")
    return texts
