"""Sums over jobs: totals, causes, groups, weeks, and the ten that lose most."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from sm_profiler.fleet import policy
from sm_profiler.fleet.model import STAGES, Cause, Failure, FleetJob, Group, Sums, TopJob, Week
from sm_profiler.fleet.rows import LABELS

UNFINISHED = frozenset({"InProgress", "Stopping"})
ATTRIBUTES = {"user": "user", "image": "image", "instance-type": "instance_type", "git": "git"}  # key → of a row
ON_REQUEST = {"tuning-job": "tuning_job"}  # keys that most jobs have no value for
TAG = "tag:"


def loss_order(job: FleetJob) -> tuple[float, float, str, str]:
    """Return the key by which jobs are sorted: dollars, then hours, the most first; then by name and place."""
    return -(job.lost_usd or 0.0), -job.lost_instance_hours, job.name, job.source


def sums_of(jobs: Iterable[FleetJob]) -> Sums:
    """Return the sums of some jobs."""
    jobs = list(jobs)
    priced = [job for job in jobs if job.bill_usd is not None]
    hours, lost_hours = _sum(job.instance_hours for job in jobs), _sum(job.lost_instance_hours for job in jobs)
    bill, lost = _sum(job.bill_usd for job in priced), _sum(job.lost_usd for job in priced)
    causes: dict[str, float] = {}
    stages: dict[str, float] = {}
    for job in jobs:
        for one in job.losses:
            lost_here = (one.usd or 0.0) if priced else one.seconds * job.instances / 3600
            causes[one.cause] = causes.get(one.cause, 0.0) + lost_here
        for stage, seconds in job.stages.items():
            stages[stage] = stages.get(stage, 0.0) + seconds * job.instances / 3600
    waste = lost / bill if bill > 0 else lost_hours / hours if hours > 0 else None
    return Sums(
        jobs=len(jobs),
        judged=sum(bool(job.judged) for job in jobs),
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
        waste=None if waste is None else min(waste, 1.0),
        causes=dict(
            sorted(((cause, value) for cause, value in causes.items() if value > 0), key=lambda pair: -pair[1])
        ),
        stages={stage: stages[stage] for stage in STAGES if stages.get(stage, 0.0) > 0},
    )


def causes_of(jobs: Sequence[FleetJob], whole: Sums) -> tuple[Cause, ...]:
    """Return what all jobs lose to each cause, the most expensive first."""
    losses: dict[str, list[tuple[float, float, str]]] = {}
    for job in jobs:
        for one in job.losses:
            row = (one.usd or 0.0, one.seconds * job.instances / 3600, one.next_step)
            losses.setdefault(one.cause, []).append(row)
    found = []
    for cause, rows in losses.items():
        usd, hours = _sum(row[0] for row in rows), _sum(row[1] for row in rows)
        part = usd / whole.bill_usd if whole.bill_usd else hours / whole.instance_hours if whole.instance_hours else 0.0
        found.append(Cause(cause, LABELS.get(cause, cause), len(rows), hours, usd, min(part, 1.0), max(rows)[2]))
    return tuple(sorted(found, key=lambda one: (-one.usd, -one.instance_hours, one.cause)))


def value_of(job: FleetJob, key: str) -> str:
    """Return the value of a key of --group-by; "" if it is unknown."""
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
            found.append(TopJob(index, job.name, most.cause, job.lost_usd, job.lost_instance_hours, most.next_step))
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


def _sum(values: Iterable[float | None]) -> float:
    return math.fsum(value for value in values if value is not None)
