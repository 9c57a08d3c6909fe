"""Summary of a fleet for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from sm_profiler.fleet.model import Fleet, Sums
from sm_profiler.fleet.rows import LABELS

LINES = 3  # of each list; the page has the others
TOP = 5
_NAME = 40  # characters
_BAR = 24


def summary(fleet: Fleet) -> str:
    """Return the summary: bill, waste by cause, the jobs that lose most with one step each, and what they share."""
    return "\n".join(_lines(fleet))


def money(usd: float | None, hours: float) -> str:
    """Return dollars, or hours of instances if the price is unknown."""
    return f"${usd:,.2f}" if usd is not None else f"{hours:,.1f} instance hours"


def _lines(fleet: Fleet) -> Iterator[str]:
    whole = fleet.totals
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
            lost = money(cause.usd if whole.priced else None, cause.instance_hours)
            yield f"  {cause.label:<34.34} {bar:<{_BAR}} {lost:>12}  {cause.jobs:,} job{_s(cause.jobs)}"
    if fleet.top:
        yield ""
        yield "Jobs that lose most, and what to do"
        for one in fleet.top[:TOP]:
            lost = money(one.usd, one.instance_hours)
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
    jobs = f"{whole.jobs:,} job{_s(whole.jobs)}"
    if whole.waste is None:
        return f"{jobs}; nothing is known about their billed time."
    if whole.priced:
        text = f"{jobs} cost ${whole.bill_usd:,.2f}; ${whole.lost_usd:,.2f} of it ({100 * whole.waste:.0f} %) was lost."
        text += f" Spot instances saved ${whole.saved_usd:,.2f}." if whole.saved_usd else ""
        unpriced = whole.jobs - whole.priced
        return text + (f" The bill of {unpriced:,} is unknown." if unpriced else "")
    return (
        f"{jobs} took {whole.instance_hours:,.1f} instance hours; {whole.lost_instance_hours:,.1f} of them "
        f"({100 * whole.waste:.0f} %) were lost."
    )


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _cut(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
