"""Machines and earlier runs that jobs are compared with: slow hosts, and jobs that became slower.

Each job with several nodes of which one delays the others is a draw: by chance, each of its nodes delays them equally
often. A job of one node is compared with those of the same name on other machines: by chance, half are slower than
their median.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

import attrs

from sm_profiler.diagnosis.classes import Class
from sm_profiler.fleet.model import FleetJob, Regression, SlowHost
from sm_profiler.formatting import percent
from sm_profiler.metrics.thresholds import Threshold

CHANCE = Threshold(0.01, "probability, times the number of tests; one wrong name in a hundred fleets")
SLOW_HOST = Threshold(1.05, "of the other nodes' time; less is the usual difference between machines of a type")
SLOW_JOBS = Threshold(2, "jobs at least; once is an event of that job")
PEERS = Threshold(3, "jobs on other machines at least, for a median that one of them cannot move")
REGRESSED = Threshold(0.10, "longer steps; less is the usual difference between two runs")
REGRESSED_SPREADS = Threshold(4.0, "deviations of the predecessors; chance does not reach this far in a thousand jobs")
LEAST_SPREAD = Threshold(0.02, "of a step; the same job run twice differs by this, however close its predecessors were")
PREDECESSORS = Threshold(3, "jobs at least; fewer have no spread")
MOST_PREDECESSORS = Threshold(10, "jobs; older ones ran other code")
NEW_NORMAL = Threshold(5, "slower jobs in a row; from then on they are what the next ones are compared with")
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
    found = [slow for host, some in draws.items() if (slow := _judged(host, some, tested)) is not None]
    return tuple(sorted(found, key=lambda slow: (slow.p_value, -(slow.usd or 0.0), slow.host)))


def _add_nodes(job: FleetJob, draws: dict[str, list[_Draw]]) -> None:
    """Add the draws of a job of several nodes, if one of them delays the others."""
    hosts = {node.host for node in job.nodes if node.host}
    if len(job.nodes) < 2 or len(hosts) < 2 or not any(node.slow for node in job.nodes):  # two to compare
        return
    lost = sum(loss.seconds for loss in job.losses if loss.cause == Class.STRAGGLER.value)
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
            if len(some) - len(by_host[host]) >= PEERS
        }
        for host, step, job in some:
            if host in of_others and of_others[host] > 0:
                relative = step / of_others[host]
                slow = relative >= SLOW_HOST
                lost = (1 - 1 / relative) * (job.billable_s or 0.0) if slow else 0.0
                draws.setdefault(host, []).append(_Draw(job, 0.5, slow, relative, lost))


def _judged(host: str, draws: Sequence[_Draw], tested: int) -> SlowHost | None:
    slow = [draw for draw in draws if draw.slow]
    if len(slow) < SLOW_JOBS:
        return None
    chance = min(at_least(len(slow), [draw.chance for draw in draws]) * tested, 1.0)
    relatives = [draw.relative for draw in slow if draw.relative is not None]
    relative = median(relatives) if relatives else 1.0
    if chance > CHANCE or (relatives and relative < SLOW_HOST):
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
    return tuple(
        sorted(found.values(), key=lambda regression: (-(regression.usd or 0.0), -regression.change, regression.name))
    )


def _lineages(jobs: Sequence[FleetJob]) -> Iterator[tuple[str, list[FleetJob]]]:
    """Yield the jobs that train the same: by name first, then by tag, then by image."""
    taken: set[int] = set()
    for same in ("name", *(f"tag {tag}" for tag in LINEAGE_TAGS), "image"):
        by_key: dict[tuple[str, str, int], list[FleetJob]] = {}
        for job in jobs:
            if id(job) not in taken and (key := _lineage(job, same)):
                by_key.setdefault((key, job.instance_type, job.instances), []).append(job)
        for lineage in by_key.values():
            if len(lineage) > PREDECESSORS:
                taken.update(map(id, lineage))
                yield same, lineage


def _lineage(job: FleetJob, same: str) -> str:
    """Return what a job has in common with its predecessors; "" if it has nothing of that kind."""
    if same == "name":
        return job.stem
    if same == "image":
        return job.image if ":" in job.image else ""  # with a tag or a digest
    return job.tags.get(same.removeprefix("tag "), "")


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
        if len(before) < PREDECESSORS:
            before.append(job)
            continue
        usual, spread = (slow.usual, slow.spread) if slow else _usual(before)
        limit = max(float(REGRESSED), REGRESSED_SPREADS * spread * math.sqrt(1 + 1 / len(before)))
        if step / usual - 1 < limit:
            before = [*before, job][-int(MOST_PREDECESSORS) :]
            if slow is not None:
                yield _regression(same, slow, index)
                slow = None
            continue
        if slow is None:
            slow = _Slow(job, before, usual, spread, [])
        slow.jobs.append(job)
        if len(slow.jobs) >= NEW_NORMAL:
            yield _regression(same, slow, index)
            before, slow = slow.jobs, None
    if slow is not None:
        yield _regression(same, slow, index)


def _usual(before: Sequence[FleetJob]) -> tuple[float, float]:
    """Return the median step of the predecessors, and their deviation from it as a share of it."""
    steps = [job.step_ms or 0.0 for job in before]
    usual = median(steps)
    deviation = NORMAL * median(abs(step - usual) for step in steps) / usual
    return usual, max(deviation, float(LEAST_SPREAD))


def _regression(same: str, slow: _Slow, index: dict[int, int]) -> tuple[Regression, list[int]]:
    job, last = slow.first, slow.before[-1]
    now = job.step_ms or 0.0
    change = now / slow.usual - 1
    changed = {
        key: (str(getattr(last, key)), str(getattr(job, key)))
        for key in COMPARED
        if getattr(last, key) != getattr(job, key) and getattr(job, key) not in {"", None}
    }
    priced = [slower for slower in slow.jobs if slower.bill_usd is not None]
    usd = sum((slower.bill_usd or 0.0) * max(1 - slow.usual / (slower.step_ms or slow.usual), 0.0) for slower in priced)
    later = len(slow.jobs) - 1
    what = ", ".join(f"{key.replace('_', ' ')} {old or 'none'} → {new}" for key, (old, new) in changed.items())
    others = f" and {later} later job{'s' if later > 1 else ''}" if later else ""
    text = (
        f"{job.name}{others}: steps take {now:.3g} ms, {percent(change)} longer than the {slow.usual:.3g} ms of the "
        f"{len(slow.before)} jobs before (same {same}). " + (f"Changed: {what}." if what else "No known change.")
    )
    return Regression(
        index[id(job)], job.name, tuple(earlier.name for earlier in reversed(slow.before)), same, slow.usual, now, change,
        slow.spread, changed, usd if priced else None, text, later,
    ), [index[id(slower)] for slower in slow.jobs]  # fmt: skip


EXACT = 1000  # trials; the number of operations grows with their square


def at_least(count: int, chances: Sequence[float]) -> float:
    """Return the probability of at least `count` successes in trials of different chances."""
    mean = math.fsum(chances) / max(len(chances), 1)
    share = count / max(len(chances), 1)
    if count <= 0 or share <= mean:  # more than about a half: no test asks how much more
        return 1.0
    if len(chances) > EXACT:
        return math.exp(-len(chances) * _divergence(min(share, 1.0), mean))  # Chernoff's bound, never too small
    # state: probability of each number of successes; the last one is that of `count` or more
    state = [1.0] + [0.0] * count
    for chance in chances:
        state[count] += state[count - 1] * chance
        for number in range(count - 1, 0, -1):
            state[number] = state[number] * (1 - chance) + state[number - 1] * chance
        state[0] *= 1 - chance
    return min(state[count], 1.0)


def drawn_at_least(count: int, drawn: int, marked: int, total: int) -> float:
    """Return the probability that at least `count` of `drawn` jobs are among the `marked` ones of `total`."""
    if count <= max(0, drawn + marked - total):
        return 1.0
    whole = _log_choose(total, drawn)
    logs = [
        _log_choose(marked, number) + _log_choose(total - marked, drawn - number) - whole
        for number in range(count, min(drawn, marked) + 1)
    ]
    return min(math.fsum(math.exp(log) for log in logs), 1.0)


def _log_choose(total: int, drawn: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(drawn + 1) - math.lgamma(total - drawn + 1)


def _divergence(share: float, mean: float) -> float:
    """Return how far a share is from its mean, as the relative entropy."""
    if mean <= 0.0:
        return math.inf
    rest = (1 - share) * math.log((1 - share) / (1 - mean)) if share < 1.0 else 0.0
    return share * math.log(share / mean) + rest
