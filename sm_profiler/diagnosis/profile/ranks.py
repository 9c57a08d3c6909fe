"""Ranks that delay each other: one, each in turn, by collections at different steps, by communication, by unequal GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial, reduce

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.ledger import TRANSFER, UNSEEN
from sm_profiler.diagnosis.model import Evidence, Location
from sm_profiler.diagnosis.profile.case import Case, Found, mean_or_none
from sm_profiler.diagnosis.profile.computing import REST, part_of_share
from sm_profiler.diagnosis.profile.ledger import (
    AFTER,
    AGAIN,
    BESIDE_THE_PHASES,
    CALLBACKS,
    COLLECTING,
    COMPILING,
    EVALUATION,
    LOGGING,
    OTHER,
    SAVING,
    UNMATCHED,
    WAIT,
    during,
)
from sm_profiler.diagnosis.profile.lines import (
    error_of_part,
    in_loop,
    lines_of_collections,
    lines_of_rank,
    lines_of_samples,
    sleeps_beyond_others,
)
from sm_profiler.diagnosis.profile.loop import Loop
from sm_profiler.diagnosis.profile.occurrences import seen_in_samples
from sm_profiler.diagnosis.profile.patterns import largest_slowdown, slowdown
from sm_profiler.diagnosis.repairing import Saving
from sm_profiler.formats.columns import Floats, Ints
from sm_profiler.formats.recorded import Synchronization
from sm_profiler.formatting import duration, percent, plural, size
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.job_metrics import Rank
from sm_profiler.metrics.step_fold import COMMUNICATION


@attrs.frozen(eq=False)
class _Late:
    """A rank that the others wait for.

    Attributes:
        rank: its number.
        activity: what it does more than the others.
        meeting: the activity in which they wait for it.
        lost: seconds of a step that they wait.
        means: activity → mean seconds of a usual step on each rank, of those that take long enough.
        length: seconds of a usual step.
        error: standard error of `lost`, as far as only samples distinguish what the rank does more from where it waits.
    """

    rank: int
    activity: str
    meeting: str
    lost: float
    means: Mapping[str, Floats]
    length: float
    error: float = 0.0

    def own(self, activity: str) -> tuple[float, float]:
        """Return the mean seconds of an activity on the rank, and on the others."""
        return float(self.means[activity][self.rank]), _of_others(self.means[activity], self.rank)


# Activities in which ranks wait for each other, the surest first. What is saved, logged and called back is work.
_MEETINGS = (TRANSFER, "backward", "optimizer", OTHER)
_TIMED = (WAIT, *(part.key for part in parts.phases()))
# They have causes that compare ranks, or happen once.
_BESIDE = (EVALUATION, COLLECTING, COMPILING, AGAIN, UNMATCHED)


def _late_rank(case: Case, loop: Loop) -> _Late | None:
    """Return the rank that waits less than the others, by what it works more; None if none does."""
    usual = (loop.index < _last_usual(case)) & ~case.long_rows
    if not usual.any():
        return None
    length = float(np.median(_worked(case)[:, usual].mean(axis=1)))
    # the jitter of a machine makes one of two ranks late by half as much
    least, best = limits.FAR * length, None
    totals = case.ledger.totals
    spent = {name: max(rank.seconds.get(name, 0.0) for rank in totals.ranks) for name in totals.activities}
    spent[OTHER] = spent.get(OTHER, 0.0) + spent.pop(UNSEEN, 0.0)
    # no rank is late by, and none waits in, what none of them does for as long
    means = {
        name: _table(case, name)[:, usual].mean(axis=1)
        for name, seconds in spent.items()
        if name not in _BESIDE and seconds >= least * np.count_nonzero(usual)
    }
    work = [
        *(name for name in means if name not in _MEETINGS),
        *(name for name in reversed(_MEETINGS) if name in means),
    ]
    for at, meeting in enumerate(_MEETINGS):
        for name in (name for name in work if meeting in means and name not in _MEETINGS[: at + 1]):
            slowest = int(means[name].argmax())
            excess = float(means[name][slowest]) - _of_others(means[name], slowest)
            waited = _of_others(means[meeting], slowest) - float(means[meeting][slowest])
            lost = min(excess, waited)
            if waited < limits.MAJORITY * excess or (best is not None and lost <= best.lost):
                continue
            error = _error_of_samples(case, slowest) if meeting == TRANSFER and name not in _TIMED else 0.0
            if lost > limits.SURE_SIGMAS * error:
                best = _Late(slowest, name, meeting, lost, means, length, error)
        if best is not None and best.lost >= least > 0:
            return best
    return None


def _error_of_samples(case: Case, late: int) -> float:
    """Return the standard error of the seconds of a step by which collectives and other code of a rank differ from the others'.

    Both lie outside the phases, and only samples distinguish them.
    """
    errors = []
    for rank in case.ranks:
        outer = [
            one for one in case.metrics.samples.stacks if one.process == rank.name and one.phase in BESIDE_THE_PHASES
        ]
        met = [one for one in outer if case.seen.activity(one) == TRANSFER]
        spent = sum(rank.seconds[key] for key in BESIDE_THE_PHASES) / max(rank.train_steps, 1)
        errors.append(spent * error_of_part(met, outer))
    return math.hypot(errors[late], _of_others(np.asarray(errors), late))


def _table(case: Case, name: str) -> Floats:
    """Return the seconds of each rank and row in an activity; what is unseen is other code."""
    found = case.ledger.table(name)
    return np.asarray(found + case.ledger.table(UNSEEN)) if name == OTHER else found


def _worked(case: Case) -> Floats:
    """Return the seconds of each rank and row in which ranks are late or wait."""
    beside = (case.ledger.table(name) for name in _BESIDE if name in case.ledger.totals.activities)
    return np.asarray(case.ledger.table() - sum(beside, 0.0))


def straggler(case: Case) -> Found | None:
    """Find the rank that the others wait for: it has more work and waits less than they do."""
    late = _late_rank(case, case.loop) if case.in_step and case.loop is not None else None
    if late is None:
        return None
    rank, share = case.ranks[late.rank], late.lost / late.length
    waits = np.asarray([case.core_wait_of(one) for one in case.ranks])
    usual_wait = _of_others(waits, late.rank)
    without_core = float(waits[late.rank] - usual_wait)
    (own, theirs), (met, they_met) = late.own(late.activity), late.own(late.meeting)
    evidence = [
        Evidence("time the other ranks wait for this one", round(share, 4), None, rank.name, "share"),
        Evidence(f"mean time per step {during(late.activity)}", round(own * 1e3, 3), round(theirs * 1e3, 3), rank.name, "ms", "others"),
        Evidence(
            f"mean time per step {during(late.meeting)}, where ranks meet", round(met * 1e3, 3), round(they_met * 1e3, 3),
            rank.name, "ms", "others",
        ),
    ]  # fmt: skip
    if without_core >= limits.FLOOR:
        waited = round(float(waits[late.rank]), 4), round(usual_wait, 4)
        evidence.append(Evidence("time waiting for a core", *waited, rank.name, "share", "others"))
    words = {
        "rank": rank.name,
        "own": duration(own),
        "during": during(late.activity),
        "theirs": duration(theirs),
        "share": percent(share),
        "process": f"node {rank.node}, process {rank.name}",
    }
    advice = "input" if late.activity == WAIT else "outside" if late.activity in (OTHER, *_NO_WORK) else "work"
    # other processes on the machine may hit any rank, and another one the next time
    low = "the rank waits for a core" if without_core >= limits.MAJORITY * share else case.by_others(share)
    return Found(
        "straggler", words, tuple(evidence), share, f"straggler_{advice}", partial(_as_others, case, late, share),
        where=lines_of_rank(case.metrics, rank.name), ranks=(rank.name,), low=low,
        error=late.error / late.length if late.error else None,
    )  # fmt: skip


_NO_WORK = (SAVING, LOGGING, CALLBACKS)  # on samples


def _last_usual(case: Case) -> int:
    """Return the number of the step from which on the loop is slower; after the last one if it is not."""
    found = largest_slowdown(case) if slowdown(case) is not None else None
    return int(found[1].iterations.index[found[2].at]) if found is not None else AFTER


def _of_others(values: Floats, which: int) -> float:
    """Return the median of all ranks but one."""
    return float(np.median(np.delete(values, which)))


def _as_others(case: Case, late: _Late, share: float, loop: Loop) -> Saving | None:
    """Replay the steps with a straggler that works like the median of the others, or whose work is divided evenly."""
    meet = _table(case, late.meeting)
    work = _worked(case) - meet

    def repaired(which: int) -> Floats:
        """Return the seconds of each row that a rank costs which works like the median of the others."""
        work_then = work.copy()
        work_then[which] = np.median(np.delete(work, which, axis=0), axis=0)
        beyond = np.maximum(work.max(axis=0) - work_then.max(axis=0), 0.0)
        return loop.as_usual(np.minimum(beyond, work.max(axis=0) + meet.min(axis=0)))

    saved = repaired(late.rank)
    # one of the ranks is the slowest of each step, if only by chance
    by_chance = float(np.mean([repaired(other).sum() for other in range(len(work)) if other != late.rank]))
    saved *= max(1 - by_chance / max(float(saved.sum()), 1e-12), 0.0)
    replayed = float(saved.sum()) / float(loop.length.sum())
    if replayed <= 0:
        return None
    recorded = min(max(share / replayed, limits.MAJORITY), limits.CLEARLY)
    # Its work may be left out, or be divided evenly; a rank that sleeps, or writes files, has none to divide.
    divided = late.activity not in _NO_WORK and not sleeps_beyond_others(case.metrics, case.ranks[late.rank].name)
    equal = 1 / len(work) if divided else 0.0
    usual, most = (2 - equal) / 2, max(recorded, 1.0)
    if divided and (late.activity, late.meeting) == ("forward", "backward"):
        # Gradients take as much longer as the forward pass does, which the waits of the others for them hide.
        most = max(most, (1 - equal) * (1 + late.own("backward")[0] / late.own("forward")[0]))
    taken = (late.activity, late.meeting)
    return Saving(saved * usual, min(recorded, 1.0) * (1 - equal) / usual, most / usual, taken)


def more_steps(case: Case) -> Found | None:
    """Find ranks that wait, such as at the end of each epoch, while another one makes steps that they have no batches for."""
    if case.loop is None or not (share := case.loop.share(UNMATCHED)):
        return None
    ranked = sorted(case.ranks, key=lambda rank: rank.train_steps)
    least, most = ranked[0], ranked[-1]
    spared = 1 - case.mean(lambda rank: rank.train_steps) / most.train_steps  # if all make as many, and as many in all

    def saves(loop: Loop) -> Saving:
        """Divide the steps evenly; what the training does beside them takes as long as before."""
        waited = loop.of_activity(UNMATCHED)
        part = spared * float(loop.training.sum()) / max(float(waited.sum()), 1e-12)
        return Saving.of_scenarios([waited * min(part * one, 1.0) for one in limits.SAVED], (UNMATCHED,))

    words = {
        "least": least.name, "fewer": plural(least.train_steps, "step"), "most": most.name, "more": f"{most.train_steps:,}",
        "share": percent(share),
    }  # fmt: skip
    evidence = (
        Evidence("time in which other ranks make further steps", round(share, 4), unit="share"),
        Evidence("training steps", most.train_steps, None, most.name),
        Evidence("training steps", least.train_steps, None, least.name),
    )
    return Found("more_steps", words, evidence, share, saves=saves, ranks=(most.name,))


# --- in turn --------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Delays:
    """Time that the ranks of a job wait for the slowest one of each step, beyond what a rank that is always slow costs.

    Attributes:
        lost: seconds of each step.
        uneven: how much of that is saved if each step's work is divided evenly.
        slowest: number of the rank that each step waits for.
        iteration: mean seconds of a step.
        part: part of the step in which the slowest ranks do more than the others.
        agreement: correlation of what a rank works more than the others with what it waits less, over all steps.
    """

    lost: Floats
    uneven: Floats
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


def find_delays(ranks: Sequence[Rank]) -> Delays | None:
    """Compare the ranks step by step; None if they share too few steps.

    The work of a rank is what it does from one meeting of the ranks to the next; each rank's usual work is subtracted. A
    delay counts as far as the others wait at the meeting. Collections are left out.
    """
    steps = shared_steps(ranks)
    if len(steps) <= thresholds.MIN_STEPS:
        return None
    order = ("outside", *(key for key in parts.iteration_keys() if key != "outside"))  # from the end of the step before
    rows = [np.searchsorted(rank.iterations.index, steps) for rank in ranks]
    table = np.asarray([[rank.iterations.of(key)[own] for key in order] for rank, own in zip(ranks, rows, strict=True)])
    gc = np.asarray([rank.iterations.gc[own] for rank, own in zip(ranks, rows, strict=True)])
    iteration = float(np.mean([rank.iterations.length[own].mean() for rank, own in zip(ranks, rows, strict=True)]))
    if iteration <= 0:
        return None
    found = [_delays_at(order.index(meeting), order, table, gc, iteration) for meeting in parts.MEETINGS]
    return max(found, key=lambda delays: delays.share)


def _delays_at(meeting: int, order: tuple[str, ...], table: Floats, gc: Floats, iteration: float) -> Delays:
    """Return the delays if the ranks meet in one part; `table` has the shape (ranks, parts, steps)."""
    by_part = np.concatenate([table[:, :meeting, 1:], table[:, meeting + 1 :, :-1]], axis=1)
    names = (*order[:meeting], *order[meeting + 1 :])
    work = np.maximum(by_part.sum(axis=1) - gc[:, 1:], 0.0)
    work, met = _beyond_usual(work), _beyond_usual(table[:, meeting, 1:])
    slowest = work.argmax(axis=0)
    lost = np.clip(np.minimum(_beyond_others(work, slowest), -_beyond_others(met, slowest)), 0.0, None)
    weight = lost / max(float(lost.sum()), 1e-12)
    grown = [float((_beyond_others(by_part[:, at], slowest) * weight).sum()) for at in range(len(names))]
    return Delays(
        lost,
        np.minimum(lost, work.max(axis=0) - work.mean(axis=0)),
        slowest,
        iteration,
        names[int(np.argmax(grown))],
        _agreement(work, met),
    )


def _beyond_usual(values: Floats) -> Floats:
    """Subtract what is usual for each rank in each segment of the loop, so that a rank slow since a moment is no turn."""
    segments = np.array_split(values, limits.STRETCHES, axis=1)
    return np.concatenate([one - one.mean(axis=1, keepdims=True) for one in segments], axis=1)


def _agreement(work: Floats, met: Floats) -> float:
    """Return how well the ranks' work explains their waiting; shape (ranks, steps)."""
    work, met = (np.nan_to_num(values - values.mean(axis=0)).ravel() for values in (work, met))
    scale = float(np.sqrt((work @ work) * (met @ met)))
    return -float(work @ met) / scale if scale > 0 else 0.0


