"""Analysis of a fleet: its totals, and what jobs with a loss have in common."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from statistics import median

import attrs

from sm_profiler.diagnosis.classes import Class
from sm_profiler.fleet.finding import stem_of
from sm_profiler.fleet.model import (
    STAGES,
    Cause,
    Failure,
    Fleet,
    FleetJob,
    Group,
    Loss,
    Regression,
    Repair,
    SharedCause,
    SlowHost,
    TopJob,
    Totals,
    Week,
)
from sm_profiler.fleet.rows import FAILURE, INTERRUPTION, LABELS
from sm_profiler.fleet.wording import Amounts
from sm_profiler.formatting import SENTENCE, percent
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
LAUNCHED, SCRIPT = "job name and user", "script and hyperparameters"  # what jobs have in common

NORMAL = 1.4826  # of a median deviation, for the standard deviation of a normal distribution
LINEAGE_TAGS = ("model", "experiment", "project", "pipeline", "job-family")  # tags that name what a job trains
COMPARED = ("git", "image", "script", "loader_workers", "user", "spot")
HYPERPARAMETER = "hyperparameter "
MOST_CHANGES = 5  # in a sentence
_LAUNCHERS_NUMBER = re.compile(r"(?:slurm[-_.]?)?[0-9]+(?:[-_.][0-9]+)*")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_IMAGE_ACCOUNT = re.compile(r"([0-9]{12})\.dkr\.ecr\.")
_ARN_ACCOUNT = re.compile(r"arn:[^:]+:sagemaker:[^:]*:([0-9]{12}):")

EXACT = 1000  # trials; the number of operations grows with their square

COMMON = Threshold(0.5, "of a group's jobs; a cause of fewer is not the group's")
COMMON_JOBS = Threshold(3, "jobs at least; fewer have their cause in common by chance")
COMMON_SHARE = Threshold(0.05, "of a job's billed time; less is lost by most jobs")
TOP = 10  # jobs; a week of work
UNFINISHED = frozenset({"InProgress", "Stopping"})
ATTRIBUTES = {  # key → of a row
    "user": "user", "account": "account", "namespace": "namespace", "image": "image", "instance-type": "instance_type",
    "git": "git",
}  # fmt: skip
ON_REQUEST = {"tuning-job": "tuning_job", "job": "job_name"}  # keys that most jobs have no value for
HOST = "host"
SHOWN_MACHINES = 3  # of a job
ROUNDING = 1e-6  # of a job's time
TAG = "tag:"

ALL = "all jobs"
MOST = 50
_OF_LOADER = frozenset({Class.INPUT_BOUND.value, Class.PERIODIC_STALL.value})

GROUP_BY = tuple(ATTRIBUTES)


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
        name = _lineage(job, LAUNCHED) or _lineage(job, "name")
        if name and len(job.nodes) == 1 and len(job.machines) == 1 and job.nodes[0].host and job.step_ms:
            peers.setdefault((name, job.instance_type), []).append((job.nodes[0].host, job.step_ms, job))
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
        f"{expected:.1f}. Start the next jobs elsewhere, and replace it if they are faster there: a rank with more work than others "
        "is slow on any machine.",
    )  # fmt: skip


def shared_machines(jobs: Sequence[FleetJob]) -> tuple[float, tuple[FleetJob, ...]]:
    """Return the hours of machines that are counted more than once, and the jobs that ran beside another on a machine.

    A job whose attempts waited for a machine is left out: when it held none is not known.
    """
    held: dict[
        str, list[tuple[float, int, int]]
    ] = {}  # machine → times at which a job begins (1) or ends (-1), and its place
    for place, job in enumerate(jobs):
        end = job.ended or ((job.started or 0.0) + (job.billable_s or 0.0))
        if job.billed_by == "profile" and job.started and end > job.started and not job.between_attempts_s:
            for host in {node.host for node in job.nodes if node.host}:
                held.setdefault(host, []).extend([(job.started, 1, place), (end, -1, place)])
    again, beside = 0.0, set[int]()
    for times in held.values():
        running, before = set[int](), 0.0
        for moment, change, place in sorted(times):  # at the same time, ends come first
            if len(running) > 1 and moment > before:
                again += (len(running) - 1) * (moment - before)
                beside |= running
            before = moment
            running = running | {place} if change > 0 else running - {place}
    return again / 3600, tuple(jobs[place] for place in sorted(beside))


def regressions(jobs: Sequence[FleetJob]) -> tuple[Regression, ...]:
    """Return the regressions, the most expensive first; of several slow jobs in a row, the first one."""
    index = {id(job): place for place, job in enumerate(jobs)}
    timed = [job for job in jobs if job.step_ms and (job.started or job.created) and _is_comparable(job)]
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


def _is_comparable(job: FleetJob) -> bool:
    """Return whether the time of a job's steps is that of what it trains: it did not fail, was not stopped or disturbed."""
    return (
        job.status in {"", "Completed", *UNFINISHED} and not job.disturbed and job.verdict != Class.INCONCLUSIVE.value
    )


