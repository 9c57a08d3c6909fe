"""Judges of ranks that ended while their peers went on."""

from __future__ import annotations

from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.diagnosis.model import Evidence, Finding
from sm_profiler.formats.process_end import CRASHED, KILLED, OUT_OF_MEMORY, RUNNING
from sm_profiler.formatting import plural, shorten
from sm_profiler.metrics.ends import RankEnd

MAX_ERROR = 120  # characters, of an error that another one caused
_ADVICE = {
    CRASHED: "Read the traceback of {name} in the log: errors of other ranks, and timeouts, follow from it.",
    KILLED: "Find out who killed {name}: the scheduler (its limits of time and memory), a person, or the kernel, which writes "
    "that to its log (dmesg).",
    OUT_OF_MEMORY: "Give the job more memory or let it use less: fewer loader workers, fewer prefetched batches, no copy of the "
    "data set in each rank. Errors of other ranks follow from it.",
}


def judge_dead_rank(context: JudgeContext) -> Finding | None:
    """Find a rank that failed before its peers did."""
    ending = context.metrics.ending
    rank = ending.dead
    if rank is None:
        return None
    goes_on = " The job is still running." if ending.state == RUNNING else ""
    return Finding(
        Class.DEAD_RANK,
        f"{rank.sentence}{goes_on}",
        _furthest(context, rank),
        _advice(rank),
        _after(context, rank),
        of="job",
        confidence="high",
    )


def _advice(rank: RankEnd) -> str:
    if rank.state == CRASHED and not rank.error:
        return (
            f"Find out why {rank.name} left: a call of sys.exit({rank.exit_code}), which raises no error, in the script or "
            "in a library; its log may have the reason. Errors of other ranks, and timeouts, follow from it."
        )
    return _ADVICE[rank.state].format(name=rank.name)


def judge_unequal_steps(context: JudgeContext) -> Finding | None:
    """Find a rank that ended by itself while its peers needed it for their next steps."""
    rank = context.metrics.ending.short
    if rank is None:
        return None
    others = [one for one in context.metrics.ending.ranks if one.is_rank and one.name != rank.name]
    other = max(others, key=lambda one: (one.step, one.name))
    went_on = (
        f"{other.name} {shorten(other.how, MAX_ERROR)}"
        if other.state
        else f"{other.name} went on to step {other.step:,}"
    )
    return Finding(
        Class.UNEQUAL_STEPS,
        f"After {plural(rank.step, 'training step')}, {rank.name} ended, and the others went on without it: {went_on}.",
        _furthest(context, rank),
        f"If {rank.name} was to go on, its log shows why it ended. Give each rank the same number of batches: a DistributedSampler (with drop_last=True), a limit on the steps of an "
        "epoch, or DistributedDataParallel's join() for data that cannot be divided evenly.",
        _after(context, rank),
        of="job",
        confidence="high",
    )


def _furthest(context: JudgeContext, rank: RankEnd) -> tuple[Evidence, ...]:
    """Return how far the peers of a rank came; its own steps are in the headline."""
    others = [one for one in context.metrics.ending.ranks if one.is_rank and one.name != rank.name]
    furthest = min(others, key=lambda one: (-one.step, one.name))
    return (Evidence("training steps of the rank that came furthest", furthest.step, None, furthest.name),)


def _after(context: JudgeContext, rank: RankEnd) -> float:
    """Return the share of the job after the end of a rank."""
    metrics = context.metrics
    return min(max((metrics.end - rank.at) / metrics.duration, 0.0), 1.0) if metrics.duration > 0 else 0.0
