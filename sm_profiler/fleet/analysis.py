"""From rows to a fleet: sums, trends, and what jobs have in common."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial

import attrs

from sm_profiler.fleet.common import common_causes
from sm_profiler.fleet.hosts import slow_hosts
from sm_profiler.fleet.model import Fleet, FleetJob
from sm_profiler.fleet.regressions import regressions
from sm_profiler.fleet.sums import (
    ATTRIBUTES,
    causes_of,
    failures_of,
    groups_of,
    loss_order,
    sums_of,
    top_of,
    value_of,
    weeks_of,
)

GROUP_BY = tuple(ATTRIBUTES)


def assemble(  # keyword arguments, one an independent choice
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
    totals = sums_of(rows)
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
        common=common_causes(rows, group_by),
        hosts=slow_hosts(rows),
        regressions=regressions(rows),
        failures=failures_of(rows),
        notes=tuple(notes),
    )
