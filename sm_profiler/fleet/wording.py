"""A fleet as text: amounts, names of causes and dates, for its page, and the summary for a terminal."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import groupby

import attrs

from sm_profiler.fleet.model import Fleet, FleetJob, Group, TopJob, Totals
from sm_profiler.fleet.rows import FAILURE, LABELS
from sm_profiler.formatting import first_sentences, percent, plural
from sm_profiler.printable import cut, printable

_KEYS = {"instance-type": "machine type", "git": "code version", "tuning-job": "tuning job"}
WHOLE_FROM = 100  # amounts from here on have no decimals
MINUTES_BELOW = 60
SECONDS_BELOW = 60
TENTHS_BELOW = 9.95  # minutes: a part of two would else be all of them
STAGES = {
    "waiting": "Waiting for a machine",
    "image": "Loading the image",
    "download": "Downloading data",
    "starting": "Starting the script",
    "training": "Training",
    "uploading": "Uploading results",
}
STATES = {
    "InProgress": "Running",
    "Completed": "Completed",
    "Failed": "Failed",
    "Stopped": "Stopped",
    "Stopping": "Stopping",
}

UNKNOWN = "\N{EN DASH}"  # in place of a number
LINES = 3  # of each list; the page has the others
TOP = 5
GROUPS = 10  # of a key
_NAME = 40  # characters
_REASON = 100
ADVICE = 160
_BAR = 24


def money(usd: float) -> str:
    """Format dollars: `$1,240`, `$12.40`."""
    if round(usd, 2) >= WHOLE_FROM:
        return f"${usd:,.0f}"
    return f"${usd:,.2f}" if round(usd, 2) > 0 else "<$0.01" if usd > 0 else "$0"


def hours(count: float) -> str:
    """Format hours: `1,240 h`, `3.4 h`, `12 min`, `1.3 min`, `40 s`."""
    if round(count, 1) >= WHOLE_FROM:
        return f"{count:,.0f} h"
    if round(count * 60) >= MINUTES_BELOW:
        return f"{count:,.1f} h"
    if round(count * 3600) >= SECONDS_BELOW:
        return f"{count * 60:.0f} min" if count * 60 >= TENTHS_BELOW else f"{count * 60:.2g} min"
    return f"{count * 3600:.0f} s" if round(count * 3600) > 0 else "<1 s" if count > 0 else "0 h"


def label(cause: str) -> str:
    return LABELS.get(cause, cause)


def result(job: FleetJob) -> str:
    """Return the result in a job's row: what the service reports of it, else the verdict."""
    if job.listed_only:
        return "No profile"
    if job.status == "Failed":
        return label(FAILURE)
    if job.label or job.verdict:
        return job.label or label(job.verdict)
    return "Could not be read" if job.error else "Not judged"


def advice(job: FleetJob) -> str:
    """Return the sentences below a row's result: what was found and the next step."""
    if job.error:
        return job.error
    first = job.losses[0] if job.losses else None
    if first and job.repaired_by:
        return f"{first.headline} Repaired since: {job.repaired_by}, of the same user and script, does not lose to it."
    told = first or (job if not job.is_judged else None)
    return " ".join(filter(None, (told.headline, told.next_step))) if told else ""


def group_name(key: str) -> str:
    return _KEYS.get(key, key)


def group_value(value: str) -> str:
    """Return the value of a group's key, an image without its registry."""
    return re.sub(r"^\d{12}\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com(\.cn)?/", "", value)


def coverage(sums: Totals) -> str:
    """Return how much of what some jobs cost was judged, in a sentence; "" if all was.

    It is a share of machine time if a bill is unknown: money would leave out jobs whose time is known.
    """
    if sums.coverage is None or (sums.judged == sums.jobs and sums.coverage >= 1):
        return ""
    amounts = Amounts(sums.in_dollars and not sums.unpriced)
    spent = amounts.spent(sums)
    known = amounts.judged(sums) / spent if spent > 0 else sums.coverage  # a share of the amount that is shown
    share = "nearly all" if round(100 * known) == 100 and sums.judged < sums.jobs else percent(known)  # percent
    jobs = f", {sums.judged:,} of {plural(sums.jobs, 'job')}" if sums.judged < sums.jobs else ""
    return f"Judged: {share} of {amounts.format(spent)}{'' if amounts.priced else ' of machine time'}{jobs}."


