"""Content of fleet.json and of the fleet's page: one row a job, and what the rows have in common.

Seconds are those of one instance unless a name begins with `instance_hours`. Dollars are None where a price is unknown.
"""

from __future__ import annotations

from typing import Any

import attrs
import msgspec

from sm_profiler.diagnosis.model import Interval
from sm_profiler.report.report_json import schema_of

SCHEMA_VERSION = "1.0"
LEAST_BILL_USD = 1.0
STAGES = ("waiting", "image", "download", "starting", "training", "uploading")  # of a job, in time order


def titled(name: str, job_name: str) -> str:
    """Return a job's name, and what its launcher calls it, if that is another one."""
    other = other_name(name, job_name)
    return f"{name} ({other})" if other else name


def other_name(name: str, job_name: str) -> str:
    """Return what its launcher calls a job; "" if that is its name, or as `sm-profiler run` has it, with a number after it."""
    base, _, number = job_name.rpartition("-")
    return "" if job_name == name or (base == name and number.isdecimal()) else job_name


@attrs.frozen
class Loss:
    """Time and money that a job loses to one cause; those of a job do not overlap.

    Attributes:
        cause: class of the finding.
        seconds: of one instance.
        usd: for all instances.
        headline: the finding in one sentence.
        next_step: advice.
        confidence: low, medium or high.
    """

    cause: str
    seconds: float
    usd: float | None = None
    headline: str = ""
    next_step: str = ""
    confidence: str = ""


@attrs.frozen
class Line:
    """A line of code that the verdict points to; `share` is its part of the lost time."""

    file: str
    line: int
    function: str
    share: float


@attrs.frozen
class Node:
    """One node of a job.

    Attributes:
        node: name in the job, `algo-1`.
        host: the machine, by its EC2 instance or its GPU; of a job that was requeued, that of its last attempt; "" if unknown.
        relative: time that its steps take without waiting for other nodes, relative to the other nodes' median.
        slow: True if the job's verdict names it as the one that the others wait for.
    """

    node: str
    host: str = ""
    relative: float | None = None
    slow: bool = False


