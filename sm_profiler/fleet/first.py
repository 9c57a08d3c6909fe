"""The first thing to do about a fleet: the one repair that saves most."""

from __future__ import annotations

import attrs

from sm_profiler.fleet.analysis import causes_of, repair_of
from sm_profiler.fleet.model import Cause, Fleet, FleetJob, SharedCause
from sm_profiler.fleet.wording import ADVICE, Amounts, label
from sm_profiler.formatting import first_sentences, plural

SMALL = 1 / 3  # of the most expensive cause's repair: a single one below that is not what to do first
_READ_ON = "Begin with the job that it costs most."


@attrs.frozen
class Step:
    """Something to do.

    Attributes:
        amount: what it saves, in the unit of the fleet's amounts.
        what: what is wrong, in a sentence; before a job, its beginning.
        next: the advice.
        name, link, where: the job as a page shows it, its address, and the line of its code.
        job: the job that loses most to it; None if that is no single one.
        cause: what it loses.
    """

    amount: float
    what: str
    next: str
    name: str = ""
    link: str = ""
    where: str = ""
    job: FleetJob | None = None
    cause: str = ""


def first_step(fleet: Fleet) -> Step | None:
    """Return the one action that saves most; None if there is nothing to repair.

    That is the repair of what many jobs share or of a slow machine, unless that is little compared with the most expensive
    one of any cause.
    """
    amounts = Amounts.of(fleet.totals)
    hosts = [
        Step(amounts.amount(host.usd, host.instance_hours), "A slow machine delays its jobs.", host.sentence)
        for host in fleet.hosts
    ]
    best = max(common_steps(fleet) + hosts, key=lambda step: step.amount, default=None)
    cause = _of_cause(fleet, amounts)
    return best if best and (cause is None or best.amount >= SMALL * cause.amount) else cause


def first_lines(fleet: Fleet) -> list[str]:
    """Return the lines on the first thing to do, for a terminal."""
    step = first_step(fleet)
    if step is None or step.amount <= 0:
        return []
    return [
        f"Do this first: it saves up to {Amounts.of(fleet.totals).format(step.amount)}",
        f"  {first_sentences(step.next, ADVICE)}",
        f"  {step.what}{f' {step.job.title}' if step.job is not None else ''}",
    ]


def common_steps(fleet: Fleet) -> list[Step]:
    """Return the repairs of what many jobs share."""
    amounts = Amounts.of(fleet.totals)
    return [
        Step(
            amounts.amount(shared.repair.usd, shared.repair.instance_hours),
            " ".join(filter(None, (shared.sentence, _for_some(shared, amounts)))),
            shared.next_step,
        )
        for shared in fleet.common
    ]


def _for_some(of: Cause | SharedCause, amounts: Amounts) -> str:
    """Return a sentence on the jobs that an advice is for; "" if that is all of those with the cause."""
    jobs, repair = of.jobs, of.repair
    lost = amounts.text(repair.usd, repair.instance_hours)
    return f"This repairs {repair.jobs:,} of these {jobs:,} jobs, {lost}." if repair.jobs < jobs else ""


def _of_cause(fleet: Fleet, amounts: Amounts) -> Step | None:
    """Return the most expensive repair of a cause, with the job that loses most; without jobs that were repaired."""
    left = [job for job in fleet.jobs if not job.repaired_by]
    causes = [
        (amounts.amount(cause.repair.usd, cause.repair.instance_hours), cause)
        for cause in causes_of(left, fleet.totals)
    ]
    amount, cause = max(causes, key=lambda pair: pair[0], default=(0.0, None))
    if cause is None or amount <= 0:
        return None
    lost = amounts.text(cause.usd, cause.instance_hours)
    what = f"{label(cause.cause)}: {plural(cause.jobs, 'job')} {'loses' if cause.jobs == 1 else 'lose'} {lost} this way"
    if some := _for_some(cause, amounts):
        what += f". {some.removesuffix('.')}"
    what += ", most of all" if cause.repair.jobs > 1 else ":"
    worst = max(left, key=lambda job: _lost_to(job, cause, amounts))
    return Step(amount, what, cause.next_step or _READ_ON, job=worst, cause=cause.cause)


def _lost_to(job: FleetJob, cause: Cause, amounts: Amounts) -> tuple[float, float]:
    """Return what a job loses to a cause that the cause's advice repairs."""
    hours = job.instances / 3600
    return max(
        (
            (amounts.amount(loss.usd, loss.seconds * hours), loss.seconds * hours)
            for loss in job.losses
            if loss.cause == cause.cause and repair_of(loss.next_step) == repair_of(cause.next_step)
        ),
        default=(0.0, 0.0),
    )