def machines(job: FleetJob) -> str:
    """Return what a job ran on: `8 x ml.g5.2xlarge, spot`."""
    kind = job.instance_type or "unknown"
    return f"{f'{job.instances} x ' if job.instances > 1 else ''}{kind}{', spot' if job.spot else ''}"


def moment(seconds: float | None) -> str:
    """Format a time to the minute; "" if it is unknown or damaged."""
    try:
        return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds // 60 * 60))
    except (OverflowError, OSError, ValueError):
        return ""


def monday(week: str) -> str:
    """Return the first day of an ISO week, `16 Nov`; the week itself if it is none."""
    try:
        year, _, number = week.partition("-W")
        day = date.fromisocalendar(int(year), int(number), 1)
    except ValueError:
        return week
    return f"{day.day} {day:%b}"


@attrs.frozen
class Amounts:
    """Writes dollars, or hours of machines if no price is known or all jobs cost next to nothing."""

    priced: bool

    @classmethod
    def of(cls, totals: Totals) -> Amounts:
        return cls(totals.in_dollars)

    def of_part(self, sums: Totals) -> Amounts:
        """Return those for some of the jobs: hours if no bill of what was judged of them is known, since it was not free."""
        return self if sums.known_in_dollars or not sums.unpriced else Amounts(priced=False)

    @property
    def noun(self) -> str:
        """Name of what is counted."""
        return "dollars" if self.priced else "machine hours"

    def text(self, usd: float | None, instance_hours: float) -> str:
        """Format an amount that is known in both units, in hours only, or not at all."""
        if self.priced and usd is not None:
            return money(usd)
        return hours(instance_hours) if instance_hours > 0 else UNKNOWN

    def format(self, value: float) -> str:
        """Format a number that is in the page's unit already."""
        return money(value) if self.priced else hours(value)

    def amount(self, usd: float | None, instance_hours: float) -> float:
        """Return an amount in the page's unit."""
        return (usd or 0.0) if self.priced else instance_hours

    def spent(self, sums: Totals) -> float:
        return self.amount(sums.bill_usd, sums.instance_hours)

    def lost(self, sums: Totals) -> float:
        return self.amount(sums.lost_usd, sums.lost_instance_hours)

    def judged(self, sums: Totals) -> float:
        return self.amount(sums.judged_usd, sums.judged_instance_hours)


def summary(fleet: Fleet, groups: Sequence[str] = (), first: Sequence[str] = ()) -> str:
    """Return the summary: bill, waste by cause, the jobs that lose most with one step each, and what they share.

    Args:
        groups: keys whose groups are written, too.
        first: lines on the first thing to do.
    """
    return "\n".join(_lines(fleet, groups, first))


def _lines(fleet: Fleet, keys: Sequence[str], first: Sequence[str]) -> Iterator[str]:
    whole = fleet.totals
    yield _headline(whole) if whole.jobs else none_of(fleet)
    if whole.unreadable:
        errors = [job for job in fleet.jobs if job.error]
        more = "; the page lists all" if whole.unreadable > 1 else ""
        yield f"{whole.unreadable:,} could not be read: {errors[0].name}: {errors[0].error}{more}"
    yield from fleet.notes
    if first:
        yield ""
        yield from first
    if fleet.causes:
        yield ""
        yield "Wasted by cause"
        shown = fleet.causes[: 2 * LINES]
        # one unit a list: a cause of which some bills are unknown is compared with the others by its hours
        in_dollars = whole.in_dollars and all(cause.priced == cause.jobs for cause in shown)
        lost = [Amounts(in_dollars).amount(cause.usd, cause.instance_hours) for cause in shown]
        for cause, amount in sorted(zip(shown, lost, strict=True), key=lambda pair: -pair[1]):
            bar = "\N{FULL BLOCK}" * max(round(_BAR * amount / (max(lost) or 1.0)), 1)
            yield f"  {cause.label:<34.34} {bar:<{_BAR}} {Amounts(in_dollars).format(amount):>12}  {plural(cause.jobs, 'job')}"
    for key in keys:
        if groups := [group for group in fleet.groups if group.key == key]:
            yield ""
            yield f"By {group_name(key)}"
            yield from _of_groups(groups, Amounts.of(whole))
    if fleet.top:
        yield ""
        yield "Jobs that waste most, and what to do"
        yield from _top(fleet, fleet.top[:TOP])
    for title, sentences in (
        ("In common", [shared.sentence for shared in fleet.common]),
        ("Slow machines", [host.sentence for host in fleet.hosts]),
        ("Slower than before", [job.sentence for job in fleet.regressions]),
    ):
        if sentences:
            yield ""
            yield title
            yield from (f"  {sentence}" for sentence in sentences[:LINES])
            if len(sentences) > LINES:
                yield f"  and {len(sentences) - LINES:,} more"


