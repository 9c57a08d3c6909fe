"""The steps of a job, which are replayed with the seconds that a repair leaves."""

from __future__ import annotations

import re
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.ledger import MEETING, STEP, TRANSFER, UNSEEN, Ledger
from sm_profiler.diagnosis.table.naming import is_pass, runs_backward
from sm_profiler.diagnosis.table.operations import Operations, sums_by_rank
from sm_profiler.diagnosis.table.patterns import Stretch, agreement_of, relative, slow_stretches, warm_up

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sm_profiler.formats.columns import Floats, Ints, Mask

# Names of columns that count a rank's work. A column such as a temperature may follow the time, too.
WORK = re.compile(
    r"token|sample|example|sequence|seq.?len|length|word|item|image|pixel|frame|point|atom|edge|document|batch.?size|flop"
)

_MEETINGS = ("backward", "optimizer", "compute", STEP, UNSEEN)  # activities that may exchange gradients


@attrs.frozen
class Work:
    """A column that counts the ranks' work, and which differs among ranks as their time does.

    Attributes:
        column: its name.
        values: by rank and step.
        agreement: its correlation with the time, both without the mean of the rank's stage in each step.
    """

    column: str
    values: Floats
    agreement: float


@attrs.frozen(eq=False)
class Steps:
    """The steps of a job as the model sees them, before or after some repairs.

    Attributes:
        graph: what happens in a step.
        seconds: time of each node in each step; repairs change it.
        ranks: names of the ranks.
        stages: names of the stages.
        facts: further columns, by rank and step.
        start: seconds of the warm-up before these steps.
    """

    graph: Operations
    seconds: Floats
    ranks: tuple[str, ...]
    stages: tuple[str, ...]
    facts: Mapping[str, Floats] = attrs.field(factory=dict)
    start: float = 0.0

    @classmethod
    def of(cls, ledger: Ledger) -> Steps:
        """Return the steps of a ledger after the warm-up: its recorded operations, else its activities one after the other.

        Waiting for other ranks is left out, since it follows from the others, and an activity in which they meet takes what
        it takes the rank that comes last.
        """
        names = tuple(rank.name for rank in ledger.ranks)
        stages = tuple(dict.fromkeys(rank.stage for rank in ledger.ranks if rank.stage))
        graph = ledger.operations
        keys = [key for key in ledger.totals.activities if key != MEETING] or [UNSEEN]
        met = _meeting(keys, ledger, staged=len(stages) > 1)
        if graph is None or not _shows_most(graph, ledger) or met not in ("", TRANSFER):
            tables = {key: ledger.table(key) for key in keys}
            if met:
                tables[met] = np.broadcast_to(tables[met].min(axis=0), tables[met].shape)
            stage = np.asarray([stages.index(rank.stage) if rank.stage else -1 for rank in ledger.ranks], np.int64)
            graph = Operations.of_activities(keys, stage, list(tables.values()), ledger.common_steps)
        length = graph.step_seconds()
        first = warm_up(length)
        graph = graph.at(slice(first, None))
        rows, shape = np.isin(ledger.common_steps, graph.steps), (len(names), len(ledger.common_steps))
        facts = {name: values[:, rows] for name, values in ledger.facts.items() if values.shape == shape}
        return cls(graph, graph.seconds, names, stages, facts, float(length[:first].sum()))

    @cached_property
    def length(self) -> Floats:
        """Seconds of each step of the job."""
        return self.graph.step_seconds(self.seconds)

    @cached_property
    def local(self) -> Floats:
        """Seconds that each rank works by itself, shape (ranks, steps)."""
        return self.spent(self.graph.local)

    @cached_property
    def stage_of(self) -> Ints:
        """Stage of each rank, as an index; -1 if it has none."""
        found, rows = np.full(len(self.ranks), -1), self.graph.local
        np.maximum.at(found, self.graph.ranks[rows], self.graph.stages[rows])
        return found

    @cached_property
    def ratio(self) -> Floats:
        """Work of each rank in each step as a multiple of its peers', shape (ranks, steps)."""
        return relative(self.local, self.stage_of)

    @cached_property
    def lateness(self) -> Floats:
        """The same beyond what is usual for the rank, if the ranks had equal work; a slow stretch is usual while it lasts."""
        ratio = self.fair.ratio
        usual = np.broadcast_to(np.median(ratio, axis=1, keepdims=True), ratio.shape).copy()
        for rank, stretch in self.stretches.items():
            steps = np.arange(ratio.shape[1])
            inside = (steps >= stretch.first) & (steps < stretch.last)
            usual[rank] = np.where(inside, np.median(ratio[rank, inside]), np.median(ratio[rank, ~inside]))
        return ratio / np.where(usual > 0, usual, 1.0)

    @cached_property
    def stretches(self) -> dict[int, Stretch]:
        """The stretches of steps in which ranks are slower than the others, by rank, if the ranks had equal work."""
        return slow_stretches(self.even_work.local, self.even_work.ratio)

    @cached_property
    def slowdown(self) -> Stretch | None:
        """The stretch in which the steps of the job are longer for the same work."""
        length = self.length_for_work
        return slow_stretches(length[None], length[None]).get(0)

    @property
    def jitter(self) -> float:
        """Share by which the slowest of as many ranks exceeds the usual one on any machine."""
        return limits.REPEAT * NormalDist().inv_cdf(1 - 1 / max(len(self.ranks), 2))

    @cached_property
    def on_time(self) -> Steps:
        """The steps in which no rank is later than usual, but for jitter."""
        return self.scaled(np.minimum((1 + self.jitter) / np.maximum(self.lateness, 1.0), 1.0))

    @cached_property
    def work(self) -> Work | None:
        """The column of work that explains most of how the ranks' time differs; None if none does."""
        spent = self.local - self.by_stage(self.local)
        best: Work | None = None
        for name, values in self.facts.items():
            if WORK.search(name.lower()) and values.min(initial=0) >= 0:
                work = values - self.by_stage(values)
                together = _correlation(work, spent)
                if len(work) > limits.REPEATS:  # of ranks that always have more, the medians agree
                    together = max(together, _correlation(np.median(work, axis=1), np.median(spent, axis=1)))
                if together >= limits.TOGETHER and (best is None or together > best.agreement):
                    best = Work(name, values, together)
        return best

    @cached_property
    def passes(self) -> Mask:
        """Mask of the nodes that are forward and backward passes, or other computation."""
        return np.asarray(self.graph.names.mask(is_pass) & self.graph.local)

    @cached_property
    def microbatches(self) -> tuple[float, Floats]:
        """Agreement of forward and backward on which microbatches of a rank and step are long, and the forward times.

        A rank of which both passes take longer in some steps need not have longer sequences: it may be late.
        """
        graph = self.graph
        found: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        for node in np.flatnonzero(self.passes).tolist():
            pair = found.setdefault((int(graph.ranks[node]), int(graph.order[node])), ([], []))
            pair[runs_backward(graph.names.values[graph.names.codes[node]])].append(node)
        pairs = [(*ahead, *back) for ahead, back in found.values() if len(ahead) == len(back) == 1]
        if not pairs:
            return 0.0, np.zeros(0)
        ahead, back = np.asarray(pairs).T
        ranks = graph.ranks[ahead]
        count = np.maximum(np.bincount(ranks, minlength=len(self.ranks)), 1)[:, None]
        spent = []
        for nodes in (ahead, back):
            mean = sums_by_rank(self.seconds[nodes], ranks, len(self.ranks)) / count
            spent.append(self.seconds[nodes] - (mean - mean.mean(axis=1, keepdims=True))[ranks])
        return agreement_of(spent[0], spent[1], ranks), self.seconds[ahead]

    @cached_property
    def fair(self) -> Steps:
        """The steps with equal work for all ranks, and in all microbatches, as far as the recording shows that they differ."""
        return self._even_microbatches() if self.microbatches[0] >= limits.TOGETHER else self.even_work

    @cached_property
    def even_work(self) -> Steps:
        """The steps with equal work for all ranks, as far as a column shows it: it is divided, not removed."""
        if self.work is None:
            return self
        work = self.work.values / self.work.values.mean()
        powers = [power - self.by_stage(power) for power in (work, work**2)]  # attention takes the square of a length
        linear, square = np.linalg.lstsq(
            np.stack([power.ravel() for power in powers], axis=1),
            (self.local - self.by_stage(self.local)).ravel(),
            rcond=None,
        )[0]
        more = linear * powers[0] + square * powers[1]
        # no pass takes more than the square of its work
        most, slope = 2 * float(self.local.mean()), float(linear + 2 * square)
        return self.working(np.maximum(self.local - more * (min(most / slope, 1.0) if slope > 0 else 1.0), 0.0))

    @cached_property
    def length_for_work(self) -> Floats:
        """Seconds of each step of the job if all had the same work, as far as a column shows that longer steps have more."""
        best, found, mean = limits.TOGETHER, self.length, float(self.length.mean())
        for name, values in self.facts.items():
            work = values.mean(axis=0)
            # a counter of all steps so far is no work of a step
            if not WORK.search(name.lower()) or not np.ptp(work) or (np.diff(work) > 0).mean() >= limits.MOST:
                continue
            powers = np.stack([work, work**2]) / [[work.mean()], [(work**2).mean()]]
            for varies in (np.asarray, np.diff):  # from step to step, other causes hardly change
                with_work, length = varies(powers), varies(self.length)
                with_work, length = (one - one.mean(axis=-1, keepdims=True) for one in (with_work, length))
                together = _correlation(with_work[0], length)
                if together >= best:
                    slopes = np.linalg.lstsq(with_work.T, length, rcond=None)[0]
                    expected = mean + slopes @ (powers - 1)
                    best, found = together, self.length * mean / np.maximum(expected, limits.FLOOR * mean)
        return found

    def _even_microbatches(self) -> Steps:
        graph, seconds = self.graph, self.seconds.copy()
        for code in np.unique(graph.names.codes[self.passes]).tolist():
            rows = np.flatnonzero((graph.names.codes == code) & self.passes)
            of, stage, spent = graph.ranks[rows], graph.stages[rows] + 1, self.seconds[rows]
            count = np.maximum(np.bincount(of, minlength=len(self.ranks)), 1)
            mean, square = (np.bincount(of, (spent**power).mean(axis=1), len(count)) / count for power in (1, 2))
            error = np.sqrt(np.maximum(square - mean**2, 0.0) / (count * len(graph.steps)))
            of_stage = np.bincount(stage, spent.mean(axis=1)) / np.maximum(np.bincount(stage), 1)
            usual = of_stage[np.minimum(self.stage_of + 1, len(of_stage) - 1)]
            # A rank whose mean differs by chance had longer sequences; beyond chance it is slow, which stays as it is.
            by_chance = np.abs(mean - usual) <= limits.BEYOND_CHANCE * error
            seconds[rows] = np.where(by_chance, usual, mean)[of][:, None]
        return attrs.evolve(self, seconds=seconds)

    def spent(self, nodes: Mask) -> Floats:
        """Return the seconds of each rank in some local nodes, shape (ranks, steps)."""
        return sums_by_rank(self.seconds[nodes], self.graph.ranks[nodes], len(self.ranks))

    def by_stage(self, values: Floats) -> Floats:
        """Return the mean of each rank's stage in each step, for each rank; shape (ranks, steps)."""
        found = np.zeros(values.shape)
        for stage in np.unique(self.stage_of).tolist():
            rows = self.stage_of == stage
            found[rows] = values[rows].mean(axis=0)
        return found

    def scaled(self, factors: Floats) -> Steps:
        """Return the steps in which each rank's own work takes so many times as long, shape (ranks, steps) or (ranks, 1)."""
        found, rows = self.seconds.copy(), self.graph.local
        found[rows] *= factors[self.graph.ranks[rows]]
        return attrs.evolve(self, seconds=found)

    def working(self, seconds: Floats) -> Steps:
        """Return the steps in which each rank works this long, shape (ranks, steps); its operations keep their shares."""
        return self.scaled(np.where(self.local > 0, seconds / np.where(self.local > 0, self.local, 1.0), 1.0))

    def level(self) -> Steps:
        """Return the steps in which all ranks of a stage work as long as they do on average in that step."""
        return self.working(self.by_stage(self.local))

    def even(self) -> Steps:
        """Return the steps in which each operation takes the same time on all ranks and in all steps, as long as on average.

        Communication takes its median, because its longest times are those of late ranks.
        """
        seconds, local = self.seconds.copy(), self.graph.local
        for name in self.graph.names.values:
            rows = self.graph.names.mask(name)
            for kind, usual in ((rows & local, np.mean), (rows & ~local, np.median)):
                if kind.any():
                    seconds[kind] = usual(self.seconds[kind])
        return attrs.evolve(self, seconds=seconds)

    @property
    def even_speedup(self) -> float:
        """The factor by which the steps would be faster if all ranks and microbatches took the same time."""
        return 1 / (1 - min(self.saved(self.even()), limits.MOST_SAVED))

    def repaired(self, seconds: Floats) -> Steps:
        """Return the steps with other seconds; a repair never makes anything slower."""
        return attrs.evolve(self, seconds=np.minimum(seconds, self.seconds))

    def seconds_of(self, steps: Mask | None = None) -> float:
        """Return the seconds of some steps; by default of all."""
        return float((self.length if steps is None else self.length[steps]).sum())

    def saved(self, after: Steps, steps: Mask | None = None) -> float:
        """Return the share of the time of some steps that a repair saves."""
        return 1 - after.seconds_of(steps) / max(self.seconds_of(steps), 1e-12)


