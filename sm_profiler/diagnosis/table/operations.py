"""A step as a graph of operations, and its replay: what would it take if some of them were faster?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.table.naming import (
    activity_of,
    is_communication,
    is_pass,
    is_received,
    is_sent,
    runs_backward,
)
from sm_profiler.formats.columns import Category, Floats, Ints, Mask

MAX_REPLAYED = 4_000_000  # durations held for a replay: operations of a step times steps; 32 MB


@attrs.frozen(eq=False)
class Level:
    """Nodes of a graph that follow only nodes of earlier levels.

    Attributes:
        nodes: the nodes.
        before: those that each of them follows, one node's after the other's.
        first: where each node's begin in `before`.
    """

    nodes: Ints
    before: Ints
    first: Ints


@attrs.frozen(eq=False)
class Operations:
    """Operations that occur in every step, in the order in which each rank ran them.

    Operations of several ranks that end together, because the ranks met, are one node of the graph. A node begins when
    all that came before it on its ranks is done, and takes its own time from then on: waiting for other ranks is no
    property of a node, but follows from the graph.

    Attributes:
        steps: numbers of the steps.
        names: operation of each node.
        ranks: rank of each node, as an index; -1 where ranks meet.
        stages: pipeline stage of each node, as an index; -1 where ranks meet.
        order: the occurrence of each node: how often its rank ran the operation before it in the step.
        seconds: time of each node in each step, shape (nodes, steps).
        levels: nodes that can be replayed together, each group after those before it.
        recorded: seconds of each step as recorded.
        parties: ranks of each node, as indices; several where ranks meet.
    """

    steps: Ints
    names: Category
    ranks: Ints
    stages: Ints
    order: Ints
    seconds: Floats
    levels: Sequence[Level]
    recorded: Floats
    parties: Sequence[Sequence[int]] = ()

    def step_seconds(self, seconds: Floats | None = None) -> Floats:
        """Return how long each step takes if the nodes take `seconds`; by default as long as they took."""
        done = (self.seconds if seconds is None else seconds).copy()
        for level in self.levels:
            done[level.nodes] += np.maximum.reduceat(done[level.before], level.first, axis=0)
        return np.asarray(done.max(axis=0, initial=0.0))

    @cached_property
    def error(self) -> float:
        """Median difference of replayed steps from the recorded ones, as a share: the model's own error."""
        replayed = self.step_seconds()
        return float(np.median(np.abs(replayed / np.where(self.recorded > 0, self.recorded, 1.0) - 1)))

    @classmethod
    def of_activities(cls, keys: Sequence[str], stages: Ints, tables: Sequence[Floats], steps: Ints) -> Operations:
        """Return a graph in which each rank runs its activities one after the other, and the step ends with the slowest rank.

        Args:
            keys: the activities.
            stages: stage of each rank.
            tables: seconds of each activity, shape (ranks, steps).
            steps: numbers of the steps.
        """
        count = len(stages)
        ranks, rows = np.tile(np.arange(count), len(keys)), np.arange(count * len(keys)).reshape(len(keys), count)
        levels = [Level(after, before, np.arange(count)) for before, after in pairwise(rows)]
        names = Category(np.repeat(np.arange(len(keys), dtype=np.int32), count), tuple(keys))
        recorded = np.sum(tables, axis=0).max(axis=0)
        return cls(
            steps, names, ranks, stages[ranks], np.zeros(len(ranks), np.int64), np.concatenate(tables), levels, recorded
        )

    def at(self, rows: slice) -> Operations:
        """Return the graph of some of the steps."""
        return attrs.evolve(self, steps=self.steps[rows], seconds=self.seconds[:, rows], recorded=self.recorded[rows])

    @property
    def local(self) -> Mask:
        """Mask of the nodes that run on one rank alone."""
        return np.asarray(self.ranks >= 0)

    @cached_property
    def activities(self) -> Category:
        """Activity of each node."""
        found = Category.of(activity_of(name) for name in self.names.values)
        return Category(found.codes[self.names.codes], found.values)

    def named(self, name: str) -> Mask:
        """Return which nodes are of an operation, or of an activity."""
        return np.asarray(self.names.mask(name) | self.activities.mask(name))


def sums_by_rank(seconds: Floats, ranks: Ints, count: int) -> Floats:
    """Return the seconds of each rank and step, shape (count, steps), from those of nodes, shape (nodes, steps)."""
    found = np.zeros((count, seconds.shape[1]))
    order = np.argsort(ranks, kind="stable")
    present, first = np.unique(ranks[order], return_index=True)
    if len(present):
        found[present] = np.add.reduceat(seconds[order], first, axis=0)
    return found


@attrs.frozen(eq=False)
class _Recorded:
    """Operations of one rank, one row for each that all steps have: name, occurrence, start and end by step."""

    names: list[str]
    order: list[int]
    start: Floats
    end: Floats


