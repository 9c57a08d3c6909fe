"""Judges of ranks that delay each other in turn: uneven work, and collections at different steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import attrs
import numpy as np

from sm_profiler.diagnosis import limits, policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.diagnosis.judges.ranks import MEETINGS, in_step
from sm_profiler.diagnosis.model import Evidence, Finding
from sm_profiler.formats.columns import Floats, Ints
from sm_profiler.formatting import percent
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.job_metrics import Rank


@attrs.frozen(eq=False)
class Delays:
    """Time that the ranks of a job wait for the slowest one of each step, beyond what a rank that is always slow costs.

    Attributes:
        lost: seconds of each step.
        slowest: number of the rank that each step waits for.
        iteration: mean seconds of a step.
        part: part of the step in which the slowest ranks do more than the others.
        agreement: correlation of what a rank works more than the others with what it waits less, over all steps.
    """

    lost: Floats
    slowest: Ints
    iteration: float
    part: str
    agreement: float = 0.0

    @property
    def share(self) -> float:
        """Lost time as a share of the steps."""
        return float(self.lost.mean()) / self.iteration

    @property
    def usual_share(self) -> float:
        """The same without the worst steps, which a busy machine has, too."""
        kept = np.sort(self.lost)[: max(int(len(self.lost) * (1 - thresholds.RARE)), 1)]
        return float(kept.mean()) / self.iteration

    def by_rank(self, count: int) -> Floats:
        """Return the share of the lost time that each rank causes."""
        causes = np.bincount(self.slowest, self.lost, count)
        return np.asarray(causes / max(float(causes.sum()), 1e-12))


def shared_steps(ranks: Sequence[Rank]) -> Ints:
    """Return the numbers of the steps whose phases all ranks recorded, without the warm-up."""
    known = [rank.iterations.index[rank.iterations.known] for rank in ranks]
    common: Ints = reduce(np.intersect1d, known)
    return common[common >= thresholds.WARM_UP_STEPS]


def _rows(rank: Rank, steps: Ints) -> Ints:
    return np.searchsorted(rank.iterations.index, steps)


def find_delays(ranks: Sequence[Rank]) -> Delays | None:
    """Compare the ranks step by step; None if they share too few steps.

    The work of a rank is what it does from one meeting of the ranks to the next; each rank's usual work is subtracted. A
    delay counts as far as the others wait at the meeting. Collections are left out.
    """
    steps = shared_steps(ranks)
    if len(steps) <= thresholds.MIN_STEPS:
        return None
    order = _in_order()
    table = np.asarray([[rank.iterations.of(key)[_rows(rank, steps)] for key in order] for rank in ranks])
    gc = np.asarray([rank.iterations.gc[_rows(rank, steps)] for rank in ranks])
    iteration = float(np.mean([rank.iterations.length[_rows(rank, steps)].mean() for rank in ranks]))
    if iteration <= 0:
        return None
    found = [_delays_at(order.index(meeting), order, table, gc, iteration) for meeting in MEETINGS]
    return max(found, key=lambda one: one.share)


def _in_order() -> tuple[str, ...]:
    """Return the parts of an iteration, which begins with what comes after the previous step."""
    return ("outside", *(key for key in parts.iteration_keys() if key != "outside"))


def _delays_at(meeting: int, order: tuple[str, ...], table: Floats, gc: Floats, iteration: float) -> Delays:
    """Return the delays if the ranks meet in one part; `table` has the shape (ranks, parts, steps)."""
    by_part = np.concatenate([table[:, :meeting, 1:], table[:, meeting + 1 :, :-1]], axis=1)
    names = (*order[:meeting], *order[meeting + 1 :])
    work = np.maximum(by_part.sum(axis=1) - gc[:, 1:], 0.0)
    work -= work.mean(axis=1, keepdims=True)
    met = table[:, meeting, 1:] - table[:, meeting, 1:].mean(axis=1, keepdims=True)
    slowest = work.argmax(axis=0)
    excess = _beyond_others(work, slowest)
    waited = -_beyond_others(met, slowest)
    lost = np.clip(np.minimum(excess, waited), 0.0, None)
    weight = lost / max(float(lost.sum()), 1e-12)
    grown = [float((_beyond_others(by_part[:, at], slowest) * weight).sum()) for at in range(len(names))]
    return Delays(lost, slowest, iteration, names[int(np.argmax(grown))], _agreement(work, met))


def _agreement(work: Floats, met: Floats) -> float:
    """Return how well the ranks' work explains their waiting; shape (ranks, steps)."""
    work, met = (np.nan_to_num(one - one.mean(axis=0)).ravel() for one in (work, met))
    scale = float(np.sqrt((work @ work) * (met @ met)))
    return -float(work @ met) / scale if scale > 0 else 0.0


def _beyond_others(values: Floats, which: Ints) -> Floats:
    """Return by how much one rank of each step exceeds the median of the others; shape (ranks, steps)."""
    steps = np.arange(values.shape[1])
    values = np.nan_to_num(values)
    others = values.copy()
    others[which, steps] = np.nan
    return np.asarray(values[which, steps] - np.nanmedian(others, axis=0))


