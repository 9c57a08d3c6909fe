"""Fold the Python stacks that the hook samples: time by process, phase, length of the step, and stack."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence

import attrs
import msgspec
import numpy as np

from sm_profiler.formats.event_names import SAMPLES
from sm_profiler.metrics.step_fold import EventWindow
from sm_profiler.printable import printable

MAX_STACKS = 5_000  # kept per process, those with the most time; the others are summed up by phase
MAX_NAMES = 100_000  # texts of source lines
MAX_TEXT = 400  # characters of a file, a function or a line
MAX_PLACES = 64
MAX_SECONDS = 1e6  # of one stack in one event; more is damage
SPAN = 1 << 19  # microseconds of the shortest spans over which a line's time is kept
MAX_PERIOD = 3600.0  # seconds that one event covers
MAX_SPANS = 128  # of a process; longer jobs have longer spans
MAX_LINES = 500  # of a process whose time is kept by span, those with the most


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

    @property
    def part(self) -> str:
        """Phase as a part of the loop.

        A step whose phases are not recorded ends for the sampler with the next fetch, so what it saw between the phases of
        such steps may lie after the last.
        """
        return "outside" if self.phase == "between" else self.phase


class _Args(msgspec.Struct):
    """Arguments of an event."""

    frames: list[tuple[str, int, str]] = []
    lines: list[str] = []
    seconds: float = 0.0
    stacks: list[tuple[str, int, float, int, str, list[int]]] = []
    waited_ms: list[float] = []


_MODULES = "torch.nn."  # start of the functions of a forward pass
_DECODER = msgspec.json.Decoder(_Args)
_Key = tuple[int, str, bool, str, tuple[Place, ...]]  # pid, and fields as in `Sampled`


@attrs.frozen
class Samples:
    """All stacks of a job.

    Attributes:
        stacks: the stacks, those with the most time first.
        sources: (file, line) → text of the line as it ran.
        course: process → time of the innermost lines over the course of the job.
        waited: process → seconds in which its training thread had no core: in usual steps, in long ones.
    """

    stacks: tuple[Sampled, ...] = ()
    sources: dict[tuple[str, int], str] = attrs.field(factory=dict)
    course: dict[str, Course] = attrs.field(factory=dict)
    waited: dict[str, tuple[float, float]] = attrs.field(factory=dict)

    def source(self, place: Place) -> str:
        """Return the text of a line, or "" if it is unknown."""
        return self.sources.get((place.file, place.line), "")

    def within_steps(self, processes: Collection[str]) -> Samples:
        """Return the samples with those of evaluation in some processes as samples of training steps."""

        def inside(one: Sampled) -> Sampled:
            if one.phase != "evaluation" or one.process not in processes:
                return one
            return attrs.evolve(one, phase="forward" if one.leaf.startswith(_MODULES) else "between")

        return attrs.evolve(self, stacks=tuple(map(inside, self.stacks))) if processes else self


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
    return [Place(shown_text(file), max(line, 1), shown_text(name)) for file, line, name in args.frames]


def _stacks(args: _Args, places: list[Place]) -> Iterator[Stack]:
    for phase, long, milliseconds, count, leaf, numbers in args.stacks:
        known = all(0 <= number < len(places) for number in numbers[-MAX_PLACES:])
        if not known or not math.isfinite(milliseconds) or not 0 <= milliseconds <= MAX_SECONDS * 1e3 or count < 0:
            continue
        stack = tuple(places[number] for number in numbers[-MAX_PLACES:])
        yield Stack(shown_text(phase), bool(long), shown_text(leaf), stack, round(milliseconds * 1e3), count)


@attrs.define
class Course:
    """Time of lines in consecutive spans of a job.

    Spans become twice as long whenever there are too many, so the order of the events makes no difference.

    Attributes:
        width: microseconds of a span.
        first, last: numbers of the first and the last span with samples.
        lines: (phase, line) → number of the span → microseconds and samples.
    """

    width: int = SPAN
    first: int = sys.maxsize
    last: int = -sys.maxsize
    lines: dict[tuple[str, Place], dict[int, tuple[int, int]]] = attrs.field(factory=dict)

    def add(self, key: tuple[str, Place], at_us: int, spent: int, count: int) -> None:
        """Add samples of a line at a moment."""
        self._add_span(key, at_us // self.width, (spent, count))

    def merge(self, other: Course) -> None:
        """Add the lines of another part of the job."""
        while self.width < other.width:
            self._widen()
        times = self.width // other.width
        for key, spans in other.lines.items():
            for number, span in spans.items():
                self._add_span(key, number // times, span)

    def bound(self) -> None:
        """Widen the spans, and drop the lines with the least time, until there are not too many."""
        while self.last - self.first >= MAX_SPANS:
            self._widen()
        if len(self.lines) > 2 * MAX_LINES:
            total = {key: sum(spent for spent, _ in spans.values()) for key, spans in self.lines.items()}
            kept = sorted(total, key=lambda key: (-total[key], str(key)))[:MAX_LINES]
            self.lines = {key: self.lines[key] for key in kept}

    def _widen(self) -> None:
        narrow, self.lines = self.lines, {}
        self.width *= 2
        self.first, self.last = self.first // 2, self.last // 2
        for key, spans in narrow.items():
            for number, span in spans.items():
                self._add_span(key, number // 2, span)

    def _add_span(self, key: tuple[str, Place], number: int, more: tuple[int, int]) -> None:
        self.first, self.last = min(self.first, number), max(self.last, number)
        spans = self.lines.setdefault(key, {})
        spent, count = spans.get(number, (0, 0))
        spans[number] = spent + more[0], count + more[1]

    def within(self, start: float, end: float) -> Iterable[tuple[str, Place, float, int]]:
        """Yield phase, line, seconds and samples of the spans whose middle lies between two moments."""
        for (phase, place), spans in self.lines.items():
            found = [one for number, one in spans.items() if start <= (number + 0.5) * self.width / 1e6 < end]
            if found:
                yield phase, place, sum(spent for spent, _ in found) / 1e6, sum(count for _, count in found)


class SampleFold:
    """Collects stacks; memory is bounded by processes, MAX_STACKS, MAX_LINES and MAX_SPANS."""

    def __init__(self) -> None:
        self._sums: dict[
            str, dict[_Key, list[int]]
        ] = {}  # microseconds, so that sums do not depend on the order; samples
        self._sources: dict[tuple[str, int], str] = {}
        self._course: dict[str, Course] = {}
        # process and pid → microseconds without a core: in usual steps, in long ones
        self._waited: dict[tuple[str, int], list[int]] = {}

    def update(self, window: EventWindow) -> None:
        """Add the events of one window."""
        events = window.new_events
        found = events.phase.mask(SAMPLES) if len(events) else np.zeros(0, np.bool_)
        if not found.any():
            return
        rows = events[found]
        columns = rows.node.codes, rows.pid.tolist(), rows.args.codes, rows.start_us.tolist()
        for node, pid, code, at_us in zip(*columns, strict=True):
            args = _decode(rows.args.values[code])
            if args is not None and math.isfinite(at_us):
                self._add_event(rows.node.values[node], pid, args, at_us)

    def _add_event(self, process: str, pid: int, args: _Args, at_us: float) -> None:
        places = _places(args)
        for place, text in zip(places, args.lines, strict=False):
            if text:
                self._add_source((place.file, place.line), shown_text(text))
        sums, course = self._sums.setdefault(process, {}), self._course.setdefault(process, Course())
        middle_us = round(at_us - (min(args.seconds, MAX_PERIOD) if args.seconds > 0 else 0.0) / 2 * 1e6)
        for one in _stacks(args, places):
            _add(sums, (pid, one.phase, one.long, one.leaf, one.places), one.microseconds, one.count)
            if one.places:
                course.add((one.phase, one.places[-1]), middle_us, one.microseconds, one.count)
        waited = [round(one * 1e3) for one in args.waited_ms if 0 <= one <= MAX_SECONDS * 1e3]
        self._add_waits((process, pid), waited)
        self._bound(process)

    def _add_source(self, place: tuple[str, int], text: str) -> None:
        """Keep a line's text: of several, and of too many lines, those that any order of a job's parts keeps."""
        self._sources[place] = max(text, self._sources.get(place, ""))
        if len(self._sources) > 2 * MAX_NAMES:
            self._bound_sources()

    def _bound_sources(self) -> None:
        self._sources = dict(sorted(self._sources.items())[:MAX_NAMES])

    def _add_waits(self, key: tuple[str, int], waited: Sequence[int]) -> None:
        before = self._waited.get(key, [0, 0])
        if len(waited) == len(before):
            self._waited[key] = [one + more for one, more in zip(before, waited, strict=True)]

    def _bound(self, process: str) -> None:
        sums = self._sums[process]
        self._course[process].bound()
        if len(sums) <= 2 * MAX_STACKS:
            return
        ranked = sorted(sums.items(), key=lambda item: (-item[1][0], str(item[0])))
        kept = dict(ranked[:MAX_STACKS])
        for (pid, phase, long, _, _), (spent, count) in ranked[MAX_STACKS:]:
            _add(kept, (pid, phase, long, "", ()), spent, count)
        self._sums[process] = kept

    def merge(self, other: SampleFold) -> None:
        """Add the events of a fold of other minutes or nodes."""
        for process, theirs in other._sums.items():
            sums = self._sums.setdefault(process, {})
            self._course.setdefault(process, Course()).merge(other._course[process])
            for key, (spent, count) in theirs.items():
                _add(sums, key, spent, count)
            self._bound(process)
        for of, waited in other._waited.items():
            self._add_waits(of, waited)
        for place, text in other._sources.items():
            self._add_source(place, text)

    def result(self, left_out: Collection[tuple[str, int]] = ()) -> Samples:
        """Return all stacks but those of some processes, given by name and pid: an earlier training's."""
        self._bound_sources()
        stacks, waited = list[Sampled](), dict[str, tuple[float, float]]()
        for process, sums in self._sums.items():
            found: dict[_Key, list[int]] = {}
            for (pid, phase, long, leaf, places), (spent, count) in sums.items():
                if (process, pid) not in left_out:
                    _add(found, (-1, phase, long, leaf, places), spent, count)
            for (_, phase, long, leaf, places), (spent, count) in found.items():
                stacks.append(Sampled(process, phase, long, places, leaf, spent / 1e6, count))
        for process, pid in sorted(self._waited.keys() - left_out):
            before, more = waited.get(process, (0.0, 0.0)), self._waited[process, pid]
            waited[process] = before[0] + more[0] / 1e6, before[1] + more[1] / 1e6
        course = copy.deepcopy(dict(sorted(self._course.items())))
        return Samples(tuple(sorted(stacks, key=_rank)), dict(self._sources), course, waited)


def _rank(one: Sampled) -> tuple[object, ...]:
    return (-one.seconds, one.process, one.phase, one.long, one.leaf, [(p.file, p.line) for p in one.places])


def _add(sums: dict[_Key, list[int]], key: _Key, spent: int, count: int) -> None:
    found = sums.setdefault(key, [0, 0])
    found[0] += spent
    found[1] += count


def shown_text(text: str) -> str:
    """Return a text of a profile, which anyone may have written, without what cannot be shown."""
    return sys.intern(printable(text[:MAX_TEXT]))