def _of_groups(groups: Sequence[Group], whole: Amounts) -> Iterator[str]:
    """Write what groups cost and lose, and what of it was judged."""
    for group in groups[:GROUPS]:
        sums, amounts = group.sums, whole.of_part(group.sums)
        spent, lost = amounts.format(amounts.spent(sums)), amounts.format(amounts.lost(sums))
        judged = "" if sums.coverage is None else f", {percent(sums.coverage)} judged"
        known = "not judged" if sums.coverage == 0 else f"{lost} wasted{judged}"
        name = cut(group_value(group.value), _NAME) or "unknown"
        unpriced = f", {sums.unpriced:,} without a price" if amounts.priced and sums.unpriced else ""
        yield f"  {name:<{_NAME}} {spent:>10}, {known}, {plural(sums.jobs, 'job')}{unpriced}"
    if len(groups) > GROUPS:
        yield f"  and {len(groups) - GROUPS:,} more"


def _top(fleet: Fleet, jobs: Sequence[TopJob]) -> Iterator[str]:
    """Write the jobs that lose most, in that order; the beginning of the same advice is shown once."""
    in_dollars = fleet.totals.in_dollars and all(job.usd is not None for job in jobs)
    amounts = Amounts(in_dollars)

    def lost(job: TopJob) -> float:
        return (job.usd or 0.0) if in_dollars else job.instance_hours

    ranked, shown = sorted(jobs, key=lambda job: -lost(job)), set[str]()
    for (cause, step), some in groupby(ranked, key=lambda job: (job.cause, first_sentences(job.next_step, ADVICE))):
        for job in some:
            reason = f": {first_sentences(job.reason, _REASON)}" if job.reason else ""
            yield f"  {amounts.format(lost(job)):>10}  {cut(fleet.jobs[job.job].title, _NAME)}: {label(cause)}{reason}"
        yield f"  {'':>10}  {step if step not in shown else 'As above.'}"
        shown.add(step)


def none_of(fleet: Fleet) -> str:
    """Return a sentence on a fleet without jobs: none were found, or none passes the filters."""
    wanted = [f"has {key}={value}" for key, value in fleet.tags.items()]
    if fleet.since is not None:
        wanted.append(f"started since {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(fleet.since))}")
    if not fleet.found or not wanted:
        return "No jobs were found."
    found = f"{plural(fleet.found, 'job')} {'was' if fleet.found == 1 else 'were'} found"
    return printable(f"{found}, and none {' and '.join(wanted)}.")


def _headline(whole: Totals) -> str:
    jobs = plural(whole.jobs, "job")
    amounts = Amounts.of(whole)
    spent, judged, lost = amounts.spent(whole), amounts.judged(whole), amounts.lost(whole)
    if spent <= 0:
        return f"{jobs}; nothing is known about their billed time. {coverage(whole)}".rstrip()
    text = f"{jobs} cost {money(spent)}" if amounts.priced else f"{jobs} took {hours(spent)} of machines"
    covered = coverage(whole)
    if judged <= 0:
        text += ". None of it was judged."
    elif covered:
        text += f", {amounts.format(judged)} of which was judged; {amounts.format(lost)} of that ({100 * lost / judged:.0f} %) was wasted. {covered}"
    else:
        text += f"; {amounts.format(lost)} of it ({100 * lost / judged:.0f} %) was wasted."
    if amounts.priced:
        text += f" Spot instances saved {money(whole.saved_usd)}." if whole.saved_usd else ""
        unpriced = whole.jobs - whole.priced
        text += f" The bill of {unpriced:,} is unknown." if unpriced else ""
    return text