@attrs.frozen
class FleetJob:
    """One row: a job, its bill, its verdict and its losses.

    Attributes:
        name: name of the job; not unique if several sources are read.
        source: location of its profile, or of its report.json if that is all there is; "" if it has neither.
        report: folder of its report's page; "" if there is none.
        judged: origin of the verdict: `report` (its report.json), `profile` (judged here), or "" (not judged).
        error: why it could not be read or judged, in one line; "" if it could.
        lost_records: records of its profile that could not be read.
        arn: its ARN; "" unless it comes from an account.
        status: Completed, Failed, Stopped, InProgress, Stopping; "" if unknown.
        failure: why it failed or was stopped, in one line.
        created, started, ended: seconds since the epoch.
        instance_type, instances: what it ran on; the number is 1 if unknown.
        types: type → number of instances, if there are several types.
        spot: it ran on spot instances.
        user, image, git: who started it, from what; "" if unknown.
        script: the program that it runs; "" if unknown.
        hyperparameters: those of its user; none that look like a secret.
        account, namespace: whose budget or part of the cluster it uses; "" if unknown.
        tuning_job: the hyperparameter tuning job whose trial it is; "" if it is none's.
        job_name, job_id: what its launcher calls it, such as Slurm; "" if unknown.
        tags: its tags; of a pod, its labels.
        stem: its name without times, numbers and random endings.
        week: ISO week of its start, `2026-W47`; "" if unknown.
        groups: key of --group-by → its value.
        billable_s: seconds that are billed for each instance.
        training_s: seconds of training as the service counts them, of which spot instances bill a part; None if unknown.
        billed_by: origin of `billable_s`: `billable time`, `training time`, `profile` or `scheduler`; "" if unknown.
        price: dollars an hour of one instance.
        price_from: origin of the price.
        bill_usd: price times hours times instances.
        saved_s, saved_usd: what spot instances saved: training time that was not billed.
        verdict, label: class of the verdict and its name; "" if it was not judged.
        disturbed: other programs used its machine, so that its times are not the job's alone.
        confidence: low, medium or high.
        headline, next_step: one sentence each.
        where: lines of code, the most expensive first.
        gain_s, gain_usd: what the repair of the verdict's cause saves.
        losses: by cause, in the order of the report, the surest saving first, and downtime before what costs less; a failed job has one, `FAILED`, and downtime is one, `INTERRUPTED`.
        lost_s: sum over causes.
        lost_usd: the same in dollars; never more than the bill.
        lost_share: part of the billed time that is lost.
        stages: known ones of STAGES → seconds.
        gpus, gpu_hours: GPUs of all nodes, and their hours until the end of the billed time.
        steps: training steps of the first rank.
        steps_per_second, step_ms: over the loop without evaluation.
        profiling_cost: share of the loop that the hook used.
        loader_workers: `num_workers` of the data loader; None if unknown.
        nodes: its nodes.
        machines: machine → its part of the job's time: of its nodes, and of a node whose attempts ran on several machines
            the part of each; together 1, or less if some are unknown.
        interruptions: how often it was interrupted and resumed.
        interrupted_s: downtime between its attempts.
        between_attempts_s: the part of it in which it held no machine, as far as that is known and not billed by the
            service: wall time, which is in no other number.
        interrupted_usd: price of the rest of that downtime.
        failed_usd: the bill of a job that failed.
        listed_only: only the scheduler's list has it: it left no profile.
        repaired_by: the latest job of the same user and script, if that has lost nothing noticeable to what this one lost
            most to; "" otherwise, or if user or script is unknown.
    """

    name: str
    source: str = ""
    report: str = ""
    judged: str = ""
    error: str = ""
    lost_records: int = 0
    arn: str = ""
    status: str = ""
    failure: str = ""
    created: float | None = None
    started: float | None = None
    ended: float | None = None
    instance_type: str = ""
    instances: int = 1
    types: dict[str, int] = attrs.field(factory=dict)
    spot: bool = False
    user: str = ""
    image: str = ""
    git: str = ""
    script: str = ""
    hyperparameters: dict[str, str] = attrs.field(factory=dict)
    account: str = ""
    namespace: str = ""
    tuning_job: str = ""
    job_name: str = ""
    job_id: str = ""
    tags: dict[str, str] = attrs.field(factory=dict)
    stem: str = ""
    week: str = ""
    groups: dict[str, str] = attrs.field(factory=dict)
    billable_s: float | None = None
    training_s: float | None = None
    billed_by: str = ""
    price: float | None = None
    price_from: str = ""
    bill_usd: float | None = None
    saved_s: float = 0.0
    saved_usd: float | None = None
    verdict: str = ""
    label: str = ""
    disturbed: bool = False
    confidence: str = ""
    headline: str = ""
    next_step: str = ""
    where: tuple[Line, ...] = ()
    gain_s: Interval | None = None
    gain_usd: Interval | None = None
    losses: tuple[Loss, ...] = ()
    lost_s: float = 0.0
    lost_usd: float | None = None
    lost_share: float | None = None
    stages: dict[str, float] = attrs.field(factory=dict)
    gpus: int = 0
    gpu_hours: float | None = None
    steps: int | None = None
    steps_per_second: float | None = None
    step_ms: float | None = None
    profiling_cost: float | None = None
    loader_workers: int | None = None
    nodes: tuple[Node, ...] = ()
    machines: dict[str, float] = attrs.field(factory=dict)
    interruptions: int = 0
    interrupted_s: float = 0.0
    between_attempts_s: float = 0.0
    interrupted_usd: float | None = None
    failed_usd: float | None = None
    listed_only: bool = False
    repaired_by: str = ""

    @property
    def title(self) -> str:
        """Its name, and what its launcher calls it, if that is another one."""
        return titled(self.name, self.job_name)

    @property
    def instance_hours(self) -> float:
        """Billed hours of all instances; 0 if unknown."""
        return (self.billable_s or 0.0) * self.instances / 3600

    @property
    def interrupted_machine_s(self) -> float:
        """Downtime in which it held its machines: from a last step to the end, and from a start to the first step."""
        return max(self.interrupted_s - self.between_attempts_s, 0.0)

    @property
    def lost_instance_hours(self) -> float:
        """Lost hours of all instances."""
        return self.lost_s * self.instances / 3600

    @property
    def is_judged(self) -> bool:
        """True if a verdict states what of its time was lost, or all of it was: the job failed."""
        if self.listed_only:
            return False
        return self.status == "Failed" or (bool(self.judged) and self.verdict not in ("", "INCONCLUSIVE"))

    @property
    def judged_instance_hours(self) -> float:
        """Hours of which it is known whether they were lost; of a job without a verdict its downtime at most."""
        return self.instance_hours if self.is_judged else min(self.lost_instance_hours, self.instance_hours)

    @property
    def judged_usd(self) -> float:
        """The same in dollars; 0 without a price."""
        if self.bill_usd is None:
            return 0.0
        return self.bill_usd if self.is_judged else min(self.lost_usd or 0.0, self.bill_usd)


