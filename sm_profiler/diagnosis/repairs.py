"""Repairs: the seconds of the loop that each saves, a function a class, and the lost share where none fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import attrs
import numpy as np

from sm_profiler.diagnosis import policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.extensions import ForeignFinding
from sm_profiler.diagnosis.judges import JudgeContext
from sm_profiler.diagnosis.judges.idle import idle_pauses
from sm_profiler.diagnosis.judges.judge_context import input_bursts
from sm_profiler.diagnosis.judges.loop import launches_of
from sm_profiler.diagnosis.judges.one_by_one import ONE_BY_ONE, most_saved
from sm_profiler.diagnosis.judges.ranks import MEETINGS
from sm_profiler.diagnosis.judges.slowdown import STEP_OF_CHANGE
from sm_profiler.diagnosis.judges.stalls import worst_stalls
from sm_profiler.diagnosis.judges.turns import find_delays, shared_steps
from sm_profiler.diagnosis.judges.workers import Workers, workers_of
from sm_profiler.diagnosis.ledger import UNSEEN
from sm_profiler.diagnosis.loader_queue import fetch_times, simulated_wait
from sm_profiler.diagnosis.loop import EVALUATION, Loop, Saving
from sm_profiler.diagnosis.loop_ledger import (
    AGAIN,
    CALLBACKS,
    COLLECTING,
    COPYING,
    LOGGING,
    MAKING,
    NAMED,
    OTHER,
    PHASE,
    SAVING,
    WAIT,
)
from sm_profiler.diagnosis.loop_table import rows_of_rank
from sm_profiler.diagnosis.model import Finding
from sm_profiler.formats import event_names
from sm_profiler.formats.columns import Floats, Mask
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.job_metrics import Rank
from sm_profiler.metrics.record_fold import Record

Repair = Callable[[Finding, JudgeContext, Loop], "Saving | None"]
BESIDE = (OTHER, UNSEEN)
COMPUTING = ("forward", "backward", "optimizer", *BESIDE)
LATE = (Class.STRAGGLER, Class.MOVING_STRAGGLER, Class.GC_OUT_OF_PHASE)
_ACTIVITIES = {"wait": (WAIT,), "outside": BESIDE, "between": BESIDE}  # of a part, if they have other names


def exceptions(loop: Loop, findings: Sequence[Finding], context: JudgeContext) -> Loop:
    """Return the loop with what is known about exceptions: rare long rows, rows that are slower, ranks that are late."""
    step = next(
        (
            one.value
            for found in findings
            if found.kind is Class.FAIL_SLOW
            for one in found.evidence
            if one.metric == STEP_OF_CHANGE
        ),
        None,
    )
    slow = loop.index >= step if isinstance(step, (int, float)) else None
    least = {}
    if any(one.kind in LATE for one in findings):
        least = {name: context.ledger.table(name).min(axis=0) for name in loop.left}
    return attrs.evolve(loop, long=long_rows(context, loop), slow=slow, least=least)


def saving_of(finding: Finding, context: JudgeContext, loop: Loop) -> Saving:
    """Return what the repair of a finding about the loop saves."""
    model = None if isinstance(finding, ForeignFinding) else REPAIRS.get(finding.kind)
    saving = model(finding, context, loop) if model else None
    saving = saving if saving is not None else _lost_share(finding, loop)
    host = finding.kind in policy.BESIDE_THE_GPU
    if finding.kind is Class.OPTIMIZER_BOUND:  # the host may only wait in it for the GPU to finish
        host = not any(rank.on_device for rank in context.ranks)
    if not host or not np.isfinite(loop.idle):
        return saving
    if finding.kind is not Class.HOST_BOUND:  # larger batches fill the GPU
        saving = saving.at_most(loop.idle + policy.IDLE_ERROR * loop.total)
    total = float(saving.seconds.sum())
    certain = saving.low if saving.certain is None else saving.certain
    bound = max(loop.idle - policy.IDLE_USUAL * float(loop.length.sum()), 0.0) / total if total > 0 else 0.0
    return attrs.evolve(saving, certain=min(certain, bound))


def lost_share(finding: Finding) -> float:
    """Return the finding's share of the time, from 0 to 1 even for damaged data."""
    return min(max(float(np.nan_to_num(finding.share_of_time)), 0.0), 1.0)


