"""Sample of the steps of a long job, and exact sums of all of them.

A step is kept by its start time alone, so that ranks keep the same stretches, parts of a job can be merged in any order,
and steps may be numbered in any way. Time is a binary tree: each halving leaves one of two neighbouring stretches, chosen
by a hash of the stretch that holds both. The first halvings leave whole stretches of about a minute (of less if steps are
short), evenly spread over the job; later ones alternate between fewer and shorter stretches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Floats, Ints, Mask
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.parts import PartTable
from sm_profiler.metrics.step_rows import (
    DECLARED_IN_STEP,
    EVAL,
    GC,
    LOADER,
    OWN,
    OWN_IN_STEP,
    QUEUED,
    RESULTS,
    TRAIN,
    StepRows,
    column,
    columns,
)

MAX_STEPS = 1 << 17  # of all processes of a job together; of more, each process keeps its share
MIN_STEPS = 1 << 10  # of a process, however many there are
FIRST = 32  # steps that are always kept: the warm-up
LONGEST = 64  # steps that are always kept, each with the one before: pauses, interruptions
QUEUE = 64  # steps: twice the computations that JAX lets wait for a CPU
WHOLE = 4  # halvings that leave whole stretches
LONGEST_STRETCH = 26  # 2 ** 26 µs: 67 s
_STEPS = 512  # of a minute whose stretches are that long
_MAX_LEVEL = 40


def stretch_of(steps: int) -> int:
    """Return the length of the stretches of a process, 2 ** n µs, from its steps in a minute.

    One holds dozens to hundreds of steps. Lengths differ by factors of 8, so that ranks nearly always have the same.
    """
    length = LONGEST_STRETCH
    while steps > _STEPS and length >= 3:  # bits of a factor of 8
        steps, length = steps // 8, length - 3
    return length


def sampled(start_us: Floats, stretch: NDArray[np.int8], level: int) -> Mask:
    """Return which steps remain after a number of halvings; those of a level include those of the next.

    Args:
        start_us: start of each step, µs.
        stretch: length of the stretch that it is in, as of `stretch_of`.
        level: the number of halvings.
    """
    keep = np.ones(len(start_us), np.bool_)
    moment = np.clip(np.nan_to_num(start_us), 0, 1 << 62).astype(np.uint64)
    for length in np.unique(stretch).tolist() if level else ():
        rows = np.flatnonzero(stretch == length)
        for halving in range(level):
            number, fewer = divmod(max(halving - WHOLE, 0), 2)
            bit = length - 1 - number
            if halving < WHOLE or fewer:
                bit = length + (halving if halving < WHOLE else WHOLE + number)
            if 0 <= bit < 60:  # bits of a time
                rows = rows[_is_left(moment[rows], bit)]
        keep[stretch == length] = False
        keep[rows] = True
    return keep


def _is_left(moment: Any, bit: int) -> Mask:
    """Return whether each moment is in the half that is left of its stretch of 2 ** (bit + 1) µs."""
    half = (moment >> np.uint64(bit)) & np.uint64(1)
    return np.asarray(half == _hash((moment >> np.uint64(bit + 1)) + (np.uint64(bit) << np.uint64(56))))


def _hash(numbers: Any) -> Any:
    """Return a random bit for each number (splitmix64)."""
    mixed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) & np.uint64(1)


def limit_of(processes: int) -> int:
    """Return the number of steps that each of some processes keeps at most."""
    return max(MAX_STEPS // max(processes, 1), MIN_STEPS)


def level_of(start_us: Floats, stretch: NDArray[np.int8], level: int, limit: int) -> int:
    """Return the number of halvings, at least `level`, after which no more than `limit` steps remain."""
    left = np.flatnonzero(sampled(start_us, stretch, level))
    while len(left) > limit and level < _MAX_LEVEL:
        level += 1
        left = left[sampled(start_us[left], stretch[left], level)]
    return level


def common_level(levels: list[int]) -> int:
    """Return the level of the processes that are alike; one with far more steps than the others has a higher one."""
    return max(level for level in levels if level <= np.median(levels))


@attrs.define(eq=False)
class Totals:
    """Sums over all steps of a process, kept or not; times in µs.

    Attributes:
        parts: shape (columns,), of training steps.
        duration: of training steps.
        between: what recorded phases leave of training steps.
        evaluation: length of the stretches of evaluation.
        gc, own, gc_in_wait: of all steps.
        own_in_evaluation: of the others than training steps.
        waits, loads: training steps with a recorded wait, and with recorded loading.
        evaluations: steps of evaluation.
    """

    parts: Floats = attrs.field(factory=lambda: np.zeros(len(columns())))
    duration: float = 0.0
    between: float = 0.0
    evaluation: float = 0.0
    gc: float = 0.0
    own: float = 0.0
    gc_in_wait: float = 0.0
    own_in_evaluation: float = 0.0
    waits: int = 0
    loads: int = 0
    evaluations: int = 0

    @classmethod
    def of(cls, rows: StepRows) -> Totals:
        """Return the sums of some steps, without evaluation, which depends on the steps before."""
        train = rows.mode == TRAIN
        sums = np.asarray([rows.parts[:, number][train].sum() for number in range(len(columns()))])
        own = rows.parts[:, column(OWN)]
        return cls(
            sums, float(rows.duration[train].sum()), float(time_between(rows)[train].sum()), 0.0,
            float(rows.parts[:, column(GC)].sum()), float(own.sum()), float(rows.gc_in_wait.sum()), float(own[~train].sum()),
            int((rows.parts[:, column("wait")][train] > 0).sum()), int((rows.parts[:, column(LOADER)][train] > 0).sum()),
            int((rows.mode == EVAL).sum()),
        )  # fmt: skip

    def add(self, other: Totals) -> None:
        """Add the sums of other steps."""
        for field in attrs.fields(Totals):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def time_between(rows: StepRows) -> Floats:
    """Return what the recorded phases leave of each step, in µs; 0 without any."""
    in_phases = np.sum([rows.parts[:, column(part.key)] for part in parts.phases()], axis=0)
    rest = rows.duration - rows.parts[:, column(OWN_IN_STEP)] - in_phases - rows.parts[:, column(DECLARED_IN_STEP)]
    return np.where(in_phases > 0, np.maximum(rest, 0.0), 0.0)


def evaluated(rows: StepRows, at: Ints) -> float:
    """Return the µs by which some steps prolong evaluation: from the step before, or from their own wait."""
    at = at[rows.mode[at] != TRAIN]
    before = np.maximum(at - 1, 0)
    goes_on = (at > 0) & (rows.mode[before] != TRAIN)
    begin = np.where(goes_on, rows.end[before], rows.start[at] - rows.parts[:, column("wait")][at])
    return float((rows.end[at] - begin).sum())


@attrs.frozen(eq=False)
class StepSample:
    """Sample of the steps of a process, with sums of all of them.

    Attributes:
        steps, train: number of its steps, and of its training steps.
        place: number of each kept step among all steps of the process, in time order.
        index: number of the training steps before it.
        stretch: length of the stretch that it is in.
        counted: whether `totals` has it; what is known of the first and the last step may change.
        totals: sums of the others.
    """

    steps: int
    train: int
    place: Ints
    index: Ints
    stretch: NDArray[np.int8]
    counted: Mask
    totals: Totals

    @classmethod
    def of(cls, rows: StepRows, stretch: NDArray[np.int8]) -> StepSample:
        """Return the sample that holds all steps."""
        train, counted = rows.mode == TRAIN, np.ones(len(rows), np.bool_)
        counted[[0, -1]] = False
        totals = Totals.of(rows[counted])
        totals.evaluation = evaluated(rows, np.arange(1, len(rows)))
        return cls(
            len(rows), int(train.sum()), np.arange(len(rows)), np.cumsum(train) - train, stretch, counted, totals
        )

    @classmethod
    def joined(cls, samples: Sequence[StepSample], rows: StepRows) -> StepSample:
        """Join the samples of consecutive stretches, none of them empty, whose kept steps are `rows`."""
        steps = np.cumsum([0, *(one.steps for one in samples)]).tolist()
        train = np.cumsum([0, *(one.train for one in samples)]).tolist()
        place = np.concatenate([one.place + first for one, first in zip(samples, steps, strict=False)])
        index = np.concatenate([one.index + first for one, first in zip(samples, train, strict=False)])
        stretch = np.concatenate([one.stretch for one in samples])
        counted = np.concatenate([one.counted for one in samples])
        totals = Totals()
        for one in samples:
            totals.add(one.totals)
        links = np.cumsum([len(one.place) for one in samples])[:-1]
        totals.evaluation += evaluated(rows, links)
        fresh = ~counted
        fresh[[0, -1]] = False
        if fresh.any():
            totals.add(Totals.of(rows[fresh]))
        return cls(steps[-1], train[-1], place, index, stretch, counted | fresh, totals)

    def __getitem__(self, rows: Any) -> StepSample:
        found = {name: getattr(self, name)[rows] for name in ("place", "index", "stretch", "counted")}
        return attrs.evolve(self, **found)

    def sorted(self, order: Ints) -> StepSample:
        """Return the sample of steps in another order, after some arrived late: their numbers are those of their places."""
        return attrs.evolve(self[order], place=np.sort(self.place), index=np.sort(self.index))

    def complete(self, rows: StepRows) -> Totals:
        """Return the sums of all steps, as no others will be joined."""
        totals = attrs.evolve(self.totals)
        totals.add(Totals.of(rows[~self.counted]))
        totals.evaluation += evaluated(rows, np.zeros(1, np.int64))
        return totals

    @property
    def adjacent(self) -> Mask:
        """Return for each kept step whether the one before is the one that ran before."""
        return np.asarray(np.diff(self.place, prepend=-2) == 1)


def thin(rows: StepRows, sample: StepSample, level: int, limit: int) -> tuple[StepRows, StepSample]:
    """Keep the steps of a level, and the exceptions: the first, the last, and the longest ones."""
    keep = sampled(rows.start, sample.stretch, level)
    keep[np.flatnonzero(keep)[limit:]] = False  # thousands in the same microsecond
    keep |= (sample.place < FIRST) | longest(rows, sample.adjacent) | ~sample.counted
    at = np.flatnonzero(keep)
    return rows[at], sample[at]


def longest(rows: StepRows, adjacent: Mask) -> Mask:
    """Return the steps that end the longest after the step before, and those steps before."""
    keep, ends = np.zeros(len(rows), np.bool_), rows.end
    at = np.flatnonzero(adjacent)
    length = np.nan_to_num(ends[at] - ends[at - 1])
    at = at[np.lexsort((rows.start[at], -length))[:LONGEST]]
    keep[at] = keep[at - 1] = True
    return keep


@attrs.frozen(eq=False)
class Moved:
    """Moments that steps begin and end at, as recorded and after waiting for results was divided among them; µs."""

    recorded: Floats
    divided: Floats

    @classmethod
    def of(cls, recorded: StepRows, divided: StepRows) -> Moved | None:
        """Return how the same steps moved; None if none did."""
        if recorded is divided:
            return None
        moments = [np.ravel(np.stack([rows.start, rows.end], axis=1)) for rows in (recorded, divided)]
        return cls(*(np.maximum.accumulate(one) for one in moments))

    def seconds(self, at: Floats) -> Floats:
        """Return where moments, in seconds since the epoch, are after the division: in the same step, or the same gap."""
        edges, shifts = self.recorded[[0, -1]], (self.divided - self.recorded)[[0, -1]]
        inside = np.clip(at * 1e6, *edges)
        beyond = at * 1e6 - inside
        found = np.where(
            beyond == 0, np.interp(inside, self.recorded, self.divided), at * 1e6 + np.where(beyond < 0, *shifts)
        )
        return np.asarray(found / 1e6)


@attrs.frozen(eq=False)
class Judged:
    """The steps of a long job that are judged, with what is known of all others.

    Attributes:
        rows: the steps.
        index: number of the training steps before each.
        breaks: rows before which steps are missing.
        steps, train, evaluated: number of all steps, of training steps, and of those of evaluation.
        totals: sums of all steps.
        pauses: ends and starts of the longest pauses between steps, seconds since the epoch.
        longest: lengths of the longest iterations, seconds.
        moved: moments of the steps before waiting for results was divided among them.
    """

    rows: StepRows
    index: Ints
    breaks: tuple[int, ...]
    steps: int
    train: int
    evaluated: int
    totals: Totals
    pauses: tuple[Floats, Floats]
    longest: Floats
    moved: Moved | None = None

    @property
    def scale(self) -> float:
        """Training steps for each one that is judged."""
        return self.train / max(int((self.rows.mode == TRAIN).sum()), 1)

    def without(self, spans: Sequence[tuple[float, float]]) -> Judged:
        """Return the steps without those that began in one of the spans."""
        slow = np.zeros(len(self.rows), np.bool_)
        for start, end in spans:
            slow |= (self.rows.start >= start * 1e6) & (self.rows.start < end * 1e6)
        if not slow.any() or slow.all():
            return self
        at = np.flatnonzero(~slow)
        missing = np.zeros(len(slow), np.bool_)
        missing[list(self.breaks)] = True
        missing[1:] |= slow[:-1]
        return attrs.evolve(
            self, rows=self.rows[at], index=self.index[at], breaks=tuple(np.flatnonzero(missing[at]).tolist())
        )


def joined_judged(first: Judged, second: Judged) -> Judged:
    """Return the judged steps of a process and of its successor."""
    totals = attrs.evolve(first.totals)
    totals.add(second.totals)
    pauses = tuple(np.concatenate(pair) for pair in zip(first.pauses, second.pauses, strict=True))
    breaks = (*first.breaks, len(first.rows), *(at + len(first.rows) for at in second.breaks))
    return Judged(
        StepRows.joined(first.rows, second.rows), np.concatenate([first.index, second.index + first.train]), breaks, first.steps + second.steps,
        first.train + second.train, first.evaluated + second.evaluated, totals, (pauses[0], pauses[1]), np.concatenate([first.longest, second.longest]),
    )  # fmt: skip


def judged(rows: StepRows, sample: StepSample, level: int) -> Judged:
    """Return the judged steps of a process among those that are kept."""
    totals, adjacent = sample.complete(rows), sample.adjacent
    chosen = sampled(rows.start, sample.stretch, level) | (sample.place < FIRST)
    recorded = rows
    rows, chosen = _spread_in_stretches(rows, adjacent & np.concatenate([[False], chosen[:-1]]), chosen)
    chosen[-1] = True
    long = np.flatnonzero(longest(rows, adjacent) & adjacent)
    begins = (rows.start - rows.parts[:, column("wait")])[long] / 1e6
    trained = long[(rows.mode[long] == TRAIN) & (rows.mode[long - 1] == TRAIN)]
    trained = trained[
        (rows.number[trained] > rows.number[trained - 1]) & (sample.index[trained] >= thresholds.WARM_UP_STEPS)
    ]
    at = np.flatnonzero(chosen)
    breaks = np.flatnonzero(np.diff(sample.place[at]) != 1) + 1
    return Judged(
        rows[at], sample.index[at], tuple(breaks.tolist()), sample.steps, sample.train, totals.evaluations, totals,
        (rows.end[long - 1] / 1e6, begins), (rows.end[trained] - rows.end[trained - 1]) / 1e6, Moved.of(recorded, rows),
    )  # fmt: skip


def judged_all(rows: StepRows) -> Judged:
    """Return the steps of a process all of which were kept."""
    return judged(rows, StepSample.of(rows, np.zeros(len(rows), np.int8)), 0)


def _spread_in_stretches(rows: StepRows, follows: Mask, chosen: Mask) -> tuple[StepRows, Mask]:
    """Divide the waiting for results within each stretch; steps whose results were read outside it are not judged."""
    reads = _settled(rows)
    if not reads.any() or bool(reads[rows.mode == TRAIN].all()):
        return rows, chosen
    stretch = np.cumsum(~(follows & chosen))
    places = np.flatnonzero(reads)
    after = np.minimum(np.searchsorted(places, np.arange(len(rows))), len(places) - 1)
    before = np.maximum(after - 1, 0)
    known = (places[after] >= np.arange(len(rows))) & (stretch[places[after]] == stretch)
    known &= ((places[before] < np.arange(len(rows))) & (stretch[places[before]] == stretch)) | (stretch == stretch[0])
    at = np.flatnonzero(known & chosen)
    if not len(at):
        return rows, chosen
    spread = spread_results(rows[at])

    def written(name: str) -> Any:
        values = getattr(rows, name).copy()
        values[at] = getattr(spread, name)
        return values

    divided = {}
    for place in (column("compiled"), column(RESULTS), column(QUEUED)):
        divided[place] = rows.parts[:, place].copy()
        divided[place][at] = spread.parts[:, place]
    table = rows.parts.with_columns(divided)
    return attrs.evolve(rows, start=written("start"), duration=written("duration"), parts=table), known & chosen


def _settled(rows: StepRows) -> Mask:
    """Return which steps end with results: those that read them, and, while calls wait for earlier ones, each 64th.

    Such a call waits until one of the earlier computations has run, not all: only over many steps is that their length.
    """
    reads: Mask = rows.parts[:, column(RESULTS)] > 0
    queued: Mask = rows.parts[:, column(QUEUED)] > 0
    if not queued.any():
        return reads
    group: Ints = np.cumsum(reads) - reads
    count = np.bincount(group)
    place = np.arange(len(rows)) - (np.cumsum(count) - count)[group]
    left = np.where(group < reads.sum(), count[group] - 1 - place, QUEUE)  # until results are read
    ends: Mask = reads | ((np.bincount(group, queued) > 0)[group] & (place % QUEUE == QUEUE - 1) & (left >= QUEUE))
    ends[-1] |= bool(queued[group == group[-1]].any())
    return ends


def _waited_for(queued: Floats, results: Floats) -> Floats:
    """Return how long the script waited for each step, be it in later ones, from its waits in each.

    A call that waits for a place in the queue waits for the step that was launched a queue earlier; a read of
    results then waits for all that are in the queue. How many these are follows from how long both wait.
    """
    waited = queued + results
    ends = np.flatnonzero(results > 0)
    for first, end in zip(np.append(0, ends + 1), ends, strict=False):
        each = float(queued[max(first, end - QUEUE // 2) : end].mean()) if end > first else 0.0
        behind = min(round(float(results[end]) / each), QUEUE // 2) if each > 0 else 0
        if 0 < behind <= end - first:
            moved = queued[first + behind : end + 1]
            waited[first + behind : end + 1] = 0.0
            waited[first : end + 1 - behind] += moved
            waited[end + 1 - behind : end + 1] += results[end] / behind
    return waited


def spread_results(rows: StepRows) -> StepRows:
    """Divide the waiting for results among the steps that computed them: those since the results before.

    JAX returns from a compiled function before it has run, so that a script which reads its loss every 20 steps waits for
    20 steps at once.  If too many computations wait to run, a call waits for earlier ones before it returns.
    Keras's predict() reads its results after its last step, which then ends with them.
    """
    table = PartTable.of(rows.parts)
    queued, results = table[:, column(QUEUED)], table[:, column(RESULTS)]
    waited = queued + results
    reads = _settled(rows)
    group: Ints = np.cumsum(reads) - reads  # number of the reading step that ends it
    if not reads.any() or bool(reads.all()):
        return rows
    count = np.bincount(group)
    each = (np.bincount(group, _waited_for(queued, results)) / np.maximum(count, 1))[group]
    before = np.cumsum(each - waited) - (each - waited)
    table = table.with_columns(
        {
            column("compiled"): table[:, column("compiled")] + each - waited,
            column(RESULTS): each,
            column(QUEUED): np.zeros(len(rows)),
        }
    )
    left = np.maximum(rows.duration - waited, 0.0)
    return attrs.evolve(rows, start=rows.start + before, duration=left + each, parts=table)