def _beyond_others(values: Floats, which: Ints) -> Floats:
    """Return by how much one rank of each step exceeds the median of the others; shape (ranks, steps)."""
    steps = np.arange(values.shape[1])
    values = np.nan_to_num(values)
    others = values.copy()
    others[which, steps] = np.nan
    return np.asarray(values[which, steps] - np.nanmedian(others, axis=0))


def turns(case: Case) -> Found | None:
    """Find steps in which the ranks wait for a slow one that is another each time."""
    ranks = case.ranks
    if not case.in_step:
        return None
    delays = find_delays(ranks)
    # evenly divided work leaves half of it with two ranks
    if delays is None or delays.usual_share < limits.FAR:
        return None
    causes, equal = delays.by_rank(len(ranks)), 1 / len(ranks)
    most = int(causes.argmax())
    if delays.agreement < limits.TOGETHER and delays.usual_share < limits.FAR + limits.REPEAT:
        return None  # other load on the machine makes ranks late, too, but not those that work more
    if causes[most] > equal + limits.MAJORITY * (1 - equal):
        return None  # a single rank is at fault

    def saves(loop: Loop) -> Saving | None:
        """Spread the work of each step evenly over the ranks; at best, the delay disappears."""
        lost = loop.as_usual(loop.filled(shared_steps(ranks)[1:], delays.lost, delays.share))
        least = float(delays.uneven.sum() / delays.lost.sum())
        usual = (1 + least) / 2
        return Saving(lost * usual, least / usual, 1 / usual)

    evidence = (
        Evidence("time the ranks wait for the slowest of a step", round(delays.share, 4), unit="share"),
        Evidence("the same without the worst tenth of the steps", round(delays.usual_share, 4), unit="share"),
        Evidence("agreement of work with waiting", round(delays.agreement, 3), unit="correlation"),
        Evidence("delays caused by the rank that causes most", round(float(causes[most]), 4), None, ranks[most].name, "share"),
        Evidence("mean delay of a step", round(float(delays.lost.mean()) * 1e3, 3), unit="ms"),
    )  # fmt: skip
    advice = {"wait": "turns_input", "outside": "turns_outside"}.get(delays.part, "turns_work")
    return Found(
        "turns", {"share": percent(delays.share), "during": parts.during(delays.part)}, evidence, delays.share, advice, saves,
        where=lines_of_samples(case.metrics, lambda one: in_loop(one) and one.phase != "backward"),  # in which ranks meet
        low=case.by_others(delays.share),
    )  # fmt: skip


