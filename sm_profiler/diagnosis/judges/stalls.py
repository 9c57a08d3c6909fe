"""Judges of long steps, with a period and without."""

from __future__ import annotations

import attrs
import numpy as np

from sm_profiler.diagnosis import limits, policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.judges.judge_context import JudgeContext, input_bursts
from sm_profiler.diagnosis.judges.loop import MAX_NAME
from sm_profiler.diagnosis.judges.occurrences import in_first_steps, long_iteration, time_spent
from sm_profiler.diagnosis.judges.unseen_waits import long_steps_may_wait
from sm_profiler.diagnosis.loop_ledger import BESIDE_THE_PHASES, NAMED, PHASE, WAIT
from sm_profiler.diagnosis.loop_table import rows_of_rank
from sm_profiler.diagnosis.model import Evidence, Finding, Location
from sm_profiler.diagnosis.where import lines_of_samples
from sm_profiler.formats import event_names
from sm_profiler.formatting import duration, percent, shorten
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.job_metrics import Rank
from sm_profiler.metrics.stalls import Iterations, find_stalls
from sm_profiler.printable import printable


def worst_stalls(context: JudgeContext) -> Rank | None:
    """Return the rank that loses most in long steps; None if none does."""
    ranks = [rank for rank in context.ranks if rank.stalls.count and not input_bursts(rank, context.metrics)]
    ranks += [found for rank in context.ranks if (found := _between_steps(rank, context)) is not None]
    return max(ranks, key=lambda rank: rank.stall_share, default=None)


def _between_steps(rank: Rank, context: JudgeContext) -> Rank | None:
    """Return a rank with the stalls of its rows instead of its steps, if a step evaluates now and then.

    Such a step is none of the usual ones, and what surrounds the evaluation (samples that are drawn, results that are
    written) lies in no other. Activities with causes of their own are left out.
    """
    if rank.slices["evaluation"] <= 0 or rank.judged is not None:
        return None
    rows = context.ledger.ranks[context.ranks.index(rank)]
    own = {name: spent[:-1] for name, spent in rows.seconds.items() if name not in NAMED}
    keys: dict[str, list[str]] = {key: [] for key in parts.iteration_keys()}
    for name in own:
        key = "wait" if name == WAIT else parts.DECLARED if name.startswith(PHASE) else name
        keys[key if key in keys else "outside"].append(name)
    nothing = np.zeros(len(rows.steps) - 1)
    seconds = {key: np.sum([own[name] for name in names], axis=0) if names else nothing for key, names in keys.items()}
    length = np.asarray(sum(seconds.values(), nothing))
    known = np.ones(len(length), np.bool_)
    iterations = Iterations(rows.steps[:-1], rows_of_rank(rank).start[:-1], length, seconds, nothing, known)
    return attrs.evolve(rank, iterations=iterations, stalls=find_stalls(iterations))


def _lines(rank: Rank, context: JudgeContext) -> tuple[Location, ...]:
    """Return the lines beside the phases for stalls that surround evaluations; those of long steps are found later."""
    if rank in context.ranks or rank.stalls.where != "outside":
        return ()
    return lines_of_samples(context.metrics, lambda one: one.process == rank.name and one.phase in BESIDE_THE_PHASES)


def judge_periodic(context: JudgeContext) -> Finding | None:
    """Find long steps at a fixed interval."""
    rank = worst_stalls(context)
    if rank is None or rank.stalls.period is None or rank.stall_share < limits.FLOOR:
        return None
    if long_steps_may_wait(rank, context):
        return None
    stalls, period, restarted = rank.stalls, rank.stalls.period, _restarted(rank, context)
    about = "" if stalls.exact else "about "
    return Finding(
        Class.PERIODIC_STALL,
        f"Every {about}{period} steps, one takes {duration(stalls.typical)} instead of {duration(stalls.median)}, "
        f"{'as the loader starts its workers again' if restarted else _during(rank)}; this costs "
        f"{percent(rank.stall_share)} of the loop.",
        (
            Evidence("time lost in long steps", round(rank.stall_share, 4), limits.FLOOR, rank.name, "share"),
            Evidence("period", period, None, rank.name, "steps"),
            Evidence("long steps", stalls.count, thresholds.PERIOD_REPEATS, rank.name, held="judged from"),
            *restarted,
            _duration(rank),
        ),
        _EPOCH_ADVICE
        if _between_epochs(rank, context)
        else _periodic_advice("wait" if restarted else stalls.where, period, context),
        rank.stall_share,
        confidence=context.confidence(rank.stall_share, limits.FLOOR, sure=stalls.exact),
        where=_lines(rank, context),
    )


def _during(rank: Rank) -> str:
    """Return where the long steps spend their time; a phase that the script declared by its name."""
    names = list(rank.declared)
    if rank.stalls.where == parts.DECLARED and names:
        return f"in the phase “{shorten(printable(names[0]), MAX_NAME)}”"
    return parts.during_all(rank.stalls.grown)


def _duration(rank: Rank) -> Evidence:
    typical, median = round(rank.stalls.typical * 1e3, 3), round(rank.stalls.median * 1e3, 3)
    return Evidence("duration of a long step", typical, median, rank.name, "ms", "usually")


def _periodic_advice(where: str, period: int, context: JudgeContext) -> str:
    if where == "wait":
        workers = context.metrics.loader.num_workers
        start = "The loader's workers restart" if workers > 0 else "The dataset or the loader restarts"
        return (
            f"{start} every {period} steps (an epoch?). Use persistent_workers=True, and make __iter__ of dataset and sampler "
            "cheap."
        )
    if where in ("outside", parts.DECLARED, parts.UNKNOWN):
        return (
            f"Find what the script does every {period} steps between the optimizer and the next batch: checkpoint, evaluation, "
            "logging, image summaries. Do it less often, or in another thread or process (asynchronous checkpoint)."
        )
    return (
        f"Find what happens every {period} steps inside this phase: a callback, a hook, a new shape that triggers compilation "
        "or allocation, a synchronization."
    )


