"""Fold events into one row per step: the time of each part of the loop."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import EventColumns, Ints
from sm_profiler.formatting import natural_key
from sm_profiler.metrics.roles import (
    Switches,
    forward_only,
    joined_to_next,
    judged_by_role,
    with_evaluations,
    within_steps,
)
from sm_profiler.metrics.step_chunks import Chunk, chunks_of, exact, joined, pairs_of
from sm_profiler.metrics.step_rows import (
    COMMUNICATION,
    DECLARED_IN_STEP,
    EVAL,
    GC,
    IGNORED,
    LOADER,
    MODES,
    OVERHEAD,
    OWN,
    OWN_IN_STEP,
    QUEUED,
    RESULTS,
    STEP,
    TRAIN,
    StepRows,
    classify,
    column,
    columns,
)
from sm_profiler.metrics.step_sample import (
    MAX_STEPS,
    Judged,
    Moved,
    common_level,
    judged,
    level_of,
    limit_of,
    spread_results,
)

__all__ = [
    "COMMUNICATION", "DECLARED_IN_STEP", "EVAL", "GC", "LOADER", "MODES", "OWN", "OWN_IN_STEP", "QUEUED", "RESULTS", "TRAIN",
    "EventWindow", "LoaderSettings", "StepFold", "StepRows", "StepSummary", "classify", "column", "columns", "each_process",
    "spread_results",
]  # fmt: skip
_WINDOWS = re.compile(r'"windows_us": ?(\d{1,12}(?:\.\d+)?)')  # in the arguments of an event of the hook's own time


class EventWindow(Protocol):
    """The part of an evaluation window that this fold reads."""

    @property
    def start_us(self) -> int:
        """Start of the window, microseconds since the epoch."""

    @property
    def new_events(self) -> EventColumns:
        """Events of the window, each in one window only."""


@attrs.frozen(eq=False)
class LoaderSettings:
    """Settings of the data loader, -1 if unknown."""

    num_workers: int = -1
    pin_memory: int = -1


@attrs.frozen(eq=False)
class StepSummary:
    """Result of the fold; dictionaries by process name (`algo-1-0`)."""

    steps: dict[str, StepRows]
    loop: dict[str, tuple[float, float]]  # first and last moment of the loop, µs
    loader: LoaderSettings
    overhead_us: dict[str, float]  # time spent by the hook itself
    windows_us: dict[str, float]  # of it for its windows
    pids: dict[str, int]  # processes with this name; more than one after a restart
    declared_us: dict[str, dict[str, float]] = attrs.field(factory=dict)  # process → the script's own phases
    collected_us: dict[str, dict[str, float]] = attrs.field(factory=dict)  # process → part → garbage collections
    judged: dict[str, Judged] = attrs.field(factory=dict)  # processes of which only some steps were kept
    forward_only: dict[str, int] = attrs.field(factory=dict)  # process → recorded as training steps, and none
    within_steps: dict[str, int] = attrs.field(factory=dict)  # process → recorded as evaluation, and part of a step
    moved: dict[str, Moved] = attrs.field(factory=dict)  # process → where the moments of its steps are now

    def by_role(self, switches: Mapping[str, Switches]) -> StepSummary:
        """Return the steps by what they are for: forwards without gradients may be part of a training step, and the reverse.

        Args:
            switches: process → its models' switches to eval() mode and back.
        """
        steps, counts, joined, sampled = dict(self.steps), {}, {}, dict(self.judged)
        for name, rows in self.steps.items():
            switched = switches.get(name, Switches())
            if name in sampled:
                before = sampled[name]
                sampled[name] = judged_by_role(before, switched.count)
                joined[name] = before.steps - sampled[name].steps
                continue
            inside = within_steps(rows, switched.count)
            if inside.any():
                steps[name], joined[name] = joined_to_next(rows, inside), int(inside.sum())
                continue
            only = forward_only(rows)
            if only.any():
                counts[name] = int(only.sum())
                rows = attrs.evolve(rows, mode=np.where(only, EVAL, rows.mode).astype(rows.mode.dtype))
            steps[name] = with_evaluations(rows, switched.to_eval, switched.to_train)
        return attrs.evolve(self, steps=steps, judged=sampled, forward_only=counts, within_steps=joined)

    def until(self, at_us: float) -> StepSummary:
        """Return the steps that ended by a moment; a process without any, or of which some steps were kept, stays as it is."""
        steps, loop = dict(self.steps), dict(self.loop)
        for name, rows in self.steps.items():
            kept = rows.end <= at_us
            if name not in self.judged and kept.any() and not kept.all():
                steps[name] = rows[kept]
                loop[name] = (loop[name][0], min(loop[name][1], at_us))
        return attrs.evolve(self, steps=steps, loop=loop)


class StepFold:
    """Collects steps window by window; folds of other minutes or nodes merge.

    Needs 25 bytes a step, and 8 more for each part that is recorded, of at most about one and a half MAX_STEPS.
    """

    def __init__(self) -> None:
        self._chunks: dict[tuple[str, int], Chunk] = {}
        self._overhead: dict[str, float] = {}
        self._windows: dict[str, float] = {}
        self._pids: dict[str, set[int]] = {}
        self._loader = (-np.inf, -1, -1)  # of the latest event: its start, workers, pinned memory
        self._levels: dict[str, int] = {}
        self._held, self._room = 0, MAX_STEPS * 3 // 2  # steps, and how many may be held until some are left out

    def update(self, window: EventWindow) -> None:
        """Add the events of one window."""
        events = window.new_events
        if not len(events):
            return
        kinds = classify(events)
        self._remember_loader(events, kinds)
        is_step = kinds == STEP
        self._add_overhead(events, np.flatnonzero(kinds == OVERHEAD))
        for node, pid in pairs_of(events.node, events.pid, np.flatnonzero(is_step)):
            self._pids.setdefault(node, set()).update([pid] if pid >= 0 else [])
        loop = (events.worker_id < 0) | is_step | (kinds == column(LOADER))
        loop &= (kinds != IGNORED) & (kinds != OVERHEAD)
        for node, chunk in chunks_of(events, kinds, np.flatnonzero(loop)):
            key = node, window.start_us
            old = self._chunks.get(key)
            self._chunks[key] = chunk if old is None else joined([old, chunk])
            self._held += len(chunk.rows)
        self._bound()

    def _add_overhead(self, events: EventColumns, rows: Ints) -> None:
        codes = events.node.codes[rows]
        spent = np.bincount(codes, exact(events.duration_us[rows]))
        found = [_WINDOWS.search(events.args.values[code]) for code in events.args.codes[rows].tolist()]
        windows = np.bincount(codes, exact(np.asarray([float(one[1]) if one else 0.0 for one in found])))
        for code in np.flatnonzero(np.bincount(codes)):
            node = events.node.values[code]
            self._overhead[node] = self._overhead.get(node, 0.0) + float(spent[code])
            self._windows[node] = self._windows.get(node, 0.0) + float(windows[code])

    def _remember_loader(self, events: EventColumns, kinds: NDArray[np.int8]) -> None:
        known = (events.num_workers >= 0) & (kinds != STEP)
        if known.any():
            last = float(events.start_us[known].max())
            known &= events.start_us == last
            settings = zip(events.num_workers[known].tolist(), events.pin_memory[known].tolist(), strict=True)
            self._loader = max(self._loader, *((last, *one) for one in settings))

    def merge(self, other: StepFold) -> None:
        """Add the steps of a fold of other minutes or nodes."""
        for key, chunk in other._chunks.items():
            self._chunks[key] = joined([self._chunks[key], chunk]) if key in self._chunks else chunk
        for node, spent in other._overhead.items():
            self._overhead[node] = self._overhead.get(node, 0.0) + spent
        for node, spent in other._windows.items():
            self._windows[node] = self._windows.get(node, 0.0) + spent
        for node, pids in other._pids.items():
            self._pids.setdefault(node, set()).update(pids)
        self._loader = max(self._loader, other._loader)
        for node, level in other._levels.items():
            self._levels[node] = max(level, self._levels.get(node, 0))
        self._held += other._held
        self._bound()

    def join(self) -> None:
        """Join what is held of each process, for a fold that is copied again and again while it grows."""
        self._join()

    def _bound(self) -> None:
        if self._held > self._room:
            self._thin(self._join())
            self._room = max(MAX_STEPS, self._held) * 3 // 2

    def _join(self) -> dict[str, tuple[str, int]]:
        """Join the chunks of each process; return process → key of its chunk."""
        by_node: dict[str, list[tuple[str, int]]] = {}
        for key in sorted(self._chunks):
            by_node.setdefault(key[0], []).append(key)
        for keys in by_node.values():
            self._chunks[keys[0]] = joined([self._chunks.pop(key) for key in keys])
        return {node: keys[0] for node, keys in by_node.items()}

    def _thin(self, keys: dict[str, tuple[str, int]]) -> None:
        """Leave out steps of the processes that have more than their share."""
        found = {node: self._chunks[key] for node, key in keys.items() if len(self._chunks[key].rows)}
        limit = limit_of(len(found))
        for node, chunk in found.items():
            level = level_of(chunk.rows.start, chunk.stretch, self._levels.get(node, 0), limit)
            if level or chunk.sample is not None:
                self._levels[node] = level
                self._chunks[keys[node]] = chunk.thinned(level, limit)
        self._held = sum(len(self._chunks[key].rows) for key in keys.values())

    def _equalize(self, keys: dict[str, tuple[str, int]]) -> None:
        """Give processes with about as many steps the same level, so that they can be compared step by step."""
        levels = [self._levels.get(node, 0) for node in keys if len(self._chunks[keys[node]].rows)]
        common = common_level(levels) if levels else 0
        for node, key in keys.items():
            if common and self._levels.get(node, 0) == common - 1 and len(self._chunks[key].rows):
                self._levels[node] = common
                self._chunks[key] = self._chunks[key].thinned(common, MAX_STEPS)

    def depends_on_order(self) -> bool:
        """Return whether other steps are kept if nodes are merged later: some are left out, and others came late."""
        late = any(self._chunks[key].late for key in self._join().values())
        return late and (self._held > MAX_STEPS or bool(self._levels))

    def result(self) -> StepSummary:
        """Return all steps so far, each process in time order; from then on the fold holds the same arrays."""
        keys = self._join()
        if self._held > MAX_STEPS or self._levels:
            self._thin(keys)
            self._equalize(keys)
        joined = {node: self._chunks[key] for node, key in keys.items()}
        found = {
            node: judged(chunk.rows, chunk.sample, self._levels[node])
            for node, chunk in joined.items()
            if chunk.sample is not None
        }
        steps = {
            node: chunk.rows if node in found else spread_results(chunk.rows)
            for node, chunk in joined.items()
            if len(chunk.rows)
        }
        moves = {
            node: found[node].moved if node in found else Moved.of(joined[node].rows, rows)
            for node, rows in steps.items()
        }
        return StepSummary(
            steps=steps,
            loop={node: (joined[node].first_us, joined[node].last_us) for node in steps},
            loader=LoaderSettings(*self._loader[1:]),
            overhead_us=dict(sorted(self._overhead.items())),
            windows_us=dict(sorted(self._windows.items())),
            pids={node: len(pids) for node, pids in sorted(self._pids.items())},
            declared_us={node: joined[node].declared for node in steps if joined[node].declared},
            collected_us={node: joined[node].collected for node in steps if joined[node].collected},
            judged=found,
            moved={node: moved for node, moved in moves.items() if moved is not None},
        )


def each_process(found: StepSummary) -> Iterator[tuple[str, StepRows]]:
    """Yield the processes and their steps in natural order: algo-2 before algo-10, rank 9 before rank 10."""
    yield from sorted(found.steps.items(), key=lambda item: natural_key(item[0]))
