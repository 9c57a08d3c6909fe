"""A step as a graph of operations, and its replay: what would it take if some of them were faster?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

import attrs
import numpy as np

from sm_profiler.diagnosis.table.naming import is_communication, is_received, is_sent, runs_backward
from sm_profiler.formats.columns import Floats, Ints, Mask

MAX_REPLAYED = 4_000_000  # durations held for a replay: operations of a step times steps; 32 MB
ENDS_TOGETHER = 0.1  # of a collective's length: ranks that leave it within this were in it together


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
        parties: ranks of each node, as indices; several where ranks meet.
        order: the occurrence of each node: how often its rank ran the operation before it in the step.
        seconds: time of each node in each step, shape (nodes, steps).
        before: nodes that each node follows.
        schedule: nodes in an order in which each follows those before it.
        recorded: seconds of each step as recorded.
    """

    steps: Ints
    names: Sequence[str]
    ranks: Ints
    stages: Ints
    parties: Sequence[Sequence[int]]
    order: Ints
    seconds: Floats
    before: Sequence[Ints]
    schedule: Sequence[int]
    recorded: Floats

    def step_seconds(self, seconds: Floats | None = None) -> Floats:
        """Return how long each step takes if the nodes take `seconds`; by default as long as they took."""
        seconds = self.seconds if seconds is None else seconds
        done = np.zeros_like(seconds)
        for node in self.schedule:
            before = self.before[node]
            done[node] = seconds[node] + (done[before].max(axis=0) if len(before) else 0.0)
        return np.asarray(done.max(axis=0)) if len(done) else np.zeros(len(self.steps))

    @cached_property
    def error(self) -> float:
        """Median difference of replayed steps from the recorded ones, as a share: the model's own error."""
        replayed = self.step_seconds()
        return float(np.median(np.abs(replayed / np.where(self.recorded > 0, self.recorded, 1.0) - 1)))

    @classmethod
    def of_activities(cls, names: Sequence[str], ranks: Ints, stages: Ints, seconds: Floats, steps: Ints) -> Operations:
        """Return a graph in which each rank runs its activities one after the other, and the step ends with the slowest rank.

        Args:
            names, ranks, stages: activity, rank and stage of each node; the nodes of a rank are together.
            seconds: shape (nodes, steps).
            steps: numbers of the steps.
        """
        before = [
            np.asarray([node - 1] if node and ranks[node] == ranks[node - 1] else [], np.int64)
            for node in range(len(names))
        ]
        chains = np.zeros((int(ranks.max(initial=0)) + 1, len(steps)))
        np.add.at(chains, ranks, seconds)
        recorded = chains.max(axis=0)
        parties = [[int(rank)] for rank in ranks]
        return cls(
            steps, names, ranks, stages, parties, np.zeros(len(names), np.int64), seconds, before, range(len(names)), recorded
        )  # fmt: skip

    @property
    def local(self) -> Mask:
        """Mask of the nodes that run on one rank alone."""
        return np.asarray(self.ranks >= 0)

    def named(self, name: str) -> Mask:
        """Return which local nodes are of an operation."""
        return np.asarray([each == name for each in self.names], np.bool_) & self.local


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
    ranks, steps = np.unique(rank), np.unique(step)
    recorded: dict[int, _Recorded] = {}
    kept = np.ones(len(steps), np.bool_)
    for each in ranks.tolist():
        rows = np.flatnonzero(rank == each)
        found = _of_rank(step[rows], code[rows], start[rows], end[rows], steps, names)
        if found is None:
            return None
        recorded[each], complete = found
        kept &= complete
    count = sum(len(one.names) for one in recorded.values())
    if not kept.any() or count * int(kept.sum()) > MAX_REPLAYED or len(ranks) < 2:
        return None
    recorded = {
        each: attrs.evolve(one, start=one.start[:, kept], end=one.end[:, kept]) for each, one in recorded.items()
    }
    stages = {each: int(np.median(stage[rank == each])) for each in ranks.tolist()}
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
    before = [np.asarray(sorted(one - {node}), np.int64) for node, one in enumerate(follows)]
    schedule = _schedule(before)
    if schedule is None:
        return None
    meets = [len(one) > 1 for one in members]
    index = {each: place for place, each in enumerate(recorded)}
    seconds = np.asarray([end[one].max(axis=0) - start[one].max(axis=0) for one in members])
    return Operations(
        steps,
        [names[one[0]] for one in members],
        np.asarray([-1 if met else index[ranks[one[0]]] for one, met in zip(members, meets, strict=True)]),
        np.asarray([-1 if met else stages[ranks[one[0]]] for one, met in zip(members, meets, strict=True)]),
        [sorted({index[ranks[at]] for at in one}) for one in members],
        np.asarray([order[one[0]] for one in members]),
        np.maximum(seconds, 0.0),
        before,
        schedule,
        np.asarray(end.max(axis=0) - start.min(axis=0)),
    )


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
    place: dict[int, int] = {}  # of a rank within its stage: the ranks at the same place form a pipeline
    seen: dict[int, int] = defaultdict(int)
    for each in sorted(stages):
        place[each] = seen[stages[each]]
        seen[stages[each]] += 1
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
    longest = (end - start).max(axis=0)
    return bool(np.median(np.ptp(end, axis=0) - ENDS_TOGETHER * longest) <= 0)


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


def _schedule(before: Sequence[Ints]) -> list[int] | None:
    """Return the nodes in an order in which each comes after those before it; None if they form a circle."""
    waiting = [len(one) for one in before]
    after: list[list[int]] = [[] for _ in before]
    for node, earlier in enumerate(before):
        for one in earlier.tolist():
            after[one].append(node)
    ready = [node for node, count in enumerate(waiting) if not count]
    for node in ready:
        for following in after[node]:
            waiting[following] -= 1
            if not waiting[following]:
                ready.append(following)
    return ready if len(ready) == len(before) else None