def _meeting(keys: Sequence[str], ledger: Ledger, *, staged: bool) -> str:
    """Return the activity in which ranks wait for each other, by its name or by its times; "" if none does.

    Ranks whose steps are equally long, though one works longer in all other activities, wait in this one: passes that
    exchange gradients hold the wait, too. Ranks of several pipeline stages differ in all of them.
    """
    if len(ledger.ranks) < 2:
        return ""
    if TRANSFER in keys:
        return TRANSFER
    if staged:
        return ""
    means = {key: ledger.table(key).mean(axis=1) for key in keys}
    length = np.sum(list(means.values()), axis=0)
    for name in _MEETINGS:
        if name in means:
            own = length - means[name]
            if np.ptp(own) >= limits.FAR * length.max() and np.ptp(length) <= (1 - limits.MAJORITY) * np.ptp(own):
                return name
    return ""


def _correlation(first: Floats, second: Floats) -> float:
    """Return the correlation of two quantities whose means are 0."""
    scale = float((first * first).sum() * (second * second).sum()) ** 0.5
    return float((first * second).sum()) / scale if scale > 0 else 0.0


def _shows_most(operations: Operations, ledger: Ledger) -> bool:
    """Return whether the steps that can be replayed take nearly all of the time; those with an evaluation cannot."""
    seconds = ledger.table().max(axis=0)
    shown = seconds[np.isin(ledger.common_steps, operations.steps)].sum()
    return bool(shown >= (1 - limits.FLOOR) * seconds.sum())
