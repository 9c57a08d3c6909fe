"""Models of what a repair saves: one a class, and the lost share where none fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import attrs
import numpy as np

from sm_profiler.formats import event_names
from sm_profiler.formats.columns import Floats
from sm_profiler.report import parts, policy
from sm_profiler.report.classes import Class
from sm_profiler.report.gains.claim import Claim
from sm_profiler.report.gains.loader_queue import fetch_times, simulated_wait
from sm_profiler.report.gains.loop_table import BETWEEN, EVALUATION, LoopTable
from sm_profiler.report.job_metrics import Rank
from sm_profiler.report.judges import JudgeContext
from sm_profiler.report.judges.loop import launches_of
from sm_profiler.report.judges.occurrences import calls_of
from sm_profiler.report.judges.one_by_one import ONE_BY_ONE, most_saved
from sm_profiler.report.judges.ranks import MEETINGS
from sm_profiler.report.judges.slowdown import STEP_OF_CHANGE
from sm_profiler.report.judges.turns import find_delays, shared_steps
from sm_profiler.report.judges.workers import Workers, workers_of
from sm_profiler.report.model import Finding
from sm_profiler.report.record_fold import Record

Model = Callable[[Finding, JudgeContext, LoopTable], "Claim | None"]
COMPUTING = ("forward", "backward", "optimizer", BETWEEN, "outside")


def claim_of(finding: Finding, context: JudgeContext, table: LoopTable) -> Claim:
    """Return what the repair of a finding about the loop saves."""
    model = MODELS.get(finding.kind)
    claim = model(finding, context, table) if model else None
    claim = claim if claim is not None else _lost_share(finding, table)
    beside = (
        finding.kind in policy.BESIDE_THE_GPU and finding.kind is not Class.HOST_BOUND
    )  # larger batches fill the GPU
    return claim.at_most((context.gpu_spare + policy.IDLE_ERROR) * table.total) if beside else claim


def lost_share(finding: Finding) -> float:
    """Return the finding's share of the time, from 0 to 1 even for damaged data."""
    return min(max(float(np.nan_to_num(finding.share_of_time)), 0.0), 1.0)


def _lost_share(finding: Finding, table: LoopTable, from_parts: tuple[str, ...] = ()) -> Claim:
    """Return the finding's own share of the time, as far as its confidence goes."""
    low, value = policy.UNMODELLED[finding.confidence]
    return Claim(table.length * lost_share(finding) * value, low / value, 1 / value, from_parts)


def _input(_: Finding, context: JudgeContext, table: LoopTable) -> Claim | None:
    """Simulate the loader with the advised workers; the steps stay as long as they are, or as the cores allow."""
    wait = table.of("wait")
    if not context.waits_known or wait.sum() <= 0:
        return None
    pool, compute = workers_of(context), table.training - wait
    rows = table.training > 0
    if pool.now < 0:
        left = policy.INPUT_WAIT_MS / 1e3, policy.LOADER_REST_MS / 1e3, 0.0
    else:
        left = _left(pool, wait[rows], compute[rows], _busy(context, pool, float(table.training[rows].mean())))
    mean = float(wait[rows].mean())
    return Claim.of_scenarios([wait * (1 - min(one / mean, 1.0)) for one in left], ("wait",))


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
    best = policy.CORES_SPARED * shared if pool.needed > pool.cores else 0.0
    return max(fewest, crowded + slowed) + rest, max(usual, shared) + rest, best


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


def _sync(_: Finding, __: JudgeContext, table: LoopTable) -> Claim:
    """Saves all but a healthy loop's overhead between phases and waits."""
    outside = table.of("outside")
    inner = float(np.median(table.training - outside))
    scenarios = [
        np.maximum(outside - rest * inner, 0.0) for rest in (policy.OUTSIDE_REST_MOST, policy.OUTSIDE_REST, 0.0)
    ]
    return Claim.of_scenarios(scenarios, ("outside",))


def _collections(_: Finding, context: JudgeContext, table: LoopTable) -> Claim:
    """Saves all but an occasional full collection."""
    seconds = np.mean([table.placed(rank.iterations.index, rank.iterations.gc) for rank in context.ranks], axis=0)
    return Claim(seconds * policy.GC_SAVED, policy.GC_SAVED_LEAST / policy.GC_SAVED, policy.GC_UNSEEN / policy.GC_SAVED)