def _lost_share(finding: Finding, loop: Loop, taken: tuple[str, ...] = ()) -> Saving:
    """Return the finding's own share of the time, as far as its confidence goes."""
    low, value = policy.UNMODELLED[finding.confidence]
    return Saving(loop.now * lost_share(finding) * value, low / value, 1 / value, taken)


def _kept(finding: Finding) -> tuple[float, float]:
    """Return the parts of a saving that a repair keeps at least and usually, by its confidence."""
    low, value = policy.UNMODELLED[finding.confidence]
    return float(low), float(value)


def _idle(_: Finding, context: JudgeContext, loop: Loop) -> Saving:
    """Leave out the pauses between steps: nothing works in them."""
    spans = idle_pauses(context.metrics)
    found = np.zeros(len(loop.index))
    for rank in context.ranks[:1]:
        rows = rows_of_rank(rank)
        at = np.searchsorted(rows.start, [start for start, _ in spans], side="right") - 1
        for row, (start, end) in zip(at.tolist(), spans, strict=True):
            if row >= 0:
                found += loop.placed(rows.index[row : row + 1], np.asarray([end - start]))
    return Saving(np.minimum(found, loop.now))


def _transfer(finding: Finding, _: JudgeContext, loop: Loop) -> Saving:
    return _lost_share(finding, loop, (COPYING,))


def _storage(finding: Finding, _: JudgeContext, loop: Loop) -> Saving:
    return _lost_share(finding, loop, (WAIT,))


def _named(part: str, loop: Loop) -> tuple[str, ...]:
    """Return the activities of a part."""
    if part == parts.DECLARED:
        return tuple(name for name in loop.left if name.startswith(PHASE))
    return _ACTIVITIES.get(part, (part,))


def long_rows(context: JudgeContext, loop: Loop) -> Mask:
    """Return the rows that are rare long steps, which other repairs leave as they are."""
    found = np.zeros(len(loop.index))
    for rank in context.ranks:
        if rank.stalls.is_rare and not input_bursts(rank, context.metrics):
            found += loop.placed(rank.iterations.index, rank.stalls.long.astype(np.float64))
    return found > 0


def _activity(name: str, saved: tuple[float, float, float]) -> Repair:
    """Return the repair of an activity that happens rarely, or in another thread: saved at least, usually, at most."""
    least, value, most = saved

    def of(_: Finding, __: JudgeContext, loop: Loop) -> Saving | None:
        seconds = loop.of_activity(name) * value
        return Saving(seconds, least / value, most / value, (name,), strict=True) if seconds.any() else None

    return of


def _input(finding: Finding, context: JudgeContext, loop: Loop) -> Saving | None:
    """Simulate the loader with the advised workers; the steps stay as long as they are, or as the cores allow."""
    wait = loop.usual(WAIT)
    if not context.waits_known:
        making = loop.of_activity(MAKING)
        return (
            Saving.of_scenarios([making * one for one in (*_kept(finding), 1.0)], (MAKING,)) if making.any() else None
        )
    if wait.sum() <= 0:
        return Saving(wait)
    pool, compute = workers_of(context), np.maximum(loop.training - loop.of_activity(WAIT), 0.0)
    rows = loop.training > 0
    if pool.now < 0:
        left = policy.INPUT_WAIT_MS / 1e3, policy.LOADER_REST_MS / 1e3, 0.0
    else:
        left = _left(pool, wait[rows], compute[rows], _busy(context, pool, float((wait + compute)[rows].mean())))
    mean = float(wait[rows].mean())
    # Work that is done once is not done in each epoch, with any number of cores.
    workers, usual, most = (wait * (1 - min(one / mean, 1.0)) for one in left)
    less = wait * float(policy.INPUT_CERTAIN)
    saving = Saving.of_scenarios([workers, np.maximum(usual, less), np.maximum(most, less)], (WAIT,))
    total = float(saving.seconds.sum())
    return attrs.evolve(saving, certain=max(saving.low, float(less.sum()) / total) if total > 0 else 0.0)


