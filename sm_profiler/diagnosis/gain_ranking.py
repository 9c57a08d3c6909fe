"""Order of the findings: the gain of each repair, one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
from msgspec.structs import astuple, replace

from sm_profiler.diagnosis import Interval as Share
from sm_profiler.diagnosis import limits, policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.judges import JudgeContext
from sm_profiler.diagnosis.judges.job import start_of
from sm_profiler.diagnosis.loop import Loop
from sm_profiler.diagnosis.model import Finding, Gain, Interval, Verdict
from sm_profiler.diagnosis.repairs import exceptions, lost_share, saving_of
from sm_profiler.metrics.job_metrics import JobMetrics

STOPPED = (Class.DEAD_RANK, Class.UNEQUAL_STEPS, Class.HANG)  # no faster step matters in a training that has stopped
NOTHING = Interval(0.0, 0.0, 0.0)


@attrs.frozen
class Ranked:
    """A finding with its gain, and its worth: the share of the job that its repair certainly saves, if it is right."""

    finding: Finding
    certain: float


def rank_by_gain(findings: Sequence[Finding], context: JudgeContext) -> list[Ranked]:
    """Return the findings that are worth a repair, the one that certainly saves most first, with their gains."""
    stopped = [Ranked(one, math.inf) for kind in STOPPED for one in findings if one.kind is kind]
    timeless = (*STOPPED, Class.MEMORY_GROWTH)
    of_loop = [one for one in findings if one.kind not in timeless and (one.of == "loop" or one.kind is Class.IDLE)]
    growth = [Ranked(one, one.share_of_time) for one in findings if one.kind is Class.MEMORY_GROWTH]
    ranked = [*growth, *_repaired(of_loop, context)]
    ranked = [one for one in ranked if one.finding.of == "loop"]  # the gain of pauses is one of the job
    left = context.metrics.duration - sum(one.finding.gain.seconds.value for one in ranked if one.finding.gain)
    for one in findings:
        if one.of == "job" and one.kind not in timeless:
            ranked.append(found := _of_job(one, context.metrics, max(left, 0.0)))
            left -= found.finding.gain.seconds.value if found.finding.gain else 0.0
    return [*stopped, *sorted(ranked, key=lambda one: -one.certain)]


def _repaired(findings: Sequence[Finding], context: JudgeContext) -> list[Ranked]:
    """Repair the best finding, ask the others again, until none saves enough."""
    loop, ranked, left = context.loop, [], list(findings)
    if loop is None:  # no steps to repair: the share of the time has to do
        return [Ranked(one, lost_share(one) * policy.UNMODELLED[one.confidence][0]) for one in findings]
    loop = exceptions(loop, findings, context)
    of_job = loop.whole / context.metrics.duration if context.metrics.duration > 0 else 1.0
    while left:
        tried = [(*loop.gain(saving_of(one, context, loop)), one) for one in left]
        loop_after, share, certain, best = max(tried, key=lambda one: one[2] * policy.PROBABILITY[one[3].confidence])
        left.remove(best)
        if certain < limits.FLOOR:
            continue
        if best.confidence == "high" and certain < limits.SURELY * limits.FLOOR:
            best = replace(best, confidence="medium")
        ranked.append(
            Ranked(
                replace(best, gain=_gain(possible(share, best), loop)),
                certain * min(of_job, 1.0) * policy.PROBABILITY[best.confidence],
            )
        )
        loop = loop_after
    return ranked


def possible(share: Share, finding: Finding) -> Share:
    """Return what a repair saves: of a larger batch, no more than a step costs for each sample."""
    if not finding.larger_batch:
        return share
    most = 1 - 1 / float(policy.BATCH_LARGER)
    return Share(*(min(one, most) for one in (share.low, share.value, share.high)))


def _gain(share: Share, loop: Loop) -> Gain:
    """Return the gain of a repair that saves a share of the loop."""
    found = Interval(share.low, share.value, share.high)
    per_step = float(loop.length.sum()) / max(loop.steps, 1)
    speedup = Interval(*(1 / (1 - one) for one in astuple(found)))
    return Gain(_times(found, per_step), found, speedup, None, _times(found, loop.whole))


def _of_job(finding: Finding, metrics: JobMetrics, left: float) -> Ranked:
    """Return a finding about the whole job with what its repair saves of it."""
    whole = metrics.duration
    if whole <= 0:
        return Ranked(finding, lost_share(finding))
    if finding.kind is Class.INITIALIZATION_BOUND and (start := start_of(metrics)) is not None:
        beyond = start.excess
        factors = float(policy.START_SAVED_LEAST), float(policy.START_SAVED), 1.0
    else:
        low, value = policy.UNMODELLED[finding.confidence]
        beyond, factors = whole * lost_share(finding), (low, value, 1.0)
    seconds = Interval(*(min(beyond * factor, left) for factor in factors))
    speedup = Interval(*(1 / (1 - min(one / whole, limits.MOST_SAVED)) for one in astuple(seconds)))
    certain = max(seconds.low / whole, lost_share(finding) * factors[0] * policy.INIT_WEIGHT)
    return Ranked(replace(finding, gain=Gain(NOTHING, NOTHING, speedup, None, seconds, "job")), certain)


def priced(verdict: Verdict, per_hour: float | None) -> Verdict:
    """Return the verdict with the price of what each repair saves; `per_hour` are dollars for all nodes, None if unknown."""
    if per_hour is None or not math.isfinite(per_hour):
        return verdict

    def of(one: Finding) -> Finding:
        if one.gain is None:
            return one
        return replace(one, gain=replace(one.gain, usd=_times(one.gain.seconds, per_hour / 3600)))

    return attrs.evolve(verdict, main=of(verdict.main), also=tuple(map(of, verdict.also)))


def _times(interval: Interval, factor: float) -> Interval:
    return Interval(*(one * factor for one in astuple(interval)))