@attrs.frozen
class Totals:
    """Totals over some jobs.

    Attributes:
        jobs, unreadable, failed, running: numbers of jobs.
        judged: jobs with a verdict, and failed ones; without those that are inconclusive.
        priced: jobs whose bill is known.
        unpriced: jobs whose time is known, and whose bill is not.
        instance_hours, gpu_hours, lost_instance_hours: of all jobs.
        bill_usd, lost_usd, saved_usd, failed_usd, interrupted_usd: of the priced ones; None without any.
        judged_instance_hours, judged_usd: what of that was judged; the rest is neither useful nor lost as far as known.
        coverage: judged part of the bill; of the hours if it is less than a dollar or that of a job is unknown. A job that
            was not judged and whose time is unknown counts as an average one. None without jobs.
        waste: lost part of what was judged: of the bill, or of the hours if it is less than a dollar or unknown for all that
            was judged; None if nothing was.
        causes: cause → dollars, the most expensive first; hours of instances if no bill of what was judged is known.
        stages: known ones of STAGES → hours of instances.
    """

    jobs: int = 0
    judged: int = 0
    unreadable: int = 0
    failed: int = 0
    running: int = 0
    priced: int = 0
    unpriced: int = 0
    instance_hours: float = 0.0
    gpu_hours: float = 0.0
    lost_instance_hours: float = 0.0
    bill_usd: float | None = None
    lost_usd: float | None = None
    saved_usd: float | None = None
    failed_usd: float | None = None
    interrupted_usd: float | None = None
    judged_instance_hours: float = 0.0
    judged_usd: float | None = None
    coverage: float | None = None
    waste: float | None = None
    causes: dict[str, float] = attrs.field(factory=dict)
    stages: dict[str, float] = attrs.field(factory=dict)

    @property
    def known_in_dollars(self) -> bool:
        """True if a bill is known, also one of what was judged: without that, what was lost would seem to be free."""
        return self.priced > 0 and ((self.judged_usd or 0.0) > 0 or self.judged_instance_hours <= 0)

    @property
    def in_dollars(self) -> bool:
        """True if these jobs are shown and sorted in dollars; in hours otherwise: time shows more than cents."""
        return self.known_in_dollars and (self.bill_usd or 0.0) >= LEAST_BILL_USD


@attrs.frozen
class Repair:
    """Jobs that have the same advice: its first sentence is the same, except for numbers.

    Attributes:
        jobs: number of these jobs.
        usd, instance_hours: what they lose to the cause.
    """

    jobs: int = 0
    usd: float | None = None
    instance_hours: float = 0.0


@attrs.frozen
class Cause:
    """Losses of all jobs to one cause.

    Attributes:
        cause, label: the cause.
        jobs: number of jobs with it.
        instance_hours: of all of them.
        usd: of those with a bill; None if none has one.
        share: part of what was judged.
        next_step: the advice that saves most; jobs with the same cause may have another one.
        priced: how many of the jobs have a bill.
        repair: the jobs that it is for.
    """

    cause: str
    label: str
    jobs: int
    instance_hours: float
    usd: float | None
    share: float
    next_step: str = ""
    priced: int = 0
    repair: Repair = Repair()


@attrs.frozen
class Group:
    """The jobs with one value of a key of --group-by; `value` is "" for jobs without one."""

    key: str
    value: str
    sums: Totals


@attrs.frozen
class Week:
    """The jobs that started in one ISO week, `2026-W47`."""

    week: str
    sums: Totals


@attrs.frozen
class TopJob:
    """One of the ten jobs that lose most.

    Attributes:
        job: its place in `Fleet.jobs`.
        name: its name.
        cause: what it loses most to.
        usd, instance_hours: what it loses to all causes.
        next_step: the one thing to do.
        reason: why it failed; "" if it did not, or if that is unknown.
    """

    job: int
    name: str
    cause: str
    usd: float | None
    instance_hours: float
    next_step: str
    reason: str = ""


