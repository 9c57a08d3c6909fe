"""The gain of a repair: the steps are replayed with the repaired seconds."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.blocks import Blocks
from sm_profiler.diagnosis.ledger import MEETING, TRANSFER, Ledger
from sm_profiler.diagnosis.model import Interval
from sm_profiler.diagnosis.table.operations import Operations, sums_by_rank
from sm_profiler.diagnosis.table.patterns import relative

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm_profiler.formats.columns import Floats, Mask


@attrs.frozen(eq=False)
class Steps:
    """The steps of a job as the model sees them, before or after some repairs.

    Attributes:
        graph: what happens in a step.
        seconds: time of each node in each step; repairs change it.
        ranks: names of the ranks.
        stages: names of the stages.
    """

    graph: Operations
    seconds: Floats
    ranks: tuple[str, ...]
    stages: tuple[str, ...]

    @classmethod
    def of(cls, ledger: Ledger) -> Steps:
        """Return the steps of a ledger: its recorded operations, else its activities one after the other.

        Waiting for other ranks is left out, since it follows from the others, and a meeting takes what it takes the rank
        that comes last.
        """
        names = tuple(rank.name for rank in ledger.ranks)
        stages = tuple(dict.fromkeys(rank.stage for rank in ledger.ranks if rank.stage))
        if ledger.operations is not None and _shows_most(ledger.operations, ledger):
            return cls(ledger.operations, ledger.operations.seconds, names, stages)
        tables = {key: ledger.table(key) for key in ledger.totals.activities if key != MEETING}
        if TRANSFER in tables and len(names) > 1:
            tables[TRANSFER] = np.broadcast_to(tables[TRANSFER].min(axis=0), tables[TRANSFER].shape)
        keys = list(tables)
        seconds = np.asarray([tables[key][rank] for rank in range(len(names)) for key in keys])
        rank = np.repeat(np.arange(len(names)), len(keys))
        stage = np.asarray(
            [stages.index(one.stage) if one.stage else -1 for one in ledger.ranks for _ in keys], np.int64
        )
        graph = Operations.of_activities(keys * len(names), rank, stage, seconds, ledger.common_steps)
        return cls(graph, graph.seconds, names, stages)

    @cached_property
    def length(self) -> Floats:
        """Seconds of each step of the job."""
        return self.graph.step_seconds(self.seconds)

    @cached_property
    def local(self) -> Floats:
        """Seconds that each rank works by itself, shape (ranks, steps)."""
        rows = self.graph.local
        return sums_by_rank(self.seconds[rows], self.graph.ranks[rows], len(self.ranks))

    @cached_property
    def stage_of(self) -> list[int]:
        """Stage of each rank, as an index; -1 if it has none."""
        found, rows = np.full(len(self.ranks), -1), self.graph.local
        np.maximum.at(found, self.graph.ranks[rows], self.graph.stages[rows])
        return [int(stage) for stage in found]

    @cached_property
    def lateness(self) -> tuple[Floats, Floats]:
        """Work of each rank as a multiple of its peers': in each step beyond what is usual for that rank, and usually.

        The shapes are (ranks, steps) and (ranks, 1).
        """
        ratio = relative(self.local, np.asarray(self.stage_of))
        usual = np.median(ratio, axis=1, keepdims=True)
        usual = np.where(usual > 0, usual, 1.0)
        return ratio / usual, usual

    def working(self, seconds: Floats) -> Steps:
        """Return the steps in which each rank works this long, shape (ranks, steps); its operations keep their shares."""
        local, rows = self.local, self.graph.local
        scale = np.where(local > 0, seconds / np.where(local > 0, local, 1.0), 1.0)
        found = self.seconds.copy()
        found[rows] *= scale[self.graph.ranks[rows]]
        return attrs.evolve(self, seconds=found)

    def level(self) -> Steps:
        """Return the steps in which all ranks of a stage work as long as they do on average in that step."""
        return self.working(by_stage(self.local, self.stage_of))

    def even(self) -> Steps:
        """Return the steps in which each operation takes the same time on all ranks and in all steps, as long as on average.

        Communication takes its median, because its longest times are those of late ranks.
        """
        graph, seconds = self.graph, self.seconds.copy()
        for name in sorted(set(graph.names)):
            rows = np.asarray([each == name for each in graph.names])
            for kind, usual in ((rows & graph.local, np.mean), (rows & ~graph.local, np.median)):
                if kind.any():
                    seconds[kind] = usual(self.seconds[kind])
        return attrs.evolve(self, seconds=seconds)

    def repaired(self, seconds: Floats) -> Steps:
        """Return the steps with other seconds; a repair never makes anything slower."""
        return attrs.evolve(self, seconds=np.minimum(seconds, self.seconds))


def by_stage(values: Floats, stage_of: Sequence[int]) -> Floats:
    """Return the mean of each rank's stage in each step, for each rank; shape (ranks, steps)."""
    found, stages = np.zeros(values.shape), np.asarray(stage_of)
    for stage in np.unique(stages).tolist():
        found[stages == stage] = values[stages == stage].mean(axis=0)
    return found


def _shows_most(operations: Operations, ledger: Ledger) -> bool:
    """Return whether the steps that can be replayed take nearly all of the time; those with an evaluation cannot."""
    seconds = ledger.table().max(axis=0)
    shown = seconds[np.isin(ledger.common_steps, operations.steps)].sum()
    return bool(shown >= (1 - limits.FLOOR) * seconds.sum())


def gain(before: Steps, after: Steps, *, least: Steps | None = None, steps: Mask | None = None) -> Interval:
    """Return the share of the time that a repair saves.

    The interval covers the chance of these steps (a bootstrap over blocks of steps, because neighbours resemble each
    other), the model's own error, and what is known about how well the repair works.

    Args:
        before, after: the steps.
        least: the steps after a repair that works less well.
        steps: the steps that count; default: all.
    """
    rows = slice(None) if steps is None else steps
    old, new = before.length[rows], after.length[rows]
    if not len(old) or old.sum() <= 0:
        return Interval(0.0, 0.0, 0.0)
    blocks = Blocks.of(old)
    shares = 1 - blocks.weights @ blocks.sums(new) / np.maximum(blocks.weights @ blocks.seconds, 1e-12)
    value = float(1 - new.sum() / old.sum())
    tail = (1 - limits.INTERVAL) / 2
    low, high = (float(each) for each in np.quantile(shares, (tail, 1 - tail)))
    if least is not None:
        low = min(low, float(1 - least.length[rows].sum() / old.sum()))
    error = before.graph.error
    value = min(max(value, 0.0), limits.MOST_SAVED)
    return Interval(max(min(low, value) - error, 0.0), value, min(max(high, value) + error, limits.MOST_SAVED))