def collections_in_turn(case: Case) -> Found | None:
    """Find garbage collections that hit ranks at different steps, so every rank waits for every collection."""
    ranks = case.ranks
    if not case.in_step:
        return None
    steps: Ints = reduce(np.intersect1d, [rank.iterations.index for rank in ranks])
    steps = steps[steps >= thresholds.WARM_UP_STEPS]
    if len(steps) < thresholds.MIN_STEPS:
        return None
    rows = [np.searchsorted(rank.iterations.index, steps) for rank in ranks]
    spent = np.asarray([rank.iterations.gc[own] for rank, own in zip(ranks, rows, strict=True)])
    length = float(np.mean([rank.iterations.length[own].sum() for rank, own in zip(ranks, rows, strict=True)]))
    own = float(spent.sum(axis=1).max())
    # a collection at the edge of a step may count for the next one, so two steps count as one, in either way
    together = min(_slowest_of_pairs(spent[:, first:]) for first in (0, 1))
    extra = (together - own) / length if length > 0 else 0.0
    # to collect together gains about as much as not to collect
    if extra <= 0 or extra * length < limits.MAJORITY * own:
        return None
    share = min(together / length, 1.0)

    def saves(loop: Loop) -> Saving | None:
        """Leave rare collections at the same step of all ranks."""
        found = [loop.placed(rank.iterations.index, rank.iterations.gc) for rank in ranks]
        seconds = np.max(found, axis=0)
        total = float(seconds.sum())
        if total <= 0:
            return None
        least, value, most = limits.SAVED
        scale = min(share * float(loop.length.sum()) / total, 1.0) * value
        return Saving(seconds * scale, least / value, most / value, (COLLECTING, *REST, "backward", "optimizer"))

    evidence = (
        Evidence("time lost because collections differ in their steps", round(extra, 4), unit="share"),
        Evidence("steps in which some rank collects", round(float((spent > 0).any(axis=0).mean()), 4), unit="share"),
        Evidence("collections of a single rank, at most", round(own / length, 4), unit="share"),
        Evidence("longest collection", round(float(spent.max()) * 1e3, 3), unit="ms"),
    )
    words = {"share": percent(together / length), "extra": percent(extra)}
    return Found("gc_turns", words, evidence, share, saves=saves, where=lines_of_collections(case.metrics))