def _left(
    pool: Workers, wait: Floats, compute: Floats, busy: Callable[[float, float], tuple[float, float]]
) -> tuple[float, float, float]:
    """Return the seconds by which a step is longer than its computation after the repair: at worst, usually, at best.

    Args:
        pool: the workers, as they are and as advised.
        wait: seconds of each step spent waiting.
        compute: seconds of each step without waiting.
        busy: estimates the seconds in which all cores together do the work of a step.
    """
    fetch, rest, mean = fetch_times(wait, wait + compute, pool.now), policy.LOADER_REST_MS / 1e3, float(compute.mean())
    usual = simulated_wait(fetch, compute, pool.suggested)
    fewest = simulated_wait(fetch, compute, max(pool.needed, pool.now + 1))
    if pool.idle or not pool.cores:
        return max(fewest, policy.INPUT_WAIT_MS / 1e3), usual + rest, 0.0
    # workers that compute need cores, and the work of all cores does not become less
    slowed = mean * (policy.LOADER_SLOWED - 1)
    load = float((wait if pool.now <= 0 else (wait + compute) * pool.now).mean())
    shared, crowded = (max(one - mean, 0.0) for one in busy(load, mean))
    return max(fewest, crowded + slowed) + rest, max(usual, shared) + rest, 0.0  # at best, work is done once and kept


def _busy(context: JudgeContext, pool: Workers, iteration: float) -> Callable[[float, float], tuple[float, float]]:
    """Return how to estimate the seconds in which all cores together do the job's work of a step: usually, at worst.

    The function takes the seconds of loading and of the step itself. Without workers, all is done by the training process,
    whose CPU time is known; otherwise it is bounded by what all programs on the machine do, and by what the job can do: the
    step takes one core, or all of them.
    """
    used = [
        usage.cores(rank.start, rank.end) for rank in context.ranks if (usage := context.metrics.usage.get(rank.name))
    ]
    own = [one for one in used if one is not None]
    cpu = context.metrics.mean_of("cpu")
    everything = iteration * min(max(cpu, 0.0), 100.0) / 100 if cpu is not None else 0.0

    def of(load: float, step: float) -> tuple[float, float]:
        if pool.now == 0 and own:
            exact = iteration * float(np.mean(own)) / pool.cores
            return exact, exact
        return min(everything, (load + step) / pool.cores), min(everything, load / pool.cores + step)

    return of


def _straggler(finding: Finding, context: JudgeContext, loop: Loop) -> Saving | None:
    """Replay the steps with a straggler that works like the median of the others."""
    ranks = context.ranks
    name = next((one.where for one in finding.evidence if one.where), "")
    slow = next((number for number, rank in enumerate(ranks) if rank.name == name), None)
    count = min((len(rank.iterations) for rank in ranks), default=0)
    if slow is None or len(ranks) <= 1 or not count:
        return None
    others = [number for number in range(len(ranks)) if number != slow]

    def waited(key: str) -> float:
        means = [rank.mean(key, without_stalls=False) for rank in ranks]
        return float(np.median([means[number] for number in others])) - means[slow]

    meeting = max(MEETINGS, key=waited)
    rows = _same_steps(ranks, count)
    work = np.asarray(
        [(rank.iterations.length - rank.iterations.of(meeting))[own] for rank, own in zip(ranks, rows, strict=True)]
    )
    meet = np.asarray([rank.iterations.of(meeting)[own] for rank, own in zip(ranks, rows, strict=True)])
    work = np.maximum(np.nan_to_num(work), 0.0)
    now = work.max(axis=0)
    work[slow] = np.median(work[others], axis=0)
    saved = np.minimum(np.maximum(now - work.max(axis=0), 0.0), now + meet.min(axis=0))
    length = float(ranks[slow].iterations.length[rows[slow]].sum())
    share = float(saved.sum()) / length if length > 0 else 0.0
    whole = loop.placed(ranks[slow].iterations.index[rows[slow]], saved)
    total = float(whole.sum())
    if total <= 0 or share <= 0:
        return None
    recorded = min(max(lost_share(finding) / share, 0.5), 1.5)
    grown = max((key for key in parts.iteration_keys() if key != meeting), key=lambda key: -waited(key))
    taken = (*_named(grown, loop), *_named(meeting, loop))
    return Saving(whole, min(recorded, 1.0), max(recorded, 1.0), taken)