@attrs.frozen
class SlowHost:
    """A machine that is slow in more jobs than chance explains.

    Attributes:
        host: the machine.
        jobs: number of jobs it ran in with others to compare with.
        slow: in how many of those it was the slowest.
        expected: in how many it would be by chance.
        p_value: probability of as many by chance, times the number of machines tested.
        relative: median of its step times relative to the other nodes'.
        usd: lost by the other nodes that waited for it.
        instance_hours: the same in hours.
        names: jobs in which it was slow, the newest first; at most 20.
        sentence: all of this in one sentence.
    """

    host: str
    jobs: int
    slow: int
    expected: float
    p_value: float
    relative: float
    usd: float | None
    instance_hours: float
    names: tuple[str, ...]
    sentence: str


@attrs.frozen
class Regression:
    """A job whose steps take longer than those of its predecessors.

    Attributes:
        job: its place in `Fleet.jobs`.
        name: its name.
        before: names of the predecessors, the newest first.
        same: what they have in common: `job name and user`, `name`, `tag …`, `image` (one of the account's own), or `script and hyperparameters`.
        step_ms_before, step_ms: median of the predecessors, and this job's.
        change: increase, 0.25 for a quarter longer.
        spread: usual deviation of the predecessors from their median, as a share of it.
        changed: git, image, loader_workers, a hyperparameter, … → values before and now, where they differ.
        usd: what the longer steps cost in this job and the later ones.
        later: number of jobs after it that are as slow.
        sentence: all of this in one sentence.
    """

    job: int
    name: str
    before: tuple[str, ...]
    same: str
    step_ms_before: float
    step_ms: float
    change: float
    spread: float
    changed: dict[str, tuple[str, str]]
    usd: float | None
    sentence: str
    later: int = 0


@attrs.frozen
class SharedCause:
    """A cause that most of a group's jobs share.

    Attributes:
        key, value: the group.
        cause, label: the cause.
        jobs: number of jobs with it.
        of: judged jobs of the group.
        elsewhere: share of all other jobs with it.
        detail: what those jobs have in common, such as `num_workers=0`; "" if nothing was found.
        usd, instance_hours: what they lose to it.
        next_step: the advice that saves most; jobs with the same cause may have another one.
        sentence: all of this in one sentence.
        repair: the jobs that `next_step` is for.
    """

    key: str
    value: str
    cause: str
    label: str
    jobs: int
    of: int
    elsewhere: float
    detail: str
    usd: float | None
    instance_hours: float
    next_step: str
    sentence: str
    repair: Repair = Repair()


@attrs.frozen
class Failure:
    """A job that failed, was stopped or was interrupted, and what that cost."""

    job: int
    name: str
    status: str
    reason: str
    interruptions: int
    usd: float | None
    instance_hours: float


@attrs.frozen
class Fleet:
    """Content of fleet.json.

    Attributes:
        generated: time at which it was made.
        sources: what was read.
        since: jobs that started before this time are left out; seconds since the epoch.
        tags: jobs without these tags are left out.
        group_by: keys of the groups.
        prices: origin of the prices.
        totals: sums over all jobs.
        jobs: one row a job, the most wasted dollars first.
        causes: the most expensive first.
        groups: by key, the most wasted dollars first.
        weeks: in time order.
        top: at most ten.
        common: the most expensive first.
        hosts: the surest first.
        regressions: the most expensive first.
        failures: the most expensive first.
        notes: jobs left out, a damaged index, unknown prices; one sentence each.
        found: number of jobs before `since` and `tags` left some out.
        schema_version: the first number changes if a field is removed or changes its meaning.
    """

    generated: str = ""
    sources: tuple[str, ...] = ()
    since: float | None = None
    tags: dict[str, str] = attrs.field(factory=dict)
    group_by: tuple[str, ...] = ()
    prices: str = ""
    totals: Totals = attrs.field(factory=Totals)
    jobs: tuple[FleetJob, ...] = ()
    causes: tuple[Cause, ...] = ()
    groups: tuple[Group, ...] = ()
    weeks: tuple[Week, ...] = ()
    top: tuple[TopJob, ...] = ()
    common: tuple[SharedCause, ...] = ()
    hosts: tuple[SlowHost, ...] = ()
    regressions: tuple[Regression, ...] = ()
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    found: int = 0
    schema_version: str = SCHEMA_VERSION

    def to_json(self) -> bytes:
        """Return the content of fleet.json; NaN and infinities become null."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes) -> Fleet:
        """Read fleet.json."""
        return msgspec.json.decode(data, type=cls)


def schema() -> dict[str, Any]:
    return schema_of(Fleet, "fleet", globals())