def _slowest_of_pairs(spent: Floats) -> float:
    """Return the sum of the slowest rank's collections over pairs of steps; shape (ranks, steps)."""
    even = spent[:, : spent.shape[1] // 2 * 2]
    return float(even.reshape(len(spent), -1, 2).sum(axis=2).max(axis=0).sum())


def communication(case: Case) -> Found | None:
    """Find loops that spend much of their steps in collectives."""
    if (found := _synchronization(case)) is not None:
        return found
    shares = []
    for rank in case.ranks:
        spent = rank.steps.seconds(COMMUNICATION)
        rows = (spent > 0) & rank.train
        if rows.sum() >= thresholds.MIN_STEPS:
            shares.append(float(spent[rows].sum() / (rank.steps.duration[rows].sum() / 1e6)))
    if not shares:
        return _called_collectives(case)
    share = min(float(np.mean(shares)), 1.0)
    if share < limits.HIDDEN:
        return None
    evidence = Evidence("time in collectives, in the steps in which they were recorded", round(share, 4), unit="share")
    return Found(
        "communication", {"share": percent(share)}, (evidence,), share,
        saves=lambda loop: part_of_share(loop, share, _EXCHANGES, limits.HIDDEN, sure=False),
        doubt="computation may hide some of it", where=_lines_of_collectives(case),
    )  # fmt: skip


def _called_collectives(case: Case) -> Found | None:
    """Find collectives that the training threads call and wait for, as samples show them.

    The rank that waits least for the others, in each step, shows what the exchange itself takes.
    """
    if case.loop is None:
        return None
    seen, alone = seen_in_samples(case, TRANSFER), case.ledger.table(TRANSFER).min(axis=0)
    share = float(alone.sum() / case.loop.length.sum())
    if not seen.lines or share < limits.HEALTHY:
        return None

    def saves(loop: Loop) -> Saving:
        """Call them as rarely as other calls; at least, they take as long as an exchange in a healthy loop."""
        spent = np.minimum(loop.usual(TRANSFER), alone)
        least = max(1 - limits.HEALTHY / share, limits.PART_SAVED_INDIRECT[0])
        return Saving.of_scenarios([spent * part for part in (least, *limits.SAVED[1:])], (TRANSFER,))

    return seen.found(
        "communication", "time in collectives, on the rank that waits least in them", share, {}, saves=saves,
        advice="communication_called", doubt="waiting for other ranks counts as well",
    )  # fmt: skip


def _lines_of_collectives(case: Case) -> tuple[Location, ...]:
    """Return the calls of collectives; without any, the backward pass, which runs them for its gradients."""
    return seen_in_samples(case, TRANSFER).lines or lines_of_samples(case.metrics, lambda one: one.phase == "backward")


_EXCHANGES = ("backward", "optimizer")  # in which gradients are exchanged


@attrs.frozen
class _Exchange:
    """The exchange of gradients as a rank timed it.

    Attributes:
        alone, whole: share of the loop in which nothing hides it, and with what is hidden.
        passes: backward passes with an exchange for each update of the parameters.
        record: the latest record.
    """

    alone: float
    whole: float
    passes: float
    record: Synchronization


def _exchange_of(rank: Rank, case: Case) -> _Exchange | None:
    """Return the exchange of a rank, as a part of the backward passes that the hook timed: few have the times of both."""
    own = case.metrics.recorded(Synchronization).of(rank.name)
    if not own or rank.judged is not None:
        return None
    latest, first = own[-1].args, rank.attempts.breaks[-1] if rank.attempts.breaks else 0
    rows = rank.steps[first:][rank.train[first:]]  # of this attempt, as the passes are
    steps, learned = int((rows.start <= latest.at_us).sum()), rows.seconds("backward") > 0
    alone = max(latest.communication_us - latest.overlap_us, 0.0)
    timed = latest.backward_us + alone
    if latest.passes <= 0 or steps <= 0 or timed <= 0 or not learned.any():
        return None
    each = latest.passes / steps  # the loop may read a batch, and so make a step, for each of several passes
    updated = float((rows.seconds("optimizer")[learned] > 0).mean())
    passes, backward = each / updated if updated > 0 else 1.0, rank.share("backward") * min(each, 1.0)
    return _Exchange(backward * alone / timed, backward * min(latest.communication_us / timed, 1.0), passes, latest)


def _synchronization(case: Case) -> Found | None:
    """Find gradients that are exchanged while nothing is computed, as DistributedDataParallel timed it.

    The rank that waits least for the others shows what the exchange itself takes. Where ranks wait for cores, the others
    wait for them in the exchange. If gradients of several backward passes are added up, one exchange for all of them does.
    """
    found = [one for rank in case.ranks if (one := _exchange_of(rank, case)) is not None]
    if len(found) <= 1 or len(found) < len(case.ranks):
        return None
    least, passes = min(found, key=lambda one: one.alone), min(one.passes for one in found)
    again = 1 - 1 / passes if passes >= 2 - limits.MAJORITY else 0.0
    share = max(least.alone - case.core_wait, 0.0)
    if share < limits.FLOOR or not (again or share >= limits.HEALTHY):
        return None

    def saves(loop: Loop) -> Saving:
        if not again:
            return part_of_share(loop, share, _EXCHANGES, limits.HEALTHY, sure=False)
        scenarios = (share * again * limits.SAVED[0], share * again, max(least.whole, share) * again)
        return Saving.of_scenarios(
            [loop.usual(*_EXCHANGES).clip(max=loop.now * part) for part in scenarios], _EXCHANGES
        )

    evidence = (
        Evidence("time in which gradients are exchanged and nothing is computed", round(share, 4), unit="share"),
        Evidence("the same with what is hidden", round(least.whole, 4), unit="share"),
        Evidence("backward passes with an exchange for each update", round(passes, 2)),
        Evidence("size of the gradients", least.record.parameter_bytes, unit="bytes"),
    )
    words = {"share": percent(share), "passes": f"{passes:.2g}", "size": size(least.record.parameter_bytes)}
    text = "communication_again" if again else "communication_alone"
    return Found(
        text, words, evidence, share, text if again else "communication", saves,
        "" if again else "waiting for other ranks counts as well", error=limits.REPEAT_MOST * share,
        where=_lines_of_collectives(case),
    )  # fmt: skip


def unbalanced(case: Case) -> Found | None:
    """Find a node whose GPUs are used unevenly."""
    by_node: dict[str, list[tuple[float, str]]] = {}
    for gpu in case.metrics.gpus:
        if math.isfinite(gpu.mean):
            by_node.setdefault(gpu.node, []).append((gpu.mean, gpu.name))
    node = max(by_node, key=lambda name: max(by_node[name])[0] - min(by_node[name])[0], default=None)
    if node is None:
        return None
    (high, most_used), (low, least_used) = max(by_node[node]), min(by_node[node])
    if high - low < 100 * limits.USUAL:
        return None
    mean = mean_or_none([value for value, _ in by_node[node]]) or 0.0
    name = "difference between the most-utilized and the least-utilized GPU"
    evidence = Evidence(name, round(high - low, 1), 100 * limits.USUAL, node, "percent")
    words = {"node": node, "most": most_used, "high": f"{high:.0f}", "least": least_used, "low": f"{low:.0f}"}
    return Found("unbalanced", words, (evidence,), 1 - mean / high if high else 0.0, error=0.0)