def judge_turns(context: JudgeContext) -> Finding | None:
    """Find steps in which the ranks wait for a slow one that is another each time."""
    ranks = context.ranks
    if len(ranks) <= 1 or not in_step(ranks):
        return None
    delays = find_delays(ranks)
    if (
        delays is None or delays.usual_share < limits.SURELY * limits.FLOOR
    ):  # evenly divided work leaves half of it with two ranks
        return None
    if delays.usual_share < policy.TURNS and delays.agreement < limits.TOGETHER:
        return None  # other load on the machine makes ranks late, too, but not those that work more
    causes = delays.by_rank(len(ranks))
    most = int(causes.argmax())
    equal = 1 / len(ranks)
    if causes[most] > equal + policy.ONE_RANK * (1 - equal):
        return None
    delayed = float((delays.lost > policy.TURNS * delays.iteration).mean())
    return Finding(
        Class.MOVING_STRAGGLER,
        f"The ranks wait for each other {percent(delays.share)} of the time, each step for another one: their work "
        f"{parts.during(delays.part)} differs from step to step.",
        (
            Evidence("time the ranks wait for the slowest of a step", round(delays.share, 4), limits.FLOOR, unit="share"),
            Evidence("the same without the worst tenth of the steps", round(delays.usual_share, 4), limits.FLOOR, unit="share"),
            Evidence("agreement of work with waiting", round(delays.agreement, 3), unit="correlation"),
            Evidence("steps with a delay", round(delayed, 4), unit="share"),
            Evidence("delays caused by the rank that causes most", round(float(causes[most]), 4), None, ranks[most].name, "share"),
            Evidence("mean delay of a step", round(float(delays.lost.mean()) * 1e3, 3), unit="ms"),
        ),
        _advice(delays.part),
        delays.share,
        confidence=context.confidence(delays.usual_share, policy.TURNS),
    )  # fmt: skip


def _advice(part: str) -> str:
    if part == "wait":
        return (
            "Give all ranks batches of equal cost at the same step: sort or bucket samples by size across ranks, spread large "
            "files over all of them, and let loader workers prefetch more (prefetch_factor) so that slow batches hide."
        )
    if part == "outside":
        return (
            "Find what a single rank does between its steps, each time another one (logging, checkpoints of shards, metrics): do it "
            "on all ranks at the same step, or in a background thread."
        )
    return (
        "Give all ranks equal work at the same step: batches by number of tokens instead of samples, lengths bucketed across "
        "ranks, packing, padding to the longest of the global batch; and check that no rank computes something extra in turn."
    )


def judge_gc_turns(context: JudgeContext) -> Finding | None:
    """Find garbage collections that hit ranks at different steps, so every rank waits for every collection."""
    ranks = context.ranks
    if len(ranks) <= 1 or not in_step(ranks):
        return None
    steps: Ints = reduce(np.intersect1d, [rank.iterations.index for rank in ranks])
    if len(steps) < thresholds.MIN_STEPS:
        return None
    spent = np.asarray([rank.iterations.gc[_rows(rank, steps)] for rank in ranks])
    length = float(np.mean([rank.iterations.length[_rows(rank, steps)].sum() for rank in ranks]))
    own = float(spent.sum(axis=1).max())
    # a collection at the edge of a step may count for the next one, so two steps count as one, in either way
    together = min(_slowest_of_pairs(spent[:, first:]) for first in (0, 1))
    extra = (together - own) / length if length > 0 else 0.0
    if extra < limits.FLOOR:
        return None
    leads = extra * length >= policy.GC_TURNS_LEAD * own
    share = min(together / length, 1.0) if leads else extra
    collecting = int((spent > 0).any(axis=0).sum())
    return Finding(
        Class.GC_OUT_OF_PHASE,
        f"Each rank's garbage collector pauses at steps of its own, and all ranks wait: {percent(together / length)} of the "
        f"time, of which {percent(extra)} would be free if all collected at the same step.",
        (
            Evidence("time lost because collections differ in their steps", round(extra, 4), limits.FLOOR, unit="share"),
            Evidence("steps in which some rank collects", round(float(collecting / len(steps)), 4), unit="share"),
            Evidence("collections of a single rank, at most", round(own / length, 4), unit="share"),
            Evidence("longest collection", round(float(spent.max()) * 1e3, 3), unit="ms"),
        ),
        "Switch automatic collection off on every rank (gc.freeze() after the model and the dataset are built, then "
        "gc.disable()) and call gc.collect() at the same step on all of them, every few hundred steps.",
        share,
        confidence=context.confidence(extra, limits.FLOOR),
    )  # fmt: skip


def _slowest_of_pairs(spent: Floats) -> float:
    """Return the sum of the slowest rank's collections over pairs of steps; shape (ranks, steps)."""
    even = spent[:, : spent.shape[1] // 2 * 2]
    return float(even.reshape(len(spent), -1, 2).sum(axis=2).max(axis=0).sum())