def _lineages(jobs: Sequence[FleetJob]) -> Iterator[tuple[str, list[FleetJob]]]:
    """Yield the jobs that train the same: by name first (the launcher's or their own), then by tag, image, script."""
    taken: set[int] = set()
    for same in (LAUNCHED, "name", *(f"tag {tag}" for tag in LINEAGE_TAGS), "image", SCRIPT):
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
    if same == LAUNCHED:  # users choose the same names; in an interactive job, all profiles have that job's name
        own = "" if _LAUNCHERS_NUMBER.fullmatch(job.name) else job.stem
        return repr((stem_of(job.job_name), own, job.user, job.script)) if job.job_name else ""
    if same == "name":
        return "" if job.job_name or _LAUNCHERS_NUMBER.fullmatch(job.name) else job.stem
    if same == "image":
        return job.image if ":" in job.image and _is_own_image(job) else ""  # with a tag or a digest
    if same == SCRIPT:
        chosen = sorted(job.hyperparameters.items())
        return repr((job.image, job.script, chosen)) if job.script and chosen else ""
    return job.tags.get(same.removeprefix("tag "), "")


def _is_own_image(job: FleetJob) -> bool:
    """Return whether a job's image is one of its account: a public image is that of many unrelated jobs."""
    image, account = _IMAGE_ACCOUNT.match(job.image), _ARN_ACCOUNT.match(job.arn)
    return bool(image and account) and image[1] == account[1]  # type: ignore[index]  # both are there


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
            if job.status not in UNFINISHED:
                before.append(job)
            continue
        usual, spread = (slow.usual, slow.spread) if slow else _usual(before)
        limit = max(float(REGRESSED), REGRESSED_SPREADS * spread * math.sqrt(1 + 1 / len(before)))
        if step / usual - 1 < limit:
            finished = [] if job.status in UNFINISHED else [job]
            before = [*before, *finished][-int(MOST_PREDECESSORS) :]
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
    changed = _changed(last, job)
    priced = [slower for slower in slow.jobs if slower.bill_usd is not None]
    usd = sum((slower.bill_usd or 0.0) * max(1 - slow.usual / (slower.step_ms or slow.usual), 0.0) for slower in priced)
    later = len(slow.jobs) - 1
    shown = [f"{key.replace('_', ' ')} {old or 'none'} → {new or 'none'}" for key, (old, new) in changed.items()]
    more = len(shown) - MOST_CHANGES
    what = ", ".join(shown[:MOST_CHANGES]) + (f" and {more} more" if more > 0 else "")
    others = f" and {later} later job{'s' if later > 1 else ''}" if later else ""
    text = (
        f"{job.title}{others}: steps take {now:.3g} ms, {percent(change)} longer than the {slow.usual:.3g} ms of the "
        f"{len(slow.before)} jobs before (same {same}). " + (f"Changed: {what}." if what else "No known change.")
    )
    return Regression(
        index[id(job)], job.name, tuple(earlier.name for earlier in reversed(slow.before)), same, slow.usual, now, change,
        slow.spread, changed, usd if priced else None, text, later,
    ), [index[id(slower)] for slower in slow.jobs]  # fmt: skip