def build_operations(
    rank: Ints, stage: Ints, step: Ints, names: Sequence[str], code: Ints, start: Floats, end: Floats
) -> Operations | None:
    """Return the operations of a table, or None if its steps have too little in common to be replayed.

    Args:
        rank, stage, step: of each row; the stage is -1 for ranks that belong to none.
        names: names of operations.
        code: index into `names` of each row.
        start, end: seconds; all ranks have the same clock.
    """
    steps, by_rank = np.unique(step), np.argsort(rank, kind="stable")
    ranks, first = np.unique(rank[by_rank], return_index=True)
    recorded: dict[int, _Recorded] = {}
    stages: dict[int, int] = {}
    kept = np.ones(len(steps), np.bool_)
    for each, rows in zip(ranks.tolist(), np.split(by_rank, first[1:]), strict=True):
        found = _of_rank(step[rows], code[rows], start[rows], end[rows], steps, names)
        if found is None:
            return None
        recorded[each], complete = found
        stages[each] = int(np.median(stage[rows]))
        kept &= complete
    count = sum(len(one.names) for one in recorded.values())
    if not kept.any() or count * int(kept.sum()) > MAX_REPLAYED or len(ranks) < 2:
        return None
    recorded = {
        each: attrs.evolve(one, start=one.start[:, kept], end=one.end[:, kept]) for each, one in recorded.items()
    }
    return _graph(recorded, stages, steps[kept])


