"""Fold the Python stacks that the hook samples: time by process, phase, length of the step, and stack."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator

import attrs
import msgspec
import numpy as np

from sm_profiler.formats.event_names import SAMPLES
from sm_profiler.printable import printable
from sm_profiler.report.step_fold import EventWindow

MAX_STACKS = 5_000  # kept per process, those with the most time; the others are summed up by phase
MAX_NAMES = 100_000  # texts of source lines
MAX_TEXT = 400  # characters of a file, a function or a line
MAX_PLACES = 64
MAX_SECONDS = 1e6  # of one stack in one event; more is damage


@attrs.frozen
class Place:
    """A line of code: file, number from 1, function."""

    file: str
    line: int
    function: str


@attrs.frozen
class Sampled:
    """Time in which a process was seen with one stack.

    Attributes:
        process: process that recorded it, `algo-1-0`; the loader's workers belong to theirs.
        phase: phase of the hook, or one that the script declares.
        long: in steps that took longer than usual.
        places: the user's lines, outermost first; empty for the sum of rare stacks.
        leaf: innermost function of a library, or "".
        seconds: time.
        count: samples.
    """

    process: str
    phase: str
    long: bool
    places: tuple[Place, ...]
    leaf: str
    seconds: float
    count: int


class _Args(msgspec.Struct):
    """Arguments of an event."""

    frames: list[tuple[str, int, str]] = []
    lines: list[str] = []
    stacks: list[tuple[str, int, float, int, str, list[int]]] = []


_DECODER = msgspec.json.Decoder(_Args)
_Key = tuple[str, bool, str, tuple[Place, ...]]


@attrs.frozen
class Samples:
    """All stacks of a job.

    Attributes:
        stacks: the stacks, those with the most time first.
        sources: (file, line) → text of the line as it ran.
    """

    stacks: tuple[Sampled, ...] = ()
    sources: dict[tuple[str, int], str] = attrs.field(factory=dict)

    def source(self, place: Place) -> str:
        """Return the text of a line, or "" if it is unknown."""
        return self.sources.get((place.file, place.line), "")


@attrs.frozen
class Stack:
    """Time with one stack, in one event; fields as in `Sampled`."""

    phase: str
    long: bool
    leaf: str
    places: tuple[Place, ...]
    microseconds: int
    count: int


def decode_stacks(text: str) -> Iterator[Stack]:
    """Yield the stacks in the arguments of an event."""
    args = _decode(text)
    if args is not None:
        yield from _stacks(args, _places(args))


def _decode(text: str) -> _Args | None:
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _places(args: _Args) -> list[Place]:
    return [Place(_text(file), max(line, 1), _text(name)) for file, line, name in args.frames]


def _stacks(args: _Args, places: list[Place]) -> Iterator[Stack]:
    for phase, long, milliseconds, count, leaf, numbers in args.stacks:
        known = all(0 <= number < len(places) for number in numbers[-MAX_PLACES:])
        if not known or not math.isfinite(milliseconds) or not 0 <= milliseconds <= MAX_SECONDS * 1e3 or count < 0:
            continue
        stack = tuple(places[number] for number in numbers[-MAX_PLACES:])
        yield Stack(_text(phase), bool(long), _text(leaf), stack, round(milliseconds * 1e3), count)


class SampleFold:
    """Collects stacks; memory is bounded by processes and MAX_STACKS."""

    def __init__(self) -> None:
        self._sums: dict[
            str, dict[_Key, list[int]]
        ] = {}  # microseconds, so that sums do not depend on the order; samples
        self._sources: dict[tuple[str, int], str] = {}

    def update(self, window: EventWindow) -> None:
        """Add the events of one window."""
        events = window.new_events
        found = events.phase.mask(SAMPLES) if len(events) else np.zeros(0, np.bool_)
        if not found.any():
            return
        rows = events[found]
        for node, code in zip(rows.node.codes, rows.args.codes, strict=True):
            args = _decode(rows.args.values[code])
            if args is not None:
                self._add_event(rows.node.values[node], args)

    def _add_event(self, process: str, args: _Args) -> None:
        places = _places(args)
        for place, text in zip(places, args.lines, strict=False):
            if text and len(self._sources) < MAX_NAMES:
                self._sources[place.file, place.line] = _text(text)
        sums = self._sums.setdefault(process, {})
        for one in _stacks(args, places):
            _add(sums, (one.phase, one.long, one.leaf, one.places), one.microseconds, one.count)
        self._bound(process)

    def _bound(self, process: str) -> None:
        sums = self._sums[process]
        if len(sums) <= 2 * MAX_STACKS:
            return
        ranked = sorted(sums.items(), key=lambda item: (-item[1][0], str(item[0])))
        kept = dict(ranked[:MAX_STACKS])
        for (phase, long, _, _), (spent, count) in ranked[MAX_STACKS:]:
            _add(kept, (phase, long, "", ()), spent, count)
        self._sums[process] = kept

    def merge(self, other: SampleFold) -> None:
        """Add the events of a fold of other minutes or nodes."""
        for process, theirs in other._sums.items():
            sums = self._sums.setdefault(process, {})
            for key, (spent, count) in theirs.items():
                _add(sums, key, spent, count)
            self._bound(process)
        for place, text in other._sources.items():
            if len(self._sources) < MAX_NAMES:
                self._sources[place] = text

    def result(self) -> Samples:
        """Return all stacks."""
        return Samples(tuple(sorted(self._each(), key=_rank)), dict(self._sources))

    def _each(self) -> Iterable[Sampled]:
        for process, sums in self._sums.items():
            for (phase, long, leaf, places), (spent, count) in sums.items():
                yield Sampled(process, phase, long, places, leaf, spent / 1e6, count)


def _rank(one: Sampled) -> tuple[object, ...]:
    return (-one.seconds, one.process, one.phase, one.long, one.leaf, [(p.file, p.line) for p in one.places])


def _add(sums: dict[_Key, list[int]], key: _Key, spent: int, count: int) -> None:
    found = sums.setdefault(key, [0, 0])
    found[0] += spent
    found[1] += count


def _text(text: str) -> str:
    return sys.intern(printable(text[:MAX_TEXT]))
