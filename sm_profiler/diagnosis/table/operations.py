"""A step as a graph of operations, and its replay: what would it take if some of them were faster?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.table.naming import (
    activity_of,
    is_communication,
    is_pass,
    is_point_to_point,
    is_sent,
    runs_backward,
)
from sm_profiler.formats.columns import Category, Floats, Ints, Mask, Numbering

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
    """Operations that all steps have, each with its rank, the rank's stage and place in it, and its start and end by step.

    `order` counts how often the rank ran the operation before it in the step. The ranks at the same place of each stage form
    a pipeline.
    """

    names: Sequence[str]
    order: Sequence[int]
    ranks: Sequence[int]
    stages: Sequence[int]
    places: Sequence[int]
    start: Floats
    end: Floats


def build_operations(
    rank: Ints, stage: Ints, step: Ints, names: Sequence[str], code: Ints, start: Floats, end: Floats
) -> Operations | None:
    """Return the operations of a table, or None if its steps have too little in common to be replayed.

    Args:
        rank, stage, step: of each row.
        names: names of operations.
        code: index into `names` of each row.
        start, end: seconds; all ranks have the same clock.
    """
    steps, by_rank = np.unique(step), np.argsort(rank, kind="stable")
    found, stages = [], []
    for rows in np.split(by_rank, np.flatnonzero(np.diff(rank[by_rank])) + 1):
        of_rank = _of_rank(step[rows], code[rows], start[rows], end[rows], steps)
        if of_rank is None:
            return None
        found.append(of_rank)
        stages.append(int(np.median(stage[rows])))
    codes, order, tables, complete = zip(*found, strict=True)
    kept, ranks = np.all(complete, axis=0), np.repeat(np.arange(len(found)), [len(one) for one in codes])
    if not kept.any() or len(ranks) * int(kept.sum()) > MAX_REPLAYED or len(found) < 2:
        return None
    stage_of, place_of = np.asarray(stages), np.zeros(len(stages), np.int64)
    for each in np.unique(stage_of).tolist():
        place_of[stage_of == each] = np.arange(np.count_nonzero(stage_of == each))
    recorded = _Recorded(
        [names[at] for at in np.concatenate(codes).tolist()], np.concatenate(order).tolist(), ranks.tolist(),
        stage_of[ranks].tolist(), place_of[ranks].tolist(), *np.concatenate(tables, axis=1)[:, :, kept],
    )  # fmt: skip
    return _graph(recorded, steps[kept])


def _of_rank(step: Ints, code: Ints, start: Floats, end: Floats, steps: Ints) -> tuple[Ints, Ints, Floats, Mask] | None:
    """Return a rank's operations: codes, occurrences, starts and ends by step, and the steps that have all of them.

    None if its steps have no common form.
    """
    order = np.lexsort((start, code, step))
    step, code, start, end = step[order], code[order], start[order], end[order]
    group = np.flatnonzero(np.r_[True, (np.diff(step) != 0) | (np.diff(code) != 0)])
    occurrence = np.arange(len(step)) - np.repeat(group, np.diff(np.r_[group, len(step)]))
    width = int(occurrence.max(initial=0)) + 1
    key, column = code.astype(np.int64) * width + occurrence, np.searchsorted(steps, step)
    per_step = np.bincount(column, minlength=len(steps))
    usual = int(np.median(per_step[per_step > 0]))
    complete = per_step == usual
    kinds, counts = np.unique(key[complete[column]], return_counts=True)
    kinds = kinds[counts == int(complete.sum())]
    if len(kinds) != usual:  # the steps differ in what they run
        return None
    keep = complete[column]
    table = np.full((2, len(kinds), len(steps)), np.nan)
    table[:, np.searchsorted(kinds, key[keep]), column[keep]] = start[keep], end[keep]
    return kinds // width, kinds % width, table, complete


def _graph(recorded: _Recorded, steps: Ints) -> Operations | None:
    """Join the ranks' operations where they meet, and find what each follows."""
    start, end, node_of = recorded.start, recorded.end, _meetings(recorded)
    members: list[list[int]] = [[] for _ in range(max(node_of) + 1)]
    follows: list[set[int]] = [set() for _ in members]
    for at, node in enumerate(node_of):
        members[node].append(at)
    for at, earlier in (*_sequence(recorded), *_handed_on(recorded)):
        if node_of[at] != node_of[earlier]:
            follows[node_of[at]].add(node_of[earlier])
    levels = _levels(follows)
    if levels is None:
        return None
    first = [one[0] for one in members]
    meets = np.asarray([len(one) > 1 for one in members])
    ends = np.asarray([end[one].max(axis=0) for one in members])
    begins = np.asarray([start[one].max(axis=0) for one in members])
    for node, before in enumerate(follows):  # of what overlaps what it follows, only the rest is its own time
        if before:
            begins[node] = np.maximum(begins[node], ends[sorted(before)].max(axis=0))
    return Operations(
        steps, Category.of(recorded.names[at] for at in first), np.where(meets, -1, np.asarray(recorded.ranks)[first]),
        np.where(meets, -1, np.asarray(recorded.stages)[first]), np.asarray(recorded.order)[first],
        np.maximum(ends - begins, 0.0), levels, np.asarray(end.max(axis=0) - start.min(axis=0)),
        [sorted({recorded.ranks[at] for at in one}) for one in members],
    )  # fmt: skip