def _changed(before: FleetJob, now: FleetJob) -> dict[str, tuple[str, str]]:
    """Return all that is known of two jobs and differs, before and now; "" is unknown, or not there."""
    pairs = {key: (_text_of(getattr(before, key)), _text_of(getattr(now, key))) for key in COMPARED}
    for name in sorted({*before.hyperparameters, *now.hyperparameters}):
        pairs[HYPERPARAMETER + name] = before.hyperparameters.get(name, ""), now.hyperparameters.get(name, "")
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _text_of(value: object) -> str:
    return "" if value is None else "yes" if value is True else "no" if value is False else str(value)


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


def loss_order(job: FleetJob, *, in_dollars: bool = True) -> tuple[float, float, str, str]:
    """Return the key by which jobs are sorted: dollars, then hours, the most first; then by name and place."""
    usd = (job.lost_usd or 0.0) if in_dollars else 0.0
    return -usd, -job.lost_instance_hours, job.name, job.source


def totals_of(jobs: Iterable[FleetJob]) -> Totals:
    jobs = list(jobs)
    priced = [job for job in jobs if job.bill_usd is not None]
    hours, lost_hours = _sum(job.instance_hours for job in jobs), _sum(job.lost_instance_hours for job in jobs)
    bill, lost = _sum(job.bill_usd for job in priced), _sum(job.lost_usd for job in priced)
    judged_hours, judged_usd = _sum(job.judged_instance_hours for job in jobs), _sum(job.judged_usd for job in priced)

    def known(usd: float) -> float | None:
        return usd if priced else None

    unpriced = sum(job.bill_usd is None for job in jobs if job.billable_s)
    stages: dict[str, float] = {}
    for job in jobs:
        for stage, seconds in job.stages.items():
            stages[stage] = stages.get(stage, 0.0) + seconds * job.instances / 3600
    sums = Totals(
        jobs=len(jobs),
        judged=sum(job.is_judged for job in jobs),
        unreadable=sum(bool(job.error) for job in jobs),
        failed=sum(job.status == "Failed" for job in jobs),
        running=sum(job.status in UNFINISHED for job in jobs),
        priced=len(priced),
        unpriced=unpriced,
        instance_hours=hours,
        gpu_hours=_sum(job.gpu_hours for job in jobs),
        lost_instance_hours=min(lost_hours, hours),
        bill_usd=known(bill),
        lost_usd=known(min(lost, bill)),
        saved_usd=known(_sum(job.saved_usd for job in priced)),
        failed_usd=known(_sum(job.failed_usd for job in priced)),
        interrupted_usd=known(_sum(job.interrupted_usd for job in priced)),
        judged_instance_hours=judged_hours,
        judged_usd=known(judged_usd),
        stages={stage: stages[stage] for stage in STAGES if stages.get(stage, 0.0) > 0},
    )
    amounts, causes = Amounts(sums.known_in_dollars), dict[str, float]()
    for job, loss in ((one, loss) for one in jobs for loss in one.losses):
        causes[loss.cause] = causes.get(loss.cause, 0.0) + amounts.amount(loss.usd, _hours(job, loss))
    return attrs.evolve(
        sums,
        coverage=_coverage(jobs, *((judged_usd, bill) if sums.in_dollars and not unpriced else (judged_hours, hours))),
        waste=_part(lost, judged_usd) if sums.in_dollars else _part(lost_hours, judged_hours),
        causes=dict(sorted(((cause, some) for cause, some in causes.items() if some > 0), key=lambda pair: -pair[1])),
    )


