"""Jobs whose steps take longer than those of their predecessors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median

import attrs

from sm_profiler.fleet import policy
from sm_profiler.fleet.model import FleetJob, Regression
from sm_profiler.formatting import percent

NORMAL = 1.4826  # of a median deviation, for the standard deviation of a normal distribution
LINEAGE_TAGS = ("model", "experiment", "project", "pipeline", "job-family")  # tags that name what a job trains
COMPARED = ("git", "image", "loader_workers", "user")


def regressions(jobs: Sequence[FleetJob]) -> tuple[Regression, ...]:
    """Return the regressions, the most expensive first; of several slow jobs in a row, the first one."""
    index = {id(job): place for place, job in enumerate(jobs)}
    timed = [job for job in jobs if job.step_ms and (job.started or job.created)]
    timed.sort(key=lambda job: (job.started or job.created or 0.0, job.name))
    found: dict[int, Regression] = {}
    seen: set[int] = set()
    for same, lineage in _lineages(timed):
        for regression, places in _of_lineage(same, lineage, index):
            if not seen.intersection(places):
                found[regression.job] = regression
            seen.update(places)
    return tuple(sorted(found.values(), key=lambda one: (-(one.usd or 0.0), -one.change, one.name)))


def _lineages(jobs: Sequence[FleetJob]) -> Iterator[tuple[str, list[FleetJob]]]:
    """Yield the jobs that train the same: by name first, then by tag, then by image."""
    ways: list[tuple[str, Callable[[FleetJob], str]]] = [
        ("name", lambda job: job.stem),
        *((f"tag {tag}", partial(_tag, tag)) for tag in LINEAGE_TAGS),
        ("image", lambda job: job.image if "@sha256:" in job.image or ":" in job.image else ""),
    ]
    taken: set[int] = set()
    for same, key in ways:
        by_key: dict[tuple[str, str, int], list[FleetJob]] = {}
        for job in jobs:
            if id(job) not in taken and key(job):
                by_key.setdefault((key(job), job.instance_type, job.instances), []).append(job)
        for lineage in by_key.values():
            if len(lineage) > policy.PREDECESSORS:
                taken.update(map(id, lineage))
                yield same, lineage


def _tag(tag: str, job: FleetJob) -> str:
    return job.tags.get(tag, "")


@attrs.define
class _Slow:
    """Slower jobs in a row."""

    first: FleetJob
    before: list[FleetJob]
    usual: float
    spread: float
    jobs: list[FleetJob]


def _of_lineage(
    same: str, lineage: Sequence[FleetJob], index: dict[int, int]
) -> Iterator[tuple[Regression, list[int]]]:
    before: list[FleetJob] = []
    slow: _Slow | None = None
    for job in lineage:
        step = job.step_ms or 0.0
        if len(before) < policy.PREDECESSORS:
            before.append(job)
            continue
        usual, spread = (slow.usual, slow.spread) if slow else _usual(before)
        limit = max(float(policy.REGRESSED), policy.REGRESSED_SPREADS * spread * math.sqrt(1 + 1 / len(before)))
        if step / usual - 1 < limit:
            before = [*before, job][-int(policy.MOST_PREDECESSORS) :]
            if slow is not None:
                yield _regression(same, slow, index)
                slow = None
            continue
        if slow is None:
            slow = _Slow(job, before, usual, spread, [])
        slow.jobs.append(job)
        if len(slow.jobs) >= policy.NEW_NORMAL:
            yield _regression(same, slow, index)
            before, slow = slow.jobs, None
    if slow is not None:
        yield _regression(same, slow, index)


def _usual(before: Sequence[FleetJob]) -> tuple[float, float]:
    """Return the median step of the predecessors, and their deviation from it as a share of it."""
    steps = [job.step_ms or 0.0 for job in before]
    usual = median(steps)
    deviation = NORMAL * median(abs(step - usual) for step in steps) / usual
    return usual, max(deviation, float(policy.LEAST_SPREAD))


def _regression(same: str, slow: _Slow, index: dict[int, int]) -> tuple[Regression, list[int]]:
    job, last = slow.first, slow.before[-1]
    now = job.step_ms or 0.0
    change = now / slow.usual - 1
    changed = {
        key: (str(getattr(last, key)), str(getattr(job, key)))
        for key in COMPARED
        if getattr(last, key) != getattr(job, key) and getattr(job, key) not in {"", None}
    }
    priced = [one for one in slow.jobs if one.bill_usd is not None]
    usd = sum((one.bill_usd or 0.0) * max(1 - slow.usual / (one.step_ms or slow.usual), 0.0) for one in priced)
    later = len(slow.jobs) - 1
    what = ", ".join(f"{key.replace('_', ' ')} {old or 'none'} → {new}" for key, (old, new) in changed.items())
    others = f" and {later} later job{'s' if later > 1 else ''}" if later else ""
    text = (
        f"{job.name}{others}: steps take {now:.3g} ms, {percent(change)} longer than the {slow.usual:.3g} ms of the "
        f"{len(slow.before)} jobs before (same {same}). " + (f"Changed: {what}." if what else "No known change.")
    )
    return Regression(
        index[id(job)], job.name, tuple(one.name for one in reversed(slow.before)), same, slow.usual, now, change,
        slow.spread, changed, usd if priced else None, text, later,
    ), [index[id(one)] for one in slow.jobs]  # fmt: skip