def _of_rank(
    step: Ints, code: Ints, start: Floats, end: Floats, steps: Ints, names: Sequence[str]
) -> tuple[_Recorded, Mask] | None:
    """Return a rank's operations as rows over steps, and the steps that have all of them; None without a common form."""
    order = np.lexsort((start, code, step))
    step, code, start, end = step[order], code[order], start[order], end[order]
    group = np.flatnonzero(np.r_[True, (np.diff(step) != 0) | (np.diff(code) != 0)])
    occurrence = np.arange(len(step)) - np.repeat(group, np.diff(np.r_[group, len(step)]))
    key = code.astype(np.int64) * (int(occurrence.max(initial=0)) + 1) + occurrence
    column = np.searchsorted(steps, step)
    per_step = np.bincount(column, minlength=len(steps))
    usual = int(np.median(per_step[per_step > 0]))
    complete = per_step == usual
    kinds, counts = np.unique(key[complete[column]], return_counts=True)
    kinds = kinds[counts == int(complete.sum())]
    if len(kinds) != usual:  # the steps differ in what they run
        return None
    keep = complete[column]
    row = np.searchsorted(kinds, key[keep])
    table = np.full((2, len(kinds), len(steps)), np.nan)
    table[0, row, column[keep]], table[1, row, column[keep]] = start[keep], end[keep]
    width = int(occurrence.max(initial=0)) + 1
    found = _Recorded([names[at] for at in kinds // width], (kinds % width).tolist(), table[0], table[1])
    return found, complete


def _graph(recorded: Mapping[int, _Recorded], stages: Mapping[int, int], steps: Ints) -> Operations | None:
    """Join the ranks' operations where they meet, and find what each follows."""
    names, ranks, order = [], [], []
    for each, found in recorded.items():
        names += found.names
        order += found.order
        ranks += [each] * len(found.names)
    start = np.concatenate([one.start for one in recorded.values()])
    end = np.concatenate([one.end for one in recorded.values()])
    node_of = _meetings(names, ranks, order, stages, start, end)
    count = int(node_of.max()) + 1
    members: list[list[int]] = [[] for _ in range(count)]
    for at, node in enumerate(node_of.tolist()):
        members[node].append(at)
    follows: list[set[int]] = [set() for _ in range(count)]
    first = 0
    for found in recorded.values():
        rows = np.arange(first, first + len(found.names))
        first += len(found.names)
        for at, earlier in _sequence(rows, names, start, end):
            follows[node_of[at]] |= {int(node_of[one]) for one in earlier}
    for at, earlier_at in _handed_on(names, ranks, order, stages, start, end):
        follows[node_of[at]].add(int(node_of[earlier_at]))
    levels = _levels([one - {node} for node, one in enumerate(follows)])
    if levels is None:
        return None
    meets = [len(one) > 1 for one in members]
    index = {each: place for place, each in enumerate(recorded)}
    seconds = np.asarray([end[one].max(axis=0) - start[one].max(axis=0) for one in members])
    rank = np.asarray([-1 if met else index[ranks[one[0]]] for one, met in zip(members, meets, strict=True)])
    stage = np.asarray([-1 if met else stages[ranks[one[0]]] for one, met in zip(members, meets, strict=True)])
    return Operations(
        steps, Category.of(names[one[0]] for one in members), rank, stage, np.asarray([order[one[0]] for one in members]),
        np.maximum(seconds, 0.0), levels, np.asarray(end.max(axis=0) - start.min(axis=0)),
        [sorted({index[ranks[at]] for at in one}) for one in members],
    )  # fmt: skip


def _meetings(
    names: Sequence[str],
    ranks: Sequence[int],
    order: Sequence[int],
    stages: Mapping[int, int],
    start: Floats,
    end: Floats,
) -> Ints:
    """Return a number for each operation; those in which ranks meet have the same one.

    What a stage sends, the next stage receives; a collective is left by all its ranks at once, which shows whether those
    of a stage, those at the same place of each stage, or all ranks take part.
    """
    place = _places(stages)
    last = max(stages.values())
    keys: list[tuple[object, ...]] = []
    by_name: dict[str, list[int]] = defaultdict(list)
    for at, name in enumerate(names):
        rank = ranks[at]
        if is_sent(name) or is_received(name):
            towards = -1 if runs_backward(name) else 1
            sender = stages[rank] if is_sent(name) else stages[rank] - towards
            keys.append(("between stages", runs_backward(name), sender % (last + 1), place[rank], order[at]))
        else:
            keys.append(("alone", at))
            if is_communication(name):
                by_name[name].append(at)
    groups = (
        lambda _: "all", lambda rank: ("stage", stages[rank]), lambda rank: ("place", place[rank]),
    )  # fmt: skip
    for name, rows in by_name.items():
        for group in groups:
            joined: dict[object, list[int]] = defaultdict(list)
            for at in rows:
                joined[group(ranks[at]), order[at]].append(at)
            if all(_end_together(start[one], end[one]) for one in joined.values()):
                for key, members in joined.items():
                    for at in members:
                        keys[at] = (name, key)
                break
    numbers: dict[tuple[object, ...], int] = {}
    return np.asarray([numbers.setdefault(key, len(numbers)) for key in keys])


def _end_together(start: Floats, end: Floats) -> bool:
    """Return whether ranks that run an operation leave it together: nearly all of it is over when the first does."""
    longest = (end - start).max(axis=0)
    return bool(np.median(np.ptp(end, axis=0) - (1 - limits.MOST) * longest) <= 0)


def _sequence(rows: Ints, names: Sequence[str], start: Floats, end: Floats) -> list[tuple[int, list[int]]]:
    """Return what each operation of a rank follows: the one before it, and communication that was done by then.

    Operations that overlap, as a send and a receive that are posted together, do not follow each other.
    """
    begins, ends = np.median(start[rows], axis=1), np.median(end[rows], axis=1)
    found = []
    by_time = np.lexsort((ends, begins))
    for position, at in enumerate(by_time.tolist()):
        earlier: list[int] = []
        for other in by_time[:position][::-1].tolist():
            middle = (begins[other] + ends[other]) / 2
            if begins[at] < middle or (
                is_communication(names[rows[at]]) and is_communication(names[rows[other]]) and begins[at] < ends[other]
            ):
                continue
            earlier.append(int(rows[other]))
            if not is_communication(names[rows[other]]):
                break
        found.append((int(rows[at]), earlier))
    return found


def _handed_on(
    names: Sequence[str],
    ranks: Sequence[int],
    order: Sequence[int],
    stages: Mapping[int, int],
    start: Floats,
    end: Floats,
) -> Iterator[tuple[int, int]]:
    """Yield which pass follows which of another stage, if no sends are recorded: a microbatch goes on when it is done there."""
    if any(is_sent(name) or is_received(name) for name in names):
        return
    place = _places(stages)
    passes = {(name, order[at], place[ranks[at]], stages[ranks[at]]): at for at, name in enumerate(names)}
    for (name, occurrence, at_place, stage), at in passes.items():
        earlier = passes.get((name, occurrence, at_place, stage + (1 if runs_backward(name) else -1)))
        if earlier is not None and is_pass(name):
            late = (1 - limits.MOST) * np.median(end[earlier] - start[earlier])
            if np.median(end[earlier] - start[at]) <= late:
                yield at, earlier


def _places(stages: Mapping[int, int]) -> dict[int, int]:
    """Return the place of each rank within its stage: the ranks at the same place form a pipeline."""
    place: dict[int, int] = {}
    seen: dict[int, int] = defaultdict(int)
    for each in sorted(stages):
        place[each] = seen[stages[each]]
        seen[stages[each]] += 1
    return place


def _levels(before: Sequence[set[int]]) -> list[Level] | None:
    """Return nodes in levels, each of which only follows those before it; None if they form a circle."""
    waiting = [len(one) for one in before]
    after: list[list[int]] = [[] for _ in before]
    for node, earlier in enumerate(before):
        for one in earlier:
            after[one].append(node)
    levels: list[Level] = []
    ready, done = [node for node, count in enumerate(waiting) if not count], 0
    while ready:
        done += len(ready)
        following = []
        for node in ready:
            for other in after[node]:
                waiting[other] -= 1
                if not waiting[other]:
                    following.append(other)
        if following:
            counts = np.asarray([len(before[node]) for node in following])
            earlier_of = np.asarray([one for node in following for one in before[node]])
            levels.append(Level(np.asarray(following), earlier_of, np.cumsum(counts) - counts))
        ready = following
    return levels if done == len(before) else None