def _meetings(recorded: _Recorded) -> list[int]:
    """Return a number for each operation; those in which ranks meet have the same one.

    What a stage sends, the next stage receives; a collective is left by all its ranks at once, which shows whether those
    of a stage, those at the same place of each stage, or all ranks take part.
    """
    stages, places, order = recorded.stages, recorded.places, recorded.order
    count = max(stages) + 1
    keys: list[tuple[object, ...]] = []
    by_name: dict[str, list[int]] = defaultdict(list)
    for at, name in enumerate(recorded.names):
        if is_point_to_point(name):
            sender = stages[at] - (0 if is_sent(name) else -1 if runs_backward(name) else 1)
            keys.append(("between stages", runs_backward(name), sender % count, places[at], order[at]))
        else:
            keys.append(("alone", at))
            if is_communication(name):
                by_name[name].append(at)
    for name, rows in by_name.items():
        for group in ([0] * len(stages), stages, places):
            joined: dict[object, list[int]] = defaultdict(list)
            for at in rows:
                joined[group[at], order[at]].append(at)
            if all(end_together(recorded.start[one], recorded.end[one]) for one in joined.values()):
                for key, members in joined.items():
                    for at in members:
                        keys[at] = (name, key)
                break
    numbers = Numbering()
    return [numbers[key] for key in keys]


def end_together(start: Floats, end: Floats) -> bool:
    """Return whether ranks that run an operation leave it together: nearly all of it is over when the first does."""
    longest = (end - start).max(axis=0)
    return bool(np.median(np.ptp(end, axis=0) - (1 - limits.MOST) * longest) <= 0)


def _sequence(recorded: _Recorded) -> Iterator[tuple[int, int]]:
    """Yield what each operation of a rank follows: the one before it, and communication that was done by then.

    Operations that overlap, as a send and a receive that are posted together, do not follow each other. But a collective
    that begins while the backward pass runs, and ends after it, waits for its last gradients.
    """
    begins, ends = np.median(recorded.start, axis=1).tolist(), np.median(recorded.end, axis=1).tolist()
    meets = [is_communication(name) for name in recorded.names]
    collective = [is_communication(name) and not is_point_to_point(name) for name in recorded.names]
    earlier: list[int] = []
    for at in np.lexsort((ends, begins, recorded.ranks)).tolist():
        if earlier and recorded.ranks[earlier[-1]] != recorded.ranks[at]:
            earlier = []
        for other in reversed(earlier):
            done = ends[other] if meets[at] and meets[other] else (begins[other] + ends[other]) / 2
            if begins[at] >= done or (collective[at] and not meets[other] and ends[at] >= ends[other]):
                yield at, other
                if not meets[other]:
                    break
        earlier.append(at)


def _handed_on(recorded: _Recorded) -> Iterator[tuple[int, int]]:
    """Yield which pass follows which of another stage, if no sends are recorded: a microbatch goes on when it is done there."""
    if any(map(is_point_to_point, recorded.names)):
        return
    keys = list(zip(recorded.names, recorded.order, recorded.places, recorded.stages, strict=True))
    at_key = {key: at for at, key in enumerate(keys)}
    for at, (name, order, place, stage) in enumerate(keys):
        earlier = at_key.get((name, order, place, stage + (1 if runs_backward(name) else -1)))
        if earlier is not None and is_pass(name):
            over = recorded.end[earlier] - recorded.start[at]
            if np.median(over) <= (1 - limits.MOST) * np.median(recorded.end[earlier] - recorded.start[earlier]):
                yield at, earlier


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