def _same_steps(ranks: Sequence[Rank], count: int) -> list[Any]:
    """Return the rows of the same iterations in all ranks: the first ones, or of samples the common ones."""
    if all(rank.judged is None for rank in ranks):
        return [slice(count)] * len(ranks)
    common = reduce(np.intersect1d, [rank.iterations.index for rank in ranks])
    return [np.searchsorted(rank.iterations.index, common) for rank in ranks]


def _host(finding: Finding, context: JudgeContext, loop: Loop) -> Saving | None:
    """Take a larger batch: what a step costs however large it is, is spread over more samples.

    Loading and arithmetic grow with the batch. The optimizer and Python do not, nor do operators without arithmetic.
    """
    gpu = context.gpu_mean
    if finding.evidence[0].metric == ONE_BY_ONE:
        claim, lost, most = _lost_share(finding, loop), lost_share(finding), most_saved(context)
        return claim if most is None or lost <= 0 else attrs.evolve(claim, high=claim.high * max(most / lost, 1.0))
    if not finding.larger_batch:
        return None  # another repair
    share = {key: loop.share(key) for key in (WAIT, "forward", "backward", EVALUATION)}
    passes = share["forward"] + share["backward"]
    if gpu is not None:
        grows = [gpu / 100 * part for part in policy.DEVICE_GROWS]
    else:
        counted = launches_of(context) is not None
        launches = [min(lost_share(finding) * more, passes) if counted else 0.0 for more in policy.LAUNCHES_MORE]
        grows = [(passes - one) * part for one, part in zip(launches, policy.ARITHMETIC, strict=True)]
    wanted = [
        max(1 - share[EVALUATION] - share[WAIT] * loads - computes, 0.0) * (1 - 1 / policy.BATCH_LARGER)
        for loads, computes in zip(policy.LOADING_GROWS, grows, strict=True)
    ]
    high, value, low = wanted
    if value <= 0:
        return Saving(loop.length * 0.0)
    measured = 1.0 if finding.confidence == "high" else _kept(finding)[0]
    certain = min(low, lost_share(finding) * (1 - 1 / policy.BATCH_LARGER) * measured) / value
    return Saving(
        loop.length * value, min(low / value, 1.0), max(high / value, 1.0), (*COMPUTING, WAIT), certain=certain
    )


def _recompiling(_: Finding, context: JudgeContext, loop: Loop) -> Saving | None:
    """Make the steps that compile again as long as others: what was compiled runs slowly at first, which no record shows.

    If there are no others, such a step may take any time, so at most all of it is saved.
    """
    seconds = loop.of_activity(AGAIN)
    total = float(seconds.sum())
    if total <= 0:
        return None
    least, value, most = policy.RECOMPILING_SAVED
    records = context.metrics.records.get(event_names.COMPILE)
    beyond = whole = 0.0
    for rank in context.ranks:
        own = records.of(rank.name) if records else ()
        length, spent = rank.iterations.length, _in_rows(rank, own)
        again = _in_rows(rank, [one for one in own if one.args.get("again") is True])
        rows, usual = again > 0, spent <= 0
        if np.count_nonzero(usual) >= thresholds.MIN_STEPS and rows.any():
            more = float(np.median(length[rows] - np.minimum(spent[rows], length[rows])) - np.median(length[usual]))
            beyond += max(more, 0.0) * np.count_nonzero(rows) / len(context.ranks)
        else:
            whole += float(length[rows].sum()) / len(context.ranks)
    lost = seconds * ((total + beyond) / total)
    return Saving(
        lost * value, least / value, most / value * max(whole / total, 1.0), (AGAIN, "compiled", "forward", "backward")
    )


