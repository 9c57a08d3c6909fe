"""Sums over jobs: totals, causes, groups, weeks, and the ten that lose most."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from sm_profiler.fleet import policy
from sm_profiler.fleet.model import LEAST_BILL_USD, STAGES, Cause, Failure, FleetJob, Group, Sums, TopJob, Week
from sm_profiler.fleet.rows import FAILURE, LABELS

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


def sums_of(jobs: Iterable[FleetJob]) -> Sums:
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
        for one in job.losses:
            lost_here = (one.usd or 0.0) if priced else one.seconds * job.instances / 3600
            causes[one.cause] = causes.get(one.cause, 0.0) + lost_here
        for stage, seconds in job.stages.items():
            stages[stage] = stages.get(stage, 0.0) + seconds * job.instances / 3600
    in_dollars = bill >= LEAST_BILL_USD and (judged_usd > 0 or all_priced)
    waste = _part(lost, judged_usd) if in_dollars else _part(lost_hours, judged_hours)
    return Sums(
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


def causes_of(jobs: Sequence[FleetJob], whole: Sums) -> tuple[Cause, ...]:
    """Return what all jobs lose to each cause, the most expensive first."""
    losses: dict[str, list[tuple[float, float, str]]] = {}
    priced: dict[str, int] = {}
    for job in jobs:
        for one in job.losses:
            row = (one.usd or 0.0, one.seconds * job.instances / 3600, one.next_step)
            losses.setdefault(one.cause, []).append(row)
            priced[one.cause] = priced.get(one.cause, 0) + (one.usd is not None)
    found = []
    for cause, rows in losses.items():
        usd, hours = _sum(row[0] for row in rows), _sum(row[1] for row in rows)
        part = (_part(usd, whole.judged_usd) if whole.in_dollars else _part(hours, whole.judged_instance_hours)) or 0.0
        found.append(Cause(cause, LABELS.get(cause, cause), len(rows), hours, usd, part, max(rows)[2], priced[cause]))
    in_dollars = whole.in_dollars
    return tuple(sorted(found, key=lambda one: (-one.usd if in_dollars else 0.0, -one.instance_hours, one.cause)))


def value_of(job: FleetJob, key: str) -> str:
    """Return the value of a key of --group-by; "" if it is unknown."""
    if key == HOST:
        hosts = {node.host for node in job.nodes if node.host}
        return next(iter(hosts)) if len(hosts) == 1 else f"{len(hosts)} machines" if hosts else ""
    attribute = {**ATTRIBUTES, **ON_REQUEST}.get(key)
    if attribute is not None:
        return str(getattr(job, attribute))
    return job.tags.get(key.removeprefix(TAG), "")


def groups_of(jobs: Sequence[FleetJob], keys: Iterable[str]) -> tuple[Group, ...]:
    """Return the sums of each group; none for a key of which no job has a value."""
    found = []
    for key in keys:
        by_value: dict[str, list[FleetJob]] = {}
        for job in jobs:
            by_value.setdefault(job.groups.get(key, ""), []).append(job)
        if any(by_value):
            groups = [Group(key, value, sums_of(some)) for value, some in by_value.items()]
            found += sorted(groups, key=lambda one: (-one.sums.lost_usd, -one.sums.lost_instance_hours, one.value))
    return tuple(found)


def weeks_of(jobs: Sequence[FleetJob]) -> tuple[Week, ...]:
    """Return the sums of each week, in time order."""
    by_week: dict[str, list[FleetJob]] = {}
    for job in jobs:
        if job.week:
            by_week.setdefault(job.week, []).append(job)
    return tuple(Week(week, sums_of(by_week[week])) for week in sorted(by_week))


def top_of(jobs: Sequence[FleetJob]) -> tuple[TopJob, ...]:
    """Return the jobs that lose most, each with one next step; `jobs` is sorted by loss."""
    found = []
    for index, job in enumerate(jobs[: int(policy.TOP)]):
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
    return tuple(sorted(found, key=lambda one: (-(one.usd or 0.0), -one.instance_hours, one.name)))


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
