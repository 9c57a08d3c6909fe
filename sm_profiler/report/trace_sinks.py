"""Formats of a merged timeline: trace-event JSON here, Perfetto's protobuf in `formats.perfetto_writer`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain, pairwise
from typing import Any, BinaryIO, Protocol

import msgspec
import numpy as np

from sm_profiler.formats.columns import Floats, Ints
from sm_profiler.formats.timeline_rows import CounterRows, SliceRows, decimals, right_aligned, thousandths

Arguments = Mapping[str, int | float | str]
_REMEMBERED = 50_000  # names whose JSON is kept
_EXACT = 10**15  # numbers below have all their digits in 15
_LONGEST = 512  # bytes of what precedes the times of slices that are written together
_SHOWN_AS_THEY_ARE = 1e-3, 1e15  # numbers between these have no exponent, from any writer of JSON
_DURATION, _STEP, _END = b',"dur":', b',"args":{"step":', b"}"


class TraceSink(Protocol):
    """Takes the parts of a timeline, times in nanoseconds since its origin, and writes them at once.

    Processes and threads are numbers that were named before their first use.
    """

    def name_process(self, process: int, name: str, order: int) -> None:
        """Name a process; processes with a smaller order are shown first."""

    def label_process(self, process: int, label: str) -> None:
        """Add a note to a process."""

    def name_thread(self, process: int, thread: int, name: str, order: int) -> None:
        """Name a lane of a process."""

    def slice(  # one argument a field
        self, process: int, thread: int, name: str, category: str, start: int, length: int, args: Arguments, flow: int
    ) -> None:
        """Write a slice; a positive flow begins here, and its negative ends here."""

    def slices(self, rows: SliceRows) -> None:
        """Write slices, and the names of what is new there before each."""

    def counter(self, process: int, name: str, at: int, values: Arguments) -> None:
        """Write the values of a counter from a moment on."""

    def counters(self, rows: CounterRows) -> None:
        """Write values of counters, and the names of what is new there before each."""

    def close(self, about: Mapping[str, Any]) -> None:
        """End the trace, with facts about it if the format has a place for them."""


class JsonSink:
    """Writes the trace-event format, which Perfetto and chrome://tracing read."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._separator = "\n"
        self._written: dict[str, str] = {}
        out.write(b'{"displayTimeUnit":"ms","traceEvents":[')

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
        """Write the process's name and place."""
        self._meta("process_name", process, 0, {"name": name})
        self._meta("process_sort_index", process, 0, {"sort_index": order})

    def label_process(self, process: int, label: str) -> None:
        """Write a note."""
        self._meta("process_labels", process, 0, {"labels": label})

    def name_thread(self, process: int, thread: int, name: str, order: int) -> None:
        """Write the lane's name and place."""
        self._meta("thread_name", process, thread, {"name": name})
        self._meta("thread_sort_index", process, thread, {"sort_index": order})

    def slice(  # one argument a field
        self, process: int, thread: int, name: str, category: str, start: int, length: int, args: Arguments, flow: int
    ) -> None:
        """Write a whole event, and one half of its flow."""
        at = f'"pid":{process},"tid":{thread},"ts":{start / 1e3:.15g}'
        more = f',"args":{json.dumps(args, separators=(",", ":"))}' if args else ""
        head = f'{{"name":{self._text(name)},"cat":{self._text(category)},"ph":"X"'
        self._write(f'{head},{at},"dur":{length / 1e3:.15g}{more}}}')
        if flow:
            half = '"ph":"s"' if flow > 0 else '"ph":"f","bp":"e"'
            self._write(f'{{"name":"launch","cat":"launch",{half},"id":{abs(flow)},{at}}}')

    def slices(self, rows: SliceRows) -> None:
        """Write whole events."""
        kinds, first = rows.kinds()
        heads = [self._head(*rows.kind_at(row)) for row in first.tolist()]
        fits = np.array([len(head) <= _LONGEST for head in heads])[kinds]
        fits &= (np.abs(rows.start) < _EXACT) & (rows.length < _EXACT)
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
                self.slice(*rows.kind_at(row), int(rows.start[row]), int(rows.length[row]), args, 0)
                begin = row + 1

    def _head(self, process: int, thread: int, name: str, category: str) -> bytes:
        """Return what the events of a name and category on a lane begin with; another one precedes them."""
        names = f'"name":{self._text(name)},"cat":{self._text(category)}'
        return f',\n{{{names},"ph":"X","pid":{process},"tid":{thread},"ts":'.encode("ascii")

    def counter(self, process: int, name: str, at: int, values: Arguments) -> None:
        """Write a counter event."""
        written = json.dumps(values)
        self._write(
            f'{{"name":{self._text(name)},"ph":"C","pid":{process},"tid":0,"ts":{at / 1e3:.15g},"args":{written}}}'
        )

    def counters(self, rows: CounterRows) -> None:
        """Write counter events."""
        later = [f", {json.dumps(text)}: ".encode("ascii") for text in rows.series.values]
        before = [later[code] for code in rows.series.codes.tolist()]
        names = [self._text(text) for text in rows.name.values]
        begins = np.flatnonzero(rows.first)
        for row, process, name, at in zip(
            *(column.tolist() for column in (begins, rows.process[begins], rows.name.codes[begins], rows.at[begins])),
            strict=True,
        ):
            head = f'}}}},\n{{"name":{names[name]},"ph":"C","pid":{process},"tid":0,"ts":{at / 1e3:.15g},"args":{{'
            before[row] = head.encode("ascii") + before[row][2:]
        parts = list(chain.from_iterable(zip(before, _numbers(rows.value), strict=True)))
        edges = sorted({0, *rows.named, len(rows)})
        for begin, end in pairwise(edges):
            for announce in rows.named.get(begin, ()):
                announce()
            self._out.write(b"".join(parts[2 * begin : 2 * end])[2:] + b"}}")

    def close(self, about: Mapping[str, Any]) -> None:
        """Close the array."""
        self._out.write(f'\n],"otherData":{json.dumps(about)}}}\n'.encode("ascii"))


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