def _in_rows(rank: Rank, records: Sequence[Record]) -> Floats:
    """Return the seconds of single calls in each iteration of a process; those between two that are judged are left out."""
    starts, spent = rank.iterations.start, np.zeros(len(rank.iterations))
    ends = starts + rank.iterations.length
    rows = np.searchsorted(starts, np.asarray([one.start for one in records], np.float64), side="right") - 1
    for row, one in zip(rows, records, strict=True):
        if row >= 0 and one.start <= ends[row]:
            spent[row] += max(one.seconds, 0.0)
    return spent


def _turns(finding: Finding, context: JudgeContext, loop: Loop) -> Saving | None:
    """Spread the work of each step evenly over the ranks; at best, it disappears."""
    delays = find_delays(context.ranks) if len(context.ranks) > 1 else None
    if delays is None:
        return None
    lost = loop.placed(shared_steps(context.ranks)[1:], delays.lost)
    if lost.sum() <= 0:
        return None
    lost *= lost_share(finding) * float(loop.length.sum()) / lost.sum()  # the phases of some steps were not recorded
    spread = 1 - 1 / len(context.ranks)
    usual = (spread + 1) / 2
    return Saving(lost * usual, spread / usual, 1 / usual)


def _of_kernels(finding: Finding, _: JudgeContext, loop: Loop) -> Saving:
    """Return what usual repairs of slow kernels save, as in traces."""
    low, value, high = (float(one) for one in policy.TRACE_REPAIRED[finding.kind])
    return Saving(loop.length * lost_share(finding) * value, low / value, high / value)


def _sync(finding: Finding, context: JudgeContext, loop: Loop) -> Saving:
    """Saves all but a healthy loop's overhead between phases and waits, in usual steps."""
    outside = loop.usual(*BESIDE)
    inner = float(np.median(loop.training - loop.of_activity(*BESIDE)))
    rests = (policy.OUTSIDE_REST_MOST, policy.OUTSIDE_REST, 0.0)
    saving = Saving.of_scenarios([np.maximum(outside - rest * inner, 0.0) for rest in rests], BESIDE)
    reads = context.gpu_mean is not None and loop.share(*BESIDE) < lost_share(finding) / 2  # results, inside the phases
    return _lost_share(finding, loop) if reads else saving


def _stalls(_: Finding, context: JudgeContext, loop: Loop) -> Saving | None:
    """Make long steps as long as usual ones; what has a cause of its own is left to that."""
    rank = worst_stalls(context)
    long = np.zeros(len(loop.index), np.bool_)
    if rank is not None:
        long = loop.placed(rank.iterations.index, rank.stalls.long.astype(np.float64)) > 0
    if rank is None or not long.any() or long.all():
        return Saving(loop.now * 0.0)
    own = [name for name in loop.left if name not in NAMED]
    rest = loop.of_activity(*own)
    beyond = np.where(long, np.maximum(rest - np.median(rest[~long]), 0.0), 0.0)
    least, value = policy.EXCESS_SAVED_LEAST, policy.EXCESS_SAVED
    grown = tuple(name for part in rank.stalls.grown if part != parts.UNKNOWN for name in _named(part, loop))
    taken = tuple(dict.fromkeys((*grown, *own)))
    return Saving(beyond * value, least / value, 1 / value, taken, strict=True)


def _optimizer(_: Finding, __: JudgeContext, loop: Loop) -> Saving:
    """Leave what a fused optimizer takes of a step."""
    optimizer = loop.usual("optimizer")
    others = loop.training - optimizer
    rests = (policy.OPTIMIZER_REST_MOST, policy.OPTIMIZER_REST, policy.OPTIMIZER_REST_LEAST)
    scenarios = [np.maximum(optimizer - others * rest / (1 - rest), 0.0) for rest in rests]
    scenarios[0] = np.minimum(scenarios[0], optimizer * policy.OPTIMIZER_SAVED_LEAST)
    return Saving.of_scenarios(scenarios, ("optimizer",))


