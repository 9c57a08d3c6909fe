"""Analysis of a fleet: its totals, and what jobs with a loss have in common."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs

from sm_profiler.diagnosis.classes import Class
from sm_profiler.fleet.comparisons import CHANCE, drawn_at_least, regressions, slow_hosts
from sm_profiler.fleet.model import (
    LEAST_BILL_USD,
    STAGES,
    Cause,
    Failure,
    Fleet,
    FleetJob,
    Group,
    SharedCause,
    TopJob,
    Totals,
    Week,
)
from sm_profiler.fleet.rows import FAILURE, INTERRUPTION, LABELS
from sm_profiler.fleet.wording import Amounts
from sm_profiler.metrics.thresholds import Threshold

COMMON = Threshold(0.5, "of a group's jobs; a cause of fewer is not the group's")
COMMON_JOBS = Threshold(3, "jobs at least; fewer have their cause in common by chance")
COMMON_SHARE = Threshold(0.05, "of a job's billed time; less is lost by most jobs")
TOP = 10  # jobs; a week of work
UNFINISHED = frozenset({"InProgress", "Stopping"})
ATTRIBUTES = {  # key → of a row
    "user": "user", "account": "account", "namespace": "namespace", "image": "image", "instance-type": "instance_type",
    "git": "git",
}  # fmt: skip
ON_REQUEST = {"tuning-job": "tuning_job"}  # keys that most jobs have no value for
HOST = "host"
TAG = "tag:"


def loss_order(job: FleetJob, *, in_dollars: bool = True) -> tuple[float, float, str, str]:
    """Return the key by which jobs are sorted: dollars, then hours, the most first; then by name and place."""
    usd = (job.lost_usd or 0.0) if in_dollars else 0.0
    return -usd, -job.lost_instance_hours, job.name, job.source


def totals_of(jobs: Iterable[FleetJob]) -> Totals:
    """Return the sums of some jobs."""
    jobs = list(jobs)
    priced = [job for job in jobs if job.bill_usd is not None]
    hours, lost_hours = _sum(job.instance_hours for job in jobs), _sum(job.lost_instance_hours for job in jobs)
    bill, lost = _sum(job.bill_usd for job in priced), _sum(job.lost_usd for job in priced)
    judged_hours, judged_usd = _sum(job.judged_instance_hours for job in jobs), _sum(job.judged_usd for job in priced)
    all_priced = all(job.bill_usd is not None for job in jobs if job.billable_s)
    causes: dict[str, float] = {}
    stages: dict[str, float] = {}
    for job in jobs:
        for loss in job.losses:
            lost_here = (loss.usd or 0.0) if priced else loss.seconds * job.instances / 3600
            causes[loss.cause] = causes.get(loss.cause, 0.0) + lost_here
        for stage, seconds in job.stages.items():
            stages[stage] = stages.get(stage, 0.0) + seconds * job.instances / 3600
    in_dollars = bill >= LEAST_BILL_USD and (judged_usd > 0 or all_priced)
    waste = _part(lost, judged_usd) if in_dollars else _part(lost_hours, judged_hours)
    return Totals(
        jobs=len(jobs),
        judged=sum(job.is_judged for job in jobs),
        unreadable=sum(bool(job.error) for job in jobs),
        failed=sum(job.status == "Failed" for job in jobs),
        running=sum(job.status in UNFINISHED for job in jobs),
        priced=len(priced),
        instance_hours=hours,
        gpu_hours=_sum(job.gpu_hours for job in jobs),
        lost_instance_hours=min(lost_hours, hours),
        bill_usd=bill,
        lost_usd=min(lost, bill),
        saved_usd=_sum(job.saved_usd for job in priced),
        failed_usd=_sum(job.failed_usd for job in priced),
        interrupted_usd=_sum(job.interrupted_usd for job in priced),
        judged_instance_hours=judged_hours,
        judged_usd=judged_usd,
        coverage=_coverage(jobs, *((judged_usd, bill) if bill > 0 and all_priced else (judged_hours, hours))),
        waste=waste,
        causes=dict(
            sorted(((cause, value) for cause, value in causes.items() if value > 0), key=lambda pair: -pair[1])
        ),
        stages={stage: stages[stage] for stage in STAGES if stages.get(stage, 0.0) > 0},
    )


def causes_of(jobs: Sequence[FleetJob], whole: Totals) -> tuple[Cause, ...]:
    """Return what all jobs lose to each cause, the most expensive first."""
    losses: dict[str, list[tuple[float, float, str]]] = {}
    priced: dict[str, int] = {}
    for job in jobs:
        for loss in job.losses:
            row = (loss.usd or 0.0, loss.seconds * job.instances / 3600, loss.next_step)
            losses.setdefault(loss.cause, []).append(row)
            priced[loss.cause] = priced.get(loss.cause, 0) + (loss.usd is not None)
    found = []
    for cause, rows in losses.items():
        usd, hours = _sum(row[0] for row in rows), _sum(row[1] for row in rows)
        part = (_part(usd, whole.judged_usd) if whole.in_dollars else _part(hours, whole.judged_instance_hours)) or 0.0
        found.append(Cause(cause, LABELS.get(cause, cause), len(rows), hours, usd, part, max(rows)[2], priced[cause]))
    in_dollars = whole.in_dollars
    return tuple(
        sorted(found, key=lambda cause: (-cause.usd if in_dollars else 0.0, -cause.instance_hours, cause.cause))
    )


def value_of(job: FleetJob, key: str) -> str:
    """Return the value of a key of --group-by; "" if it is unknown."""
    if key == HOST:
        hosts = {node.host for node in job.nodes if node.host}
        return next(iter(hosts)) if len(hosts) == 1 else f"{len(hosts)} machines" if hosts else ""
    attribute = {**ATTRIBUTES, **ON_REQUEST}.get(key)
    if attribute is not None:
        return str(getattr(job, attribute))
    return job.tags.get(key.removeprefix(TAG), "")


def _grouped(jobs: Iterable[FleetJob], key: Callable[[FleetJob], str]) -> dict[str, list[FleetJob]]:
    found: dict[str, list[FleetJob]] = {}
    for job in jobs:
        found.setdefault(key(job), []).append(job)
    return found


def groups_of(jobs: Sequence[FleetJob], keys: Iterable[str]) -> tuple[Group, ...]:
    """Return the sums of each group; none for a key of which no job has a value."""
    found = []
    for key in keys:
        by_value = _grouped(jobs, lambda job, key=key: job.groups.get(key, ""))  # type: ignore[misc] # called at once
        if any(by_value):
            groups = [Group(key, value, totals_of(some)) for value, some in by_value.items()]
            groups.sort(key=lambda group: (-group.sums.lost_usd, -group.sums.lost_instance_hours, group.value))
            found += groups
    return tuple(found)


def weeks_of(jobs: Sequence[FleetJob]) -> tuple[Week, ...]:
    """Return the sums of each week, in time order."""
    by_week = _grouped((job for job in jobs if job.week), lambda job: job.week)
    return tuple(Week(week, totals_of(by_week[week])) for week in sorted(by_week))


def top_of(jobs: Sequence[FleetJob]) -> tuple[TopJob, ...]:
    """Return the jobs that lose most, each with one next step; `jobs` is sorted by loss."""
    found = []
    for index, job in enumerate(jobs[:TOP]):
        if job.losses:
            most = job.losses[0]
            reason = job.failure if most.cause == FAILURE else ""
            found.append(
                TopJob(index, job.name, most.cause, job.lost_usd, job.lost_instance_hours, most.next_step, reason)
            )
    return tuple(found)


def failures_of(jobs: Sequence[FleetJob]) -> tuple[Failure, ...]:
    """Return the jobs that failed, were stopped or interrupted, the most expensive first."""
    found = []
    for index, job in enumerate(jobs):
        ended = job.status in {"Failed", "Stopped"}
        if not ended and not job.interruptions:
            continue
        usd = job.bill_usd if ended else job.interrupted_usd
        hours = job.instance_hours if ended else job.interrupted_s * job.instances / 3600
        found.append(Failure(index, job.name, job.status, job.failure, job.interruptions, usd, hours))
    return tuple(sorted(found, key=lambda job: (-(job.usd or 0.0), -job.instance_hours, job.name)))


def _coverage(jobs: Sequence[FleetJob], judged: float, whole: float) -> float | None:
    """Return the judged part; a job that was not judged and whose time is unknown counts as an average one."""
    if not jobs:
        return None
    unknown = sum(not job.is_judged and not job.billable_s for job in jobs)
    known = _part(judged, whole)
    if known is None:
        return sum(job.is_judged for job in jobs) / len(jobs)
    return known * (len(jobs) - unknown) / len(jobs)


def _part(part: float, whole: float) -> float | None:
    return min(part / whole, 1.0) if whole > 0 else None


def _sum(values: Iterable[float | None]) -> float:
    return math.fsum(value for value in values if value is not None)


ALL = "all jobs"
MOST = 50
_OF_LOADER = frozenset({Class.INPUT_BOUND.value, Class.PERIODIC_STALL.value})


def shared_causes(jobs: Sequence[FleetJob], keys: Iterable[str], *, in_dollars: bool = True) -> tuple[SharedCause, ...]:
    """Return the causes that groups have in common, the most expensive first, in the unit of the page."""
    judged = [job for job in jobs if job.judged]
    groups: list[tuple[str, str, list[FleetJob]]] = [(ALL, "", judged)]
    for key in keys:
        by_value = _grouped(judged, lambda job, key=key: job.groups.get(key, ""))  # type: ignore[misc] # called at once
        groups += [(key, value, some) for value, some in by_value.items() if value]
    with_cause: dict[str, set[int]] = {}
    for job in judged:
        for cause in _causes(job):
            with_cause.setdefault(cause, set()).add(id(job))
    tests = max(len(groups) * len(with_cause), 1)
    found = []
    for key, value, some in groups:
        for cause, having in with_cause.items():
            mine = [job for job in some if id(job) in having]
            if len(mine) < COMMON_JOBS or len(mine) / len(some) < COMMON:
                continue
            others = len(judged) - len(some)
            if others and drawn_at_least(len(mine), len(some), len(having), len(judged)) * tests > CHANCE:
                continue
            elsewhere = (len(having) - len(mine)) / max(others, 1)
            found.append(_common(key, value, cause, mine, len(some), elsewhere, in_dollars=in_dollars))
    found.sort(key=lambda shared: (-(shared.usd or 0.0), -shared.instance_hours, shared.key, shared.value))
    return tuple(_distinct(found)[:MOST])


def _causes(job: FleetJob) -> set[str]:
    """Return the causes that cost a job noticeable time."""
    whole = job.billable_s or 0.0
    return {
        loss.cause
        for loss in job.losses
        if whole and loss.seconds / whole >= COMMON_SHARE and loss.cause not in {FAILURE, INTERRUPTION}
    }


def _common(  # parts of one sentence
    key: str, value: str, cause: str, jobs: Sequence[FleetJob], of: int, elsewhere: float, *, in_dollars: bool
) -> SharedCause:
    losses = [(job, loss) for job in jobs for loss in job.losses if loss.cause == cause]
    priced = [loss.usd for _, loss in losses if loss.usd is not None]
    hours = sum(loss.seconds * job.instances / 3600 for job, loss in losses)
    worst = max(losses, key=lambda pair: (pair[1].usd or 0.0, pair[1].seconds))[1]
    detail, label = _detail(cause, jobs), LABELS.get(cause, cause)
    group = f"{key} {value}" if value else key
    text = f"{label} in {len(jobs)} of {of} jobs of {group}" if value else f"{label} in {len(jobs)} of {of} jobs"
    text += f", all with {detail}" if detail else ""
    text += f": {Amounts(in_dollars and bool(priced)).text(sum(priced), hours)} lost"
    text += f" (elsewhere in {100 * elsewhere:.0f} % of the jobs)." if value else "."
    return SharedCause(
        key, value, cause, label, len(jobs), of, elsewhere, detail, sum(priced) if priced else None, hours,
        worst.next_step, text,
    )  # fmt: skip


def _detail(cause: str, jobs: Sequence[FleetJob]) -> str:
    """Return what the jobs have in common that may be the cause."""
    workers = {job.loader_workers for job in jobs}
    if cause in _OF_LOADER and len(workers) == 1 and None not in workers:
        return f"num_workers={workers.pop()}"
    lines = {(job.where[0].file, job.where[0].line) if job.where and job.verdict == cause else None for job in jobs}
    if len(lines) == 1 and (line := lines.pop()) is not None:
        return f"{line[0]}:{line[1]}"
    return ""


def _distinct(found: Sequence[SharedCause]) -> list[SharedCause]:
    """Leave out groups that are the same jobs under another key: all of their numbers are equal."""
    kept: dict[tuple[object, ...], SharedCause] = {}
    for shared in found:
        kept.setdefault((shared.cause, shared.jobs, shared.of, shared.usd, shared.instance_hours), shared)
    return list(kept.values())


GROUP_BY = tuple(ATTRIBUTES)


def assemble(
    jobs: Iterable[FleetJob],
    *,
    group_by: Sequence[str] = GROUP_BY,
    sources: Sequence[str] = (),
    since: float | None = None,
    tags: dict[str, str] | None = None,
    prices: str = "",
    notes: Sequence[str] = (),
) -> Fleet:
    """Return the fleet of some jobs, with their bills."""
    rows = [attrs.evolve(job, groups={key: value_of(job, key) for key in group_by}) for job in jobs]
    totals = totals_of(rows)
    rows.sort(key=partial(loss_order, in_dollars=totals.in_dollars))
    return Fleet(
        generated=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        sources=tuple(sources),
        since=since,
        tags=tags or {},
        group_by=tuple(group_by),
        prices=prices,
        totals=totals,
        jobs=tuple(rows),
        causes=causes_of(rows, totals),
        groups=groups_of(rows, group_by),
        weeks=weeks_of(rows),
        top=top_of(rows),
        common=shared_causes(rows, group_by, in_dollars=totals.in_dollars),
        hosts=slow_hosts(rows),
        regressions=regressions(rows),
        failures=failures_of(rows),
        notes=tuple(notes),
    )
