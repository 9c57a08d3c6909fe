"""Processes and lanes of a timeline: slices of a lane nest, and those that would cross are moved to another one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import attrs
import numpy as np

from sm_profiler.formats.columns import Ints, Mask
from sm_profiler.formatting import shorten
from sm_profiler.timeline.trace_json import Announce, JsonTrace

LOOP, FORWARD_MODULES, BACKWARD_MODULES, LOADER, COMMUNICATION, OWN = (
    "loop",
    "modules, forward",
    "modules, backward",
    "data loading",
    "communication",
    "profiler",
)
MAX_LANES = 64  # of one name; more overlapping events than this are counted, not written
_FAR = 1 << 62  # nanoseconds, beyond any time
_DEEPEST = 100  # slices within each other that are checked together
_ROUNDS = 8  # slices of a stretch without a gap that may cross, before its lane is filled one by one


@attrs.define
class Lane:
    """Slices of one thread; `stack` contains the ends of the open ones.

    Attributes:
        thread: its number in the process.
        track: its number in the timeline.
    """

    thread: int
    track: int
    stack: list[float] = attrs.field(factory=list)
    last_start: float = -np.inf

    def takes(self, start: float, end: float) -> bool:
        """Add a slice if it nests here; return whether it does."""
        if start < self.last_start:  # arrived late: it may cross slices that are already closed
            return False
        while self.stack and self.stack[-1] <= start:
            self.stack.pop()
        if self.stack and end > self.stack[-1]:
            return False
        self.stack.append(end)
        self.last_start = start
        return True


@attrs.define
class Process:
    """A process of the timeline: its number and its lanes by name."""

    number: int
    lanes: dict[str, list[Lane]] = attrs.field(factory=dict)
    threads: int = 0


class Lanes:
    """The processes and lanes of a timeline.

    Attributes:
        processes: by name.
        tracks: process and thread of each lane.
    """

    def __init__(self, sink: JsonTrace) -> None:
        self._sink = sink
        self.processes: dict[str, Process] = {}
        self.tracks: list[tuple[int, int]] = []
        self._unnamed: list[Announce] = []

    def process(self, name: str, *, order: int = 0) -> Process:
        """Return a process."""
        found = self.processes.get(name)
        if found is None:
            found = self.processes[name] = Process(len(self.processes) + 1)
            shown = shorten(name, 200), order or found.number
            self._unnamed.append(partial(self._sink.name_process, found.number, *shown))
        return found

    def names(self) -> list[Announce]:
        """Return what names the processes and lanes that are new since the last call."""
        found, self._unnamed = self._unnamed, []
        return found

    def lane(self, process: Process, name: str, start: float, end: float, *, after: int = 0) -> Lane | None:
        """Return the lane that takes a slice, after the first ones; None if too many others overlap with it."""
        lanes = process.lanes.get(name, [])
        for one in lanes[after:]:
            if one.takes(start, end):
                return one
        if len(lanes) >= MAX_LANES:
            return None
        fresh = self._add(process, name)
        fresh.takes(start, end)
        return fresh

    def _add(self, process: Process, name: str) -> Lane:
        lanes = process.lanes.setdefault(name, [])
        process.threads += 1
        fresh = Lane(process.threads, len(self.tracks))
        lanes.append(fresh)
        self.tracks.append((process.number, fresh.thread))
        label = name if len(lanes) == 1 else f"{name} ({len(lanes)})"
        shown = shorten(label, 200), _order(name) * 1000 + len(lanes)
        self._unnamed.append(partial(self._sink.name_thread, process.number, fresh.thread, *shown))
        return fresh

    def place(
        self, kinds: Sequence[tuple[str, str]], kind: Ints, start: Ints, end: Ints
    ) -> tuple[Ints, dict[int, list[Announce]]]:
        """Do for many slices, sorted by start, what `lane` does for one.

        What the first lane of a kind takes is found for all slices at once. The others are placed one by one, and so are
        the kinds of which too many slices cross.

        Args:
            kinds: name of the process and of the lane; each only once.
            kind: index into `kinds` of each slice.
            start: nanoseconds.
            end: nanoseconds.

        Returns:
            The track of each slice, -1 if too many overlap with it; and row → what names what is new there.
        """
        known = [self._first(*each) for each in kinds]
        together = _Together.of(known, kind, start, end)
        singly = ~together.taken
        for row in together.first_rows.values():
            singly[row] = True
        track = np.empty(len(kind), np.int64)
        named: dict[int, list[Announce]] = {}
        rows = np.flatnonzero(singly)
        for row, number, begin, until, taken in zip(
            *(column.tolist() for column in (rows, kind[rows], start[rows], end[rows], together.taken[rows])),
            strict=True,
        ):
            process = self.process(kinds[number][0])
            lane: Lane | None
            if taken:
                lane = known[number] = self._add(process, kinds[number][1])
            else:
                after = 0 if number in together.unknown else 1
                lane = self.lane(process, kinds[number][1], begin, until, after=after)
            track[row] = -1 if lane is None else lane.track
            if self._unnamed:
                named[row] = self.names()
        for number, (begun, last_start, ends) in together.states.items():
            owner = known[number]
            if owner is not None:
                owner.stack = [one for one in owner.stack if one > begun] + ends
                owner.last_start = max(owner.last_start, last_start)
        tracks = np.array([-1 if lane is None else lane.track for lane in known])
        np.copyto(track, tracks[kind], where=together.taken)
        return track, named

    def _first(self, process: str, lane: str) -> Lane | None:
        found = self.processes.get(process)
        return found.lanes[lane][0] if found is not None and lane in found.lanes else None


@attrs.frozen(eq=False)
class _Together:
    """The slices that the first lanes of their kinds take.

    Attributes:
        taken: True for each of them.
        first_rows: kind without lanes so far → its first slice.
        states: kind → start of the last slice that came, of the last one taken, and the ends of those taken that are open.
        unknown: kinds of which it is not known what the first lane takes.
    """

    taken: Mask
    first_rows: dict[int, int]
    states: dict[int, tuple[int, int, list[float]]]
    unknown: set[int]

    @classmethod
    def of(cls, lanes: Sequence[Lane | None], kind: Ints, start: Ints, end: Ints) -> _Together:
        taken = np.zeros(len(kind), np.bool_)
        latest = np.array([-_FAR if lane is None else round(min(max(lane.last_start, -_FAR), _FAR)) for lane in lanes])
        rows = np.flatnonzero(start >= latest[kind])
        low, high = (int(start[rows].min()), int(end[rows].max()) + 1) if len(rows) else (0, 0)
        span = high - low + 1
        if not len(rows) or span * len(lanes) >= _FAR:
            return cls(taken, {}, {}, set(range(len(lanes))))
        # Slices that are open from before come first in their lane. Lanes follow each other in time, as parts of one.
        held = [
            (number, round(min(max(one, low), high)))
            for number, lane in enumerate(lanes)
            if lane is not None
            for one in lane.stack
        ]
        owner = np.concatenate([np.array([number for number, _ in held], np.int64), kind[rows]])
        order = np.argsort(owner.astype(np.uint16) if len(lanes) <= 1 << 16 else owner, kind="stable")
        owner = owner[order]
        own_time = owner * span - low
        begins = np.concatenate([np.full(len(held), low), start[rows]])[order] + own_time
        ends = np.concatenate([np.array([one for _, one in held], np.int64), end[rows]])[order] + own_time
        refused, unknown = _refused(owner, begins, ends, len(lanes))
        begun = np.full(len(lanes), -_FAR)
        begun[owner] = begins - own_time  # of several, the last one stays
        kept = np.flatnonzero(~refused)
        owner, begins, ends, place = owner[kept], begins[kept], ends[kept], order[kept] - len(held)
        begins -= own_time[kept]
        ends -= own_time[kept]
        is_slice = place >= 0
        taken[rows[place[is_slice]]] = True
        first, last = np.zeros(len(lanes), np.int64), np.full(len(lanes), -_FAR)
        first[owner[::-1]] = np.arange(len(kept))[::-1]
        last[owner[is_slice]] = begins[is_slice]
        came = np.flatnonzero(np.bincount(kind[rows], minlength=len(lanes)))
        states: dict[int, tuple[int, int, list[float]]] = {
            number: (int(begun[number]), int(last[number]), []) for number in came.tolist() if number not in unknown
        }
        for row in np.flatnonzero(is_slice & (ends > begun[owner])).tolist():
            states[int(owner[row])][2].append(int(ends[row]))
        first_rows = {number: int(rows[place[first[number]]]) for number in states if lanes[number] is None}
        return cls(taken, first_rows, states, unknown)


def _refused(owner: Ints, start: Ints, end: Ints, lanes: int) -> tuple[Mask, set[int]]:
    """Return which slices their lane does not take, and the lanes of which all are refused as too many cross."""
    refused = np.zeros(len(owner), np.bool_)
    rows = np.arange(len(owner))
    for _ in range(_ROUNDS):
        crossing = rows[_first_crossing(start[rows], end[rows])]
        if not len(crossing):
            return refused, set()
        refused[crossing] = True
        again = np.zeros(lanes, np.bool_)
        again[owner[crossing]] = True
        rows = rows[again[owner[rows]] & ~refused[rows]]
    refused |= again[owner]
    return refused, set(np.flatnonzero(again).tolist())


def _first_crossing(start: Ints, end: Ints) -> Ints:
    """Return the first slice that crosses an earlier one, of each stretch without a gap.

    What begins when all before it are over is outermost. The others are inside the last outermost one, or cross its end;
    among themselves they are checked in the same way.
    """
    found = np.zeros(len(start), np.bool_)
    stretch = np.zeros(len(start), np.int64)
    rows = np.arange(len(start))
    for depth in range(_DEEPEST):
        begins, ends = start[rows], end[rows]
        latest = np.maximum.accumulate(ends)[:-1]
        inner = begins[1:] < latest
        if not depth:
            stretch[1:] = np.cumsum(~inner)
        rows = rows[1:]
        found[rows[inner & (ends[1:] > latest)]] = True
        rows = rows[inner]
        if not len(rows):
            break
    found[rows] = True
    crossing = np.flatnonzero(found)
    return crossing[np.diff(stretch[crossing], prepend=-1) > 0]


def _order(lane: str) -> int:
    known = (
        LOOP,
        LOADER,
        FORWARD_MODULES,
        BACKWARD_MODULES,
        "operators",
        "host thread",
        "GPU",
        COMMUNICATION,
        "loader worker",
        OWN,
    )
    return next((place for place, name in enumerate(known) if lane.startswith(name)), len(known))