def causes_of(jobs: Sequence[FleetJob], whole: Totals) -> tuple[Cause, ...]:
    """Return what all jobs lose to each cause, the most expensive first."""
    losses: dict[str, list[tuple[FleetJob, Loss]]] = {}
    for job in jobs:
        for loss in job.losses:
            losses.setdefault(loss.cause, []).append((job, loss))
    found, amounts = [], Amounts.of(whole)
    for cause, rows in losses.items():
        priced = [loss.usd for _, loss in rows if loss.usd is not None]
        usd, hours = math.fsum(priced) if priced else None, math.fsum(_hours(*row) for row in rows)
        part = _part(amounts.amount(usd, hours), amounts.judged(whole)) or 0.0
        step, repair = _repair(rows, in_dollars=amounts.priced)
        found.append(Cause(cause, LABELS.get(cause, cause), len(rows), hours, usd, part, step, len(priced), repair))
    found.sort(key=lambda cause: (-amounts.amount(cause.usd, cause.instance_hours), -cause.instance_hours, cause.cause))
    return tuple(found)


def repair_of(next_step: str) -> str:
    """Return what is the same in the advice for different jobs: its first sentence, without its numbers."""
    return _NUMBER.sub("", SENTENCE.split(next_step, 1)[0])


def _repair(losses: Iterable[tuple[FleetJob, Loss]], *, in_dollars: bool) -> tuple[str, Repair]:
    """Return the advice that saves most, as it is for the job that loses most, and what it is for."""
    amounts, found = Amounts(in_dollars), dict[str, list[tuple[float, float, bool, str]]]()
    for job, loss in losses:
        row = (loss.usd or 0.0, _hours(job, loss), loss.usd is not None, loss.next_step)
        found.setdefault(repair_of(loss.next_step), []).append(row)
    repairs = []
    for rows in found.values():
        usd, hours = math.fsum(row[0] for row in rows), math.fsum(row[1] for row in rows)
        repair = Repair(len(rows), usd if any(row[2] for row in rows) else None, hours)
        repairs.append((amounts.amount(usd, hours), hours, max(rows)[3], repair))
    _, _, step, repair = max(repairs, key=lambda one: one[:3])
    return step, repair


def _hours(job: FleetJob, loss: Loss) -> float:
    return loss.seconds * job.instances / 3600


def value_of(job: FleetJob, key: str) -> str:
    """Return the value of a key of --group-by, of a job on several machines all of them; "" if it is unknown."""
    if key == HOST:
        more = len(job.machines) - SHOWN_MACHINES
        return ", ".join(list(job.machines)[:SHOWN_MACHINES]) + (f" and {more} more" if more > 0 else "")
    attribute = {**ATTRIBUTES, **ON_REQUEST}.get(key)
    if attribute is not None:
        return str(getattr(job, attribute))
    return job.tags.get(key.removeprefix(TAG), "")


def parts_of(job: FleetJob, key: str) -> list[tuple[str, FleetJob]]:
    """Return the groups of a job with its part in each: that of a job on several machines belongs to each of them."""
    if key != HOST:
        return [(job.groups.get(key, ""), job)]
    parts = dict(job.machines)
    if (rest := 1 - math.fsum(parts.values())) > ROUNDING:
        parts[""] = rest
    return [(host, job if len(parts) == 1 else _part_of(job, part)) for host, part in parts.items()]


def _part_of(job: FleetJob, part: float) -> FleetJob:
    """Return a job with a part of its time and money."""

    def scaled(value: float | None) -> float | None:
        return None if value is None else value * part

    return attrs.evolve(
        job,
        billable_s=scaled(job.billable_s),
        gpu_hours=scaled(job.gpu_hours),
        bill_usd=scaled(job.bill_usd),
        saved_usd=scaled(job.saved_usd),
        failed_usd=scaled(job.failed_usd),
        interrupted_usd=scaled(job.interrupted_usd),
        lost_s=job.lost_s * part,
        lost_usd=scaled(job.lost_usd),
        losses=tuple(attrs.evolve(loss, seconds=loss.seconds * part, usd=scaled(loss.usd)) for loss in job.losses),
        stages={stage: seconds * part for stage, seconds in job.stages.items()},
    )


def _grouped(jobs: Iterable[FleetJob], key: Callable[[FleetJob], str]) -> dict[str, list[FleetJob]]:
    found: dict[str, list[FleetJob]] = {}
    for job in jobs:
        found.setdefault(key(job), []).append(job)
    return found


