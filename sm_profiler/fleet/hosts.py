"""Machines that are slow in more jobs than chance explains.

Each job with several nodes of which one delays the others is a draw: by chance, each of its nodes is that one equally
often. A job of one node is compared with those of the same name on other machines: by chance, half are slower than
their median.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import attrs

from sm_profiler.diagnosis.classes import Class
from sm_profiler.fleet import policy
from sm_profiler.fleet.chance import at_least
from sm_profiler.fleet.model import FleetJob, SlowHost
from sm_profiler.formatting import percent

MOST_NAMES = 20


@attrs.frozen
class _Draw:
    """A job in which a machine could be compared with others."""

    job: FleetJob
    chance: float
    slow: bool
    relative: float | None
    lost_s: float


def slow_hosts(jobs: Sequence[FleetJob]) -> tuple[SlowHost, ...]:
    """Return the machines that are slow, the surest first."""
    draws: dict[str, list[_Draw]] = {}
    for job in jobs:
        _add_nodes(job, draws)
    _add_peers(jobs, draws)
    tested = len(draws)
    found = [one for host, some in draws.items() if (one := _judged(host, some, tested)) is not None]
    return tuple(sorted(found, key=lambda one: (one.p_value, -(one.usd or 0.0), one.host)))


def _add_nodes(job: FleetJob, draws: dict[str, list[_Draw]]) -> None:
    """Add the draws of a job of several nodes, if one of them delays the others."""
    hosts = {node.host for node in job.nodes if node.host}
    if len(job.nodes) < 2 or len(hosts) < 2 or not any(node.slow for node in job.nodes):  # two to compare
        return
    lost = sum(one.seconds for one in job.losses if one.cause == Class.STRAGGLER.value)
    for host in hosts:
        own = [node for node in job.nodes if node.host == host]
        slow = next((node for node in own if node.slow), None)
        relative = slow.relative if slow else max((node.relative or 0.0 for node in own), default=None)
        draws.setdefault(host, []).append(
            _Draw(job, len(own) / len(job.nodes), slow is not None, relative, lost if slow else 0.0)
        )


def _add_peers(jobs: Sequence[FleetJob], draws: dict[str, list[_Draw]]) -> None:
    """Add the draws of jobs of one node, by their peers on other machines."""
    peers: dict[tuple[str, str], list[tuple[str, float, FleetJob]]] = {}
    for job in jobs:
        if len(job.nodes) == 1 and job.nodes[0].host and job.step_ms:
            peers.setdefault((job.stem, job.instance_type), []).append((job.nodes[0].host, job.step_ms, job))
    for some in peers.values():
        by_host: dict[str, list[float]] = {}
        for host, step, _ in some:
            by_host.setdefault(host, []).append(step)
        if len(by_host) < 2:  # two to compare
            continue
        # machines weigh alike, however many jobs they ran
        typical = {host: median(steps) for host, steps in by_host.items()}
        of_others = {
            host: median(value for name, value in typical.items() if name != host)
            for host in typical
            if len(some) - len(by_host[host]) >= policy.PEERS
        }
        for host, step, job in some:
            if host in of_others and of_others[host] > 0:
                relative = step / of_others[host]
                slow = relative >= policy.SLOW_HOST
                lost = (1 - 1 / relative) * (job.billable_s or 0.0) if slow else 0.0
                draws.setdefault(host, []).append(_Draw(job, 0.5, slow, relative, lost))


def _judged(host: str, draws: Sequence[_Draw], tested: int) -> SlowHost | None:
    slow = [draw for draw in draws if draw.slow]
    if len(slow) < policy.SLOW_JOBS:
        return None
    chance = min(at_least(len(slow), [draw.chance for draw in draws]) * tested, 1.0)
    relatives = [draw.relative for draw in slow if draw.relative is not None]
    relative = median(relatives) if relatives else 1.0
    if chance > policy.CHANCE or (relatives and relative < policy.SLOW_HOST):
        return None
    expected = sum(draw.chance for draw in draws)
    priced = [draw for draw in slow if draw.job.price is not None]
    usd = sum(draw.lost_s * draw.job.instances * (draw.job.price or 0.0) / 3600 for draw in priced) if priced else None
    hours = sum(draw.lost_s * draw.job.instances / 3600 for draw in slow)
    newest = sorted(slow, key=lambda draw: -(draw.job.started or draw.job.created or 0.0))
    longer = f", by {percent(relative - 1)} in the middle" if relatives else ""
    return SlowHost(
        host, len(draws), len(slow), expected, chance, relative, usd, hours,
        tuple(draw.job.name for draw in newest[:MOST_NAMES]),
        f"{host} was slower than other machines in {len(slow)} of {len(draws)} jobs{longer}; chance explains "
        f"{expected:.1f}. Replace it, or start the next jobs elsewhere.",
    )  # fmt: skip