def _stalls(_: Finding, context: JudgeContext, table: LoopTable) -> Claim | None:
    """Make long steps as long as usual ones."""
    rank = max((one for one in context.ranks if one.stalls.count), key=lambda one: one.stall_share, default=None)
    if rank is None or rank.stalls.long.all():
        return None
    iterations, stalls = rank.iterations, rank.stalls
    usual = float(np.median(iterations.length[~stalls.long]))
    beyond = np.where(stalls.long, np.maximum(iterations.length - usual, 0.0), 0.0)
    where = (stalls.where,) if stalls.where not in ("", parts.UNKNOWN) else ()
    least, value = policy.EXCESS_SAVED_LEAST, policy.EXCESS_SAVED
    return Claim(table.placed(iterations.index, beyond) * value, least / value, 1 / value, where)


def _evaluation(finding: Finding, context: JudgeContext, table: LoopTable) -> Claim:
    """Evaluate less; compiling for it stays."""
    value = policy.EVALUATION_SAVED
    low, high = policy.EVALUATION_SAVED_LEAST / value, policy.EVALUATION_SAVED_MOST / value
    evaluating = min(finding.share_of_time / max(context.metrics.average_share("evaluation"), 1e-9), 1.0)
    return Claim(table.of(EVALUATION) * evaluating * value, low, high, (EVALUATION,), strict=True)


def _optimizer(_: Finding, __: JudgeContext, table: LoopTable) -> Claim:
    """Leave what a fused optimizer takes of a step."""
    optimizer = table.of("optimizer")
    others = table.training - optimizer
    rests = (policy.OPTIMIZER_REST_MOST, policy.OPTIMIZER_REST, policy.OPTIMIZER_REST_LEAST)
    scenarios = [np.maximum(optimizer - others * rest / (1 - rest), 0.0) for rest in rests]
    return Claim.of_scenarios(scenarios, ("optimizer",))


def _straggler(finding: Finding, context: JudgeContext, table: LoopTable) -> Claim | None:
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
    whole = table.placed(ranks[slow].iterations.index[rows[slow]], saved)
    total = float(whole.sum())
    if total <= 0 or share <= 0:
        return None
    recorded = min(max(lost_share(finding) / share, 0.5), 1.5)
    return Claim(whole, min(recorded, 1.0), max(recorded, 1.0))


def _same_steps(ranks: Sequence[Rank], count: int) -> list[Any]:
    """Return the rows of the same iterations in all ranks: the first ones, or of samples the common ones."""
    if all(rank.judged is None for rank in ranks):
        return [slice(count)] * len(ranks)
    common = reduce(np.intersect1d, [rank.iterations.index for rank in ranks])
    return [np.searchsorted(rank.iterations.index, common) for rank in ranks]


def _host(finding: Finding, context: JudgeContext, table: LoopTable) -> Claim | None:
    """Take a larger batch: what a step costs however large it is, is spread over more samples.

    Loading and arithmetic grow with the batch. The optimizer and Python do not, nor do operators without arithmetic.
    """
    gpu = context.gpu_mean
    if gpu is not None and gpu <= policy.GPU_NEVER:
        return None  # another repair
    if finding.evidence[0].metric == ONE_BY_ONE:
        claim, lost, most = _lost_share(finding, table), lost_share(finding), most_saved(context)
        return claim if most is None or lost <= 0 else attrs.evolve(claim, high=claim.high * max(most / lost, 1.0))
    share = {key: float(table.of(key).sum()) / table.total for key in ("wait", "forward", "backward", EVALUATION)}
    passes = share["forward"] + share["backward"]
    if gpu is not None:
        grows = [gpu / 100 * part for part in policy.DEVICE_GROWS]
    else:
        counted = launches_of(context) is not None
        launches = min(lost_share(finding) * policy.LAUNCHES_MORE, passes) if counted else 0.0
        grows = [(passes - launches) * part for part in policy.ARITHMETIC]
    wanted = [
        max(1 - share[EVALUATION] - share["wait"] * loads - computes, 0.0) * (1 - 1 / policy.BATCH_LARGER)
        for loads, computes in zip(policy.LOADING_GROWS, grows, strict=True)
    ]
    high, value, low = wanted
    if value <= 0:
        return Claim(table.length * 0.0)
    return Claim(table.length * value, min(low / value, 1.0), max(high / value, 1.0), (*COMPUTING, "wait"))


