"""Causes that a group's jobs have in common, beyond chance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sm_profiler.diagnosis.classes import Class
from sm_profiler.fleet import policy
from sm_profiler.fleet.chance import drawn_at_least
from sm_profiler.fleet.model import CommonCause, FleetJob
from sm_profiler.fleet.page_words import Amounts
from sm_profiler.fleet.rows import FAILURE, INTERRUPTION, LABELS

ALL = "all jobs"
MOST = 50
_OF_LOADER = frozenset({Class.INPUT_BOUND.value, Class.PERIODIC_STALL.value})


def common_causes(jobs: Sequence[FleetJob], keys: Iterable[str]) -> tuple[CommonCause, ...]:
    """Return the causes that groups have in common, the most expensive first."""
    judged = [job for job in jobs if job.judged]
    groups: list[tuple[str, str, list[FleetJob]]] = [(ALL, "", judged)]
    for key in keys:
        by_value: dict[str, list[FleetJob]] = {}
        for job in judged:
            if job.groups.get(key):
                by_value.setdefault(job.groups[key], []).append(job)
        groups += [(key, value, some) for value, some in by_value.items()]
    with_cause: dict[str, set[int]] = {}
    for job in judged:
        for cause in _causes(job):
            with_cause.setdefault(cause, set()).add(id(job))
    tests = max(len(groups) * len(with_cause), 1)
    found = []
    for key, value, some in groups:
        for cause, having in with_cause.items():
            mine = [job for job in some if id(job) in having]
            if len(mine) < policy.COMMON_JOBS or len(mine) / len(some) < policy.COMMON:
                continue
            others = len(judged) - len(some)
            if others and drawn_at_least(len(mine), len(some), len(having), len(judged)) * tests > policy.CHANCE:
                continue
            found.append(_common(key, value, cause, mine, len(some), (len(having) - len(mine)) / max(others, 1)))
    found.sort(key=lambda one: (-(one.usd or 0.0), -one.instance_hours, one.key, one.value))
    return tuple(_distinct(found)[:MOST])


def _causes(job: FleetJob) -> set[str]:
    """Return the causes that cost a job noticeable time."""
    whole = job.billable_s or 0.0
    return {
        one.cause
        for one in job.losses
        if whole and one.seconds / whole >= policy.COMMON_SHARE and one.cause not in {FAILURE, INTERRUPTION}
    }


def _common(  # one argument a part of the sentence
    key: str, value: str, cause: str, jobs: Sequence[FleetJob], of: int, elsewhere: float
) -> CommonCause:
    losses = [(job, one) for job in jobs for one in job.losses if one.cause == cause]
    priced = [one.usd for _, one in losses if one.usd is not None]
    hours = sum(one.seconds * job.instances / 3600 for job, one in losses)
    worst = max(losses, key=lambda pair: (pair[1].usd or 0.0, pair[1].seconds))[1]
    detail, label = _detail(cause, jobs), LABELS.get(cause, cause)
    group = f"{key} {value}" if value else key
    text = f"{label} in {len(jobs)} of {of} jobs of {group}" if value else f"{label} in {len(jobs)} of {of} jobs"
    text += f", all with {detail}" if detail else ""
    text += f": {Amounts(bool(priced)).text(sum(priced), hours)} lost"
    text += f" (elsewhere in {100 * elsewhere:.0f} % of the jobs)." if value else "."
    return CommonCause(
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


def _distinct(found: Sequence[CommonCause]) -> list[CommonCause]:
    """Leave out groups that are the same jobs under another key: all of their numbers are equal."""
    kept: dict[tuple[object, ...], CommonCause] = {}
    for one in found:
        kept.setdefault((one.cause, one.jobs, one.of, one.usd, one.instance_hours), one)
    return list(kept.values())
