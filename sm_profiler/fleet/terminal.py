"""Summary of a fleet for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sm_profiler.fleet.model import Fleet, TopJob, Totals
from sm_profiler.fleet.rows import LABELS
from sm_profiler.fleet.wording import Amounts, coverage, hours, money
from sm_profiler.formatting import plural, shorten

LINES = 3  # of each list; the page has the others
TOP = 5
_NAME = 40  # characters
_REASON = 100
_BAR = 24


def summary(fleet: Fleet) -> str:
    """Return the summary: bill, waste by cause, the jobs that lose most with one step each, and what they share."""
    return "\n".join(_lines(fleet))


def _lines(fleet: Fleet) -> Iterator[str]:
    whole = fleet.totals
    yield _headline(whole)
    if whole.unreadable:
        errors = [job for job in fleet.jobs if job.error]
        more = "; the page lists all" if whole.unreadable > 1 else ""
        yield f"{whole.unreadable:,} could not be read: {errors[0].name}: {errors[0].error}{more}"
    yield from fleet.notes
    if fleet.causes:
        yield ""
        yield "Lost by cause"
        shown = fleet.causes[: 2 * LINES]
        # one unit a list: a cause of which some bills are unknown is compared with the others by its hours
        in_dollars = whole.in_dollars and all(cause.priced == cause.jobs for cause in shown)
        lost = [cause.usd if in_dollars else cause.instance_hours for cause in shown]
        for cause, amount in sorted(zip(shown, lost, strict=True), key=lambda pair: -pair[1]):
            bar = "\N{FULL BLOCK}" * max(round(_BAR * amount / (max(lost) or 1.0)), 1)
            yield f"  {cause.label:<34.34} {bar:<{_BAR}} {Amounts(in_dollars).format(amount):>12}  {plural(cause.jobs, 'job')}"
    if fleet.top:
        yield ""
        yield "Jobs that waste most, and what to do"
        yield from _top(fleet.top[:TOP], in_dollars=whole.in_dollars)
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


def _top(jobs: Sequence[TopJob], *, in_dollars: bool) -> Iterator[str]:
    """Write the jobs that lose most; those with the same cause and advice together, with the advice once."""
    in_dollars = in_dollars and all(job.usd is not None for job in jobs)
    amounts = Amounts(in_dollars)
    alike: dict[tuple[str, str], list[TopJob]] = {}
    for job in jobs:
        alike.setdefault((job.cause, job.next_step), []).append(job)
    for (cause, step), some in alike.items():
        for job in some:
            lost = amounts.format((job.usd or 0.0) if in_dollars else job.instance_hours)
            reason = f": {shorten(job.reason, _REASON)}" if job.reason else ""
            yield f"  {lost:>10}  {_cut(job.name)}: {LABELS.get(cause, cause)}{reason}"
        yield f"  {'':>10}  {step}"


def _headline(whole: Totals) -> str:
    if not whole.jobs:
        return "No jobs were found."
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
        text += f", {amounts.format(judged)} of which was judged; {amounts.format(lost)} of that ({_share(lost, judged)}) was lost. {covered}"
    else:
        text += f"; {amounts.format(lost)} of it ({_share(lost, judged)}) was lost."
    if amounts.priced:
        text += f" Spot instances saved {money(whole.saved_usd)}." if whole.saved_usd else ""
        unpriced = whole.jobs - whole.priced
        text += f" The bill of {unpriced:,} is unknown." if unpriced else ""
    return text


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %"


def _cut(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
