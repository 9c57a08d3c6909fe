"""Summary of a fleet for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from sm_profiler.fleet.model import Fleet, Sums
from sm_profiler.fleet.page_words import Amounts, hours, money
from sm_profiler.fleet.rows import LABELS
from sm_profiler.report.formatting import plural

LINES = 3  # of each list; the page has the others
TOP = 5
_NAME = 40  # characters
_BAR = 24


def summary(fleet: Fleet) -> str:
    """Return the summary: bill, waste by cause, the jobs that lose most with one step each, and what they share."""
    return "\n".join(_lines(fleet))


def _lines(fleet: Fleet) -> Iterator[str]:
    whole, amounts = fleet.totals, Amounts(bool(fleet.totals.priced))
    yield _headline(whole)
    if whole.unreadable:
        errors = [job for job in fleet.jobs if job.error]
        yield f"{whole.unreadable:,} could not be read: {errors[0].name}: {errors[0].error}"
    yield from fleet.notes
    if fleet.causes:
        yield ""
        yield "Lost by cause"
        most = max(one.share for one in fleet.causes) or 1.0
        for cause in fleet.causes[: 2 * LINES]:
            bar = "\N{FULL BLOCK}" * max(round(_BAR * cause.share / most), 1)
            lost = amounts.text(cause.usd, cause.instance_hours)
            yield f"  {cause.label:<34.34} {bar:<{_BAR}} {lost:>12}  {plural(cause.jobs, 'job')}"
    if fleet.top:
        yield ""
        yield "Jobs that lose most, and what to do"
        for one in fleet.top[:TOP]:
            lost = amounts.text(one.usd, one.instance_hours)
            yield f"  {lost:>10}  {_cut(one.name)}: {LABELS.get(one.cause, one.cause)}. {one.next_step}"
    for title, sentences in (
        ("In common", [one.sentence for one in fleet.common]),
        ("Slow machines", [one.sentence for one in fleet.hosts]),
        ("Slower than before", [one.sentence for one in fleet.regressions]),
    ):
        if sentences:
            yield ""
            yield title
            yield from (f"  {one}" for one in sentences[:LINES])
            if len(sentences) > LINES:
                yield f"  and {len(sentences) - LINES:,} more"


def _headline(whole: Sums) -> str:
    if not whole.jobs:
        return "No jobs were found."
    jobs = plural(whole.jobs, "job")
    if whole.waste is None:
        return f"{jobs}; nothing is known about their billed time."
    if whole.priced:
        text = (
            f"{jobs} cost {money(whole.bill_usd)}; {money(whole.lost_usd)} of it ({100 * whole.waste:.0f} %) was lost."
        )
        text += f" Spot instances saved {money(whole.saved_usd)}." if whole.saved_usd else ""
        unpriced = whole.jobs - whole.priced
        return text + (f" The bill of {unpriced:,} is unknown." if unpriced else "")
    return (
        f"{jobs} took {hours(whole.instance_hours)} of machines; {hours(whole.lost_instance_hours)} of it "
        f"({100 * whole.waste:.0f} %) was lost."
    )


def _cut(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