def _slowdown(finding: Finding, _: JudgeContext, loop: Loop) -> Saving | None:
    """Make the steps since the slowdown as long as those before it."""
    step = next((one.value for one in finding.evidence if one.metric == STEP_OF_CHANGE), None)
    if not isinstance(step, (int, float)):
        return None
    slow = (loop.index >= step) & (np.arange(len(loop.index)) < loop.steps)
    if not slow.any() or slow.all():
        return None
    grown = {
        name: max(float(np.median(row[slow]) - np.median(row[~slow])), 0.0)
        for name, row in loop.left.items()
        if name not in NAMED
    }
    seconds = np.where(slow, loop.training, 0.0)
    total = float(seconds.sum())
    if total <= 0:
        return None
    least, value, most = policy.SLOWDOWN_SAVED
    seconds *= lost_share(finding) * float(loop.length.sum()) / total * value
    order = tuple(sorted((name for name in grown if grown[name] > 0), key=lambda name: -grown[name]))
    return Saving(seconds, least / value, most / value, order)


def _gc_turns(finding: Finding, context: JudgeContext, loop: Loop) -> Saving | None:
    """Leave rare collections at the same step of all ranks."""
    found = [loop.placed(rank.iterations.index, rank.iterations.gc) for rank in context.ranks]
    seconds = np.max(found, axis=0)
    total = float(seconds.sum())
    if total <= 0:
        return None
    scale = min(lost_share(finding) * float(loop.length.sum()) / total, 1.0) * policy.GC_SAVED
    low, high = policy.GC_SAVED_LEAST / policy.GC_SAVED, policy.GC_UNSEEN / policy.GC_SAVED
    return Saving(seconds * scale, low, high, (COLLECTING, *BESIDE, "backward", "optimizer"))


def _own_phase(finding: Finding, _: JudgeContext, loop: Loop) -> Saving:
    return _lost_share(finding, loop, _named(parts.DECLARED, loop))


def _communication(finding: Finding, _: JudgeContext, loop: Loop) -> Saving:
    return _lost_share(finding, loop, ("backward", "optimizer"))


_CALLS = (policy.EXCESS_SAVED_LEAST, policy.EXCESS_SAVED, policy.CALLS_UNSEEN)
REPAIRS: dict[Class, Repair] = {
    Class.INPUT_BOUND: _input,
    Class.SYNC_BOUND: _sync,
    Class.GC_BOUND: _activity(COLLECTING, (policy.GC_SAVED_LEAST, policy.GC_SAVED, policy.GC_UNSEEN)),
    Class.PERIODIC_STALL: _stalls,
    Class.STEP_OUTLIERS: _stalls,
    Class.CHECKPOINTING: _activity(SAVING, _CALLS),
    Class.LOGGING: _activity(LOGGING, (policy.EXCESS_SAVED_LEAST, policy.LOGGING_SAVED, policy.CALLS_UNSEEN)),
    Class.SLOW_CALLBACK: _activity(CALLBACKS, _CALLS),
    Class.IDLE: _idle,
    Class.TRANSFER_BOUND: _transfer,
    Class.SLOW_STORAGE: _storage,
    Class.RECOMPILATION: _recompiling,
    Class.FAIL_SLOW: _slowdown,
    Class.MOVING_STRAGGLER: _turns,
    Class.GC_OUT_OF_PHASE: _gc_turns,
    Class.EVALUATION_BOUND: _activity(
        EVALUATION, (policy.EVALUATION_SAVED_LEAST, policy.EVALUATION_SAVED, policy.EVALUATION_SAVED_MOST)
    ),
    Class.OPTIMIZER_BOUND: _optimizer,
    Class.STRAGGLER: _straggler,
    Class.HOST_BOUND: _host,
    Class.TENSOR_CORES_UNUSED: _of_kernels,
    Class.MEMORY_BANDWIDTH_BOUND: _of_kernels,
    Class.USER_PHASE: _own_phase,
    Class.COMMUNICATION_BOUND: _communication,
}