def _calls(
    phase: str,
    saved: tuple[float, float, float],
    taken: tuple[str, ...],
    keep: Callable[[Record], bool] = lambda _: True,
) -> Model:
    """Return the model for calls that the hook recorded: they happen rarely, or in another thread.

    A record that sums up many short calls is spread over all steps.

    Args:
        phase: of the records.
        saved: times the recorded time: at least, usually, at most.
        taken: parts of the loop that contain the calls.
        keep: chooses among the records.
    """
    least, value, most = saved

    def claim(finding: Finding, context: JudgeContext, table: LoopTable) -> Claim | None:
        records = context.metrics.records.get(phase)
        seconds = np.zeros(len(table.index))
        for rank in context.ranks if records else ():
            of_rank = records.of(rank.name) if records else ()
            own = [one for one in of_rank if rank.start <= one.start <= rank.end and keep(one)]
            spent = _in_rows(rank, [one for one in own if calls_of(one) == 1])
            summed = sum(max(one.seconds, 0.0) for one in own if calls_of(one) > 1)
            spent += summed * _in_proportion(rank, taken)
            seconds += table.placed(rank.iterations.index, spent)
        if seconds.sum() <= 0:
            return None
        wanted = lost_share(finding) * table.total * value  # the table lacks some steps
        return Claim(
            _fitted(seconds * (wanted / seconds.sum()), wanted, table.length), least / value, most / value, taken
        )

    return claim


def _compiles_again(record: Record) -> bool:
    return record.args.get("again") is True


_of_recompilations = _calls(event_names.COMPILE, policy.RECOMPILING_SAVED, ("forward", "backward"), _compiles_again)


def _recompiling(finding: Finding, context: JudgeContext, table: LoopTable) -> Claim | None:
    """Make the steps that compile again as long as others: what was compiled runs slowly at first, which no record shows.

    If there are no others, such a step may take any time, so at most all of it is saved.
    """
    records = context.metrics.records.get(event_names.COMPILE)
    compiling = beyond = whole = 0.0
    for rank in context.ranks:
        own = records.of(rank.name) if records else []
        length, spent = rank.iterations.length, _in_rows(rank, own)
        again = _in_rows(rank, [one for one in own if _compiles_again(one)])
        rows, usual = again > 0, spent <= 0
        compiling += float(again.sum())
        if np.count_nonzero(usual) >= policy.MIN_STEPS and rows.any():
            more = float(np.median(length[rows] - np.minimum(spent[rows], length[rows])) - np.median(length[usual]))
            beyond += max(more, 0.0) * np.count_nonzero(rows)
        else:
            whole += float(length[rows].sum())
    if compiling <= 0:
        return _of_recompilations(finding, context, table)
    lost = min(lost_share(finding) * (1 + beyond / compiling), 1.0)
    claim = _of_recompilations(attrs.evolve(finding, share_of_time=lost), context, table)
    return claim and attrs.evolve(claim, high=claim.high * max(whole / compiling, 1.0))


def _in_rows(rank: Rank, records: Sequence[Record]) -> Floats:
    """Return the seconds of single calls in each iteration of a process; those between two that are judged are left out."""
    starts, spent = rank.iterations.start, np.zeros(len(rank.iterations))
    ends = starts + rank.iterations.length
    rows = np.searchsorted(starts, np.asarray([one.start for one in records], np.float64), side="right") - 1
    for row, one in zip(rows, records, strict=True):
        if row >= 0 and one.start <= ends[row]:
            spent[row] += max(one.seconds, 0.0)
    return spent


def _fitted(seconds: Floats, wanted: float, length: Floats) -> Floats:
    """Cut the seconds of each row to its length, and spread what is missing over what is left of all rows."""
    cut = np.minimum(seconds, length)
    left = length - cut
    missing = min(wanted - float(cut.sum()), float(left.sum()))
    return cut + left * (missing / max(float(left.sum()), 1e-12))


def _in_proportion(rank: Rank, taken: tuple[str, ...]) -> Floats:
    """Return how to spread seconds over the iterations of a process: like the first of these parts; sums to 1."""
    usual = rank.iterations.of(taken[0])
    weight = usual if usual.sum() > 0 else rank.iterations.length
    return weight / max(float(weight.sum()), 1e-12)