def groups_of(jobs: Sequence[FleetJob], keys: Iterable[str]) -> tuple[Group, ...]:
    """Return the sums of each group; none for a key of which no job has a value."""
    found = []
    for key in keys:
        by_value: dict[str, list[FleetJob]] = {}
        for value, part in (one for job in jobs for one in parts_of(job, key)):
            by_value.setdefault(value, []).append(part)
        if any(by_value):
            groups = [Group(key, value, totals_of(some)) for value, some in by_value.items()]
            groups.sort(key=lambda group: (-(group.sums.lost_usd or 0.0), -group.sums.lost_instance_hours, group.value))
            found += groups
    return tuple(found)


def weeks_of(jobs: Sequence[FleetJob]) -> tuple[Week, ...]:
    """Return the sums of each week, in time order."""
    by_week = _grouped((job for job in jobs if job.week), lambda job: job.week)
    return tuple(Week(week, totals_of(by_week[week])) for week in sorted(by_week))


def with_repairs(jobs: Sequence[FleetJob]) -> list[FleetJob]:
    """Return the jobs, each with the job by which it was repaired.

    A training that is submitted again after its repair often has another name; user and script stay. Only the latest one
    is asked: a cause that comes back is not repaired.
    """
    latest: dict[tuple[str, str, str, str], FleetJob] = {}
    for job in jobs:
        if (same := _training(job)) and job.judged and job.is_judged and job.status not in UNFINISHED:
            latest[same] = max(latest.get(same, job), job, key=_began)
    found = []
    for job in jobs:
        last = latest.get(_training(job) or ("", "", "", ""))
        is_later = last is not None and _began(last) > _began(job)
        if last is not None and is_later and job.losses and last.status in {"", "Completed"}:
            lost = sum(loss.seconds for loss in last.losses if loss.cause == job.losses[0].cause)
            if lost < COMMON_SHARE * (last.billable_s or 0.0):
                job = attrs.evolve(job, repaired_by=last.title)
        found.append(job)
    return found


def _training(job: FleetJob) -> tuple[str, str, str, str] | None:
    """Return what the same training has in common under any name; None if that is unknown."""
    return (job.user, job.script, job.account, job.namespace) if job.user and job.script else None


def _began(job: FleetJob) -> float:
    return job.started or job.created or 0.0


def top_of(jobs: Sequence[FleetJob]) -> tuple[TopJob, ...]:
    """Return the jobs that lose most and were not repaired, each with one next step; `jobs` is sorted by loss."""
    found = []
    left = [(index, job) for index, job in enumerate(jobs) if not job.repaired_by]
    for index, job in left[:TOP]:
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
        hours = job.instance_hours if ended else job.interrupted_machine_s * job.instances / 3600
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
    hours = sum(_hours(job, loss) for job, loss in losses)
    step, repair = _repair(losses, in_dollars=in_dollars)
    detail, label = _detail(cause, jobs), LABELS.get(cause, cause)
    group = f"{key} {value}" if value else key
    text = f"{label} in {len(jobs)} of {of} jobs of {group}" if value else f"{label} in {len(jobs)} of {of} jobs"
    text += f", all with {detail}" if detail else ""
    text += f": {Amounts(in_dollars and bool(priced)).text(sum(priced), hours)} wasted"
    text += f" (elsewhere in {100 * elsewhere:.0f} % of the jobs)." if value else "."
    return SharedCause(
        key, value, cause, label, len(jobs), of, elsewhere, detail, sum(priced) if priced else None, hours,
        step, text, repair,
    )  # fmt: skip


def _detail(cause: str, jobs: Sequence[FleetJob]) -> str:
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


def assemble(
    jobs: Iterable[FleetJob],
    *,
    group_by: Sequence[str] = GROUP_BY,
    sources: Sequence[str] = (),
    since: float | None = None,
    tags: dict[str, str] | None = None,
    prices: str = "",
    notes: Sequence[str] = (),
    found: int = 0,
) -> Fleet:
    rows = [attrs.evolve(job, groups={key: value_of(job, key) for key in group_by}) for job in with_repairs(list(jobs))]
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
        found=found,
    )