_EPOCH_ADVICE = (
    "Each epoch starts the input again: workers and generators restart, a shuffle buffer fills. Let the dataset run on "
    "(.repeat() with steps_per_epoch), cache or prefetch behind what is slow to start, shuffle file names instead of samples, "
    "and see what callbacks do in on_epoch_end."
)


def _between_epochs(rank: Rank, context: JudgeContext) -> bool:
    """Return whether each long step is one in which an epoch ended."""
    found = context.metrics.records.get(event_names.EPOCH)
    ends = [one.end for one in found.of(rank.name)] if found else []
    starts, long = rank.iterations.start[rank.stalls.long], rank.iterations.length[rank.stalls.long]
    return bool(ends) and all(
        any(start <= end <= start + length for end in ends) for start, length in zip(starts, long, strict=True)
    )


def _restarted(rank: Rank, context: JudgeContext) -> tuple[Evidence, ...]:
    """Return the evidence that long steps are long because a loader stops its workers and starts them again, if they are."""
    found = context.metrics.records.get(event_names.LOADER_WORKERS)
    iterations, long = rank.iterations, rank.stalls.long
    stops, starts, rows = 0.0, 0.0, set()
    for one in found.of(rank.name) if found else ():
        if (row := long_iteration(rank, one)) is not None:
            rows.add(row)
            stops, starts = (stops + one.seconds, starts) if one.name == "stop" else (stops, starts + one.seconds)
    if not rows or len(rows) < policy.RESTARTED * rank.stalls.count:
        return ()
    waits, lost = iterations.of("wait"), float((iterations.length[long] - rank.stalls.median).sum())
    waited = float((waits[sorted(rows)] - np.median(waits)).sum())  # from the start of the workers
    if stops + max(starts, waited) < policy.RESTARTED * lost:
        return ()
    each = round((stops + starts) / len(rows) * 1e3, 3)
    return (Evidence("time to stop and start the loader's workers", each, None, rank.name, "ms"),)


def _by_others(context: JudgeContext) -> float:
    """Return the share of the loop by which long steps are long because a thread had no core, the most of all ranks.

    On a machine that others use, any step may wait, and so do the ranks that meet there. What usual steps wait is no
    part of it.
    """
    return max((_without_core(rank, context) for rank in context.ranks), default=0.0)


def _without_core(rank: Rank, context: JudgeContext) -> float:
    """Return the share of the loop by which long steps exceed what their own work explains, if usual steps wait as well.

    A step with more work also waits more often, in proportion.
    """
    usual, long = context.metrics.samples.waited.get(rank.name, (0.0, 0.0))
    stalls, length = rank.stalls, rank.iterations.length
    taken, rest = (float(length[rows].sum()) * rank.scale for rows in (stalls.long, ~stalls.long))
    worked = max(rest - usual, policy.LEAST_WORK * rest)
    if rank.loop <= 0 or worked <= 0 or not stalls.count:
        return 0.0
    own = max(taken - long, 0.0) - worked * stalls.count / max(len(length) - stalls.count, 1)
    return min(max(stalls.excess - max(own, 0.0) * rest / worked, 0.0), long) / rank.loop


def _first_compilations(context: JudgeContext) -> float:
    """Return the share of the loop by which steps are long because a function was compiled for the first time.

    A longer job has no more of them: they belong to its start, as the compilations of its first step do.
    """
    return time_spent(
        context, event_names.COMPILE, lambda one: one.args.get("again") is not True or in_first_steps(one)
    ).in_long


def judge_outliers(context: JudgeContext) -> Finding | None:
    """Find rare long steps without a period."""
    rank = worst_stalls(context)
    if (
        rank is None
        or rank.stalls.period is not None
        or rank.stall_share - _by_others(context) - _first_compilations(context) < policy.OUTLIER_COST
        or not rank.stalls.is_rare
        or rank.stalls.typical < policy.OUTLIER_LENGTH * rank.stalls.median
        or rank.stalls.agreement < thresholds.SAME_PART
        or long_steps_may_wait(rank, context)
    ):
        return None
    stalls, epochs = rank.stalls, _between_epochs(rank, context)
    once = stalls.count == 1
    when = ", between two epochs" if epochs else "" if once else ", at irregular intervals"
    confidence = context.confidence(
        rank.stall_share, policy.OUTLIER_COST, sure=_by_others(context) < policy.EXPLAINED * rank.stall_share
    )
    return Finding(
        Class.STEP_OUTLIERS,
        f"{stalls.count} of {len(rank.iterations)} steps {'takes' if once else 'take'} {duration(stalls.typical)} instead of "
        f"{duration(stalls.median)}, {_during(rank)}{when}; {'it costs' if once else 'they cost'} "
        f"{percent(rank.stall_share)} of the loop.",
        (
            Evidence("time lost in long steps", round(rank.stall_share, 4), policy.OUTLIER_COST, rank.name, "share"),
            Evidence("long steps", stalls.count, None, rank.name),
            _duration(rank),
        ),
        _EPOCH_ADVICE
        if epochs
        else "Check in the timeline what coincides with them: unusual samples (very long sequences, large images), retries of "
        "remote storage, new shapes that trigger compilation, other load on the machine.",
        rank.stall_share,
        # A thread that holds the interpreter may wait for the core in place of the training thread.
        where=_lines(rank, context),
        confidence="low" if context.shared_wait >= max(rank.stall_share, policy.SHARED) else confidence,
    )