def _slowdown(finding: Finding, _: JudgeContext, table: LoopTable) -> Claim | None:
    """Make the steps since the slowdown as long as those before it."""
    step = next((one.value for one in finding.evidence if one.metric == STEP_OF_CHANGE), None)
    if not isinstance(step, (int, float)):
        return None
    slow = np.where(table.index >= step, table.training, 0.0)
    total = float(slow[: table.steps].sum())
    slow[table.steps :] = 0.0
    if total <= 0:
        return None
    least, value, most = policy.SLOWDOWN_SAVED
    return Claim(slow * (lost_share(finding) * table.total / total * value), least / value, most / value)


def _turns(finding: Finding, context: JudgeContext, table: LoopTable) -> Claim | None:
    """Spread the work of each step evenly over the ranks; at best, it disappears."""
    delays = find_delays(context.ranks) if len(context.ranks) > 1 else None
    if delays is None:
        return None
    lost = table.placed(shared_steps(context.ranks)[1:], delays.lost)
    if lost.sum() <= 0:
        return None
    lost *= lost_share(finding) * table.total / lost.sum()  # the phases of some steps were not recorded
    spread = 1 - 1 / len(context.ranks)
    usual = (spread + 1) / 2
    return Claim(lost * usual, spread / usual, 1 / usual)


def _gc_turns(finding: Finding, context: JudgeContext, table: LoopTable) -> Claim | None:
    """Leave rare collections at the same step of all ranks."""
    found = [table.placed(rank.iterations.index, rank.iterations.gc) for rank in context.ranks]
    seconds = np.max(found, axis=0)
    total = float(seconds.sum())
    if total <= 0:
        return None
    scale = min(lost_share(finding) * table.total / total, 1.0) * policy.GC_SAVED
    return Claim(seconds * scale, policy.GC_SAVED_LEAST / policy.GC_SAVED, policy.GC_UNSEEN / policy.GC_SAVED)


def _of_kernels(finding: Finding, _: JudgeContext, table: LoopTable) -> Claim:
    """Return what usual repairs of slow kernels save, as in traces."""
    low, value, high = (float(one) for one in policy.TRACE_REPAIRED[finding.kind])
    return Claim(table.length * lost_share(finding) * value, low / value, high / value)


def _own_phase(finding: Finding, _: JudgeContext, table: LoopTable) -> Claim:
    return _lost_share(finding, table, (parts.DECLARED,))


def _communication(finding: Finding, _: JudgeContext, table: LoopTable) -> Claim:
    return _lost_share(finding, table, ("backward", "optimizer"))


MODELS: dict[Class, Model] = {
    Class.INPUT_BOUND: _input,
    Class.SYNC_BOUND: _sync,
    Class.GC_BOUND: _collections,
    Class.PERIODIC_STALL: _stalls,
    Class.STEP_OUTLIERS: _stalls,
    Class.CHECKPOINTING: _calls(
        event_names.SAVE, (policy.EXCESS_SAVED_LEAST, policy.EXCESS_SAVED, policy.CALLS_UNSEEN), ("outside", EVALUATION)
    ),
    Class.LOGGING: _calls(
        event_names.LOG, (policy.EXCESS_SAVED_LEAST, policy.LOGGING_SAVED, policy.CALLS_UNSEEN), ("outside", EVALUATION)
    ),
    Class.SLOW_CALLBACK: _calls(
        event_names.CALLBACK,
        (policy.EXCESS_SAVED_LEAST, policy.EXCESS_SAVED, policy.CALLS_UNSEEN),
        ("outside", EVALUATION),
    ),
    Class.RECOMPILATION: _recompiling,
    Class.FAIL_SLOW: _slowdown,
    Class.MOVING_STRAGGLER: _turns,
    Class.GC_OUT_OF_PHASE: _gc_turns,
    Class.EVALUATION_BOUND: _evaluation,
    Class.OPTIMIZER_BOUND: _optimizer,
    Class.STRAGGLER: _straggler,
    Class.HOST_BOUND: _host,
    Class.TENSOR_CORES_UNUSED: _of_kernels,
    Class.MEMORY_BANDWIDTH_BOUND: _of_kernels,
    Class.USER_PHASE: _own_phase,
    Class.COMMUNICATION_BOUND: _communication,
}
# What these cost is not time, or has no end.
WITHOUT_TIME = frozenset({Class.MEMORY_GROWTH, Class.HANG, Class.DEAD_RANK, Class.UNEQUAL_STEPS})
