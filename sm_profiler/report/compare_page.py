"""The comparison for a terminal and as a page."""

from __future__ import annotations

from sm_profiler.report.compare import NAMES, Change, Comparison
from sm_profiler.report.judges.judge_context import duration
from sm_profiler.report.page import render_page
from sm_profiler.report.svg import clean, shorten

MANY = 10.0  # a change by more is shown as a factor


def terminal_comparison(found: Comparison) -> str:
    """A table of at most ten lines."""
    lines = [
        clean(found.sentence),
        f"  before: {shorten(found.before, 70)} ({found.steps[0]} steps, {found.verdicts[0]})",
    ]
    lines.append(f"  after:  {shorten(found.after, 70)} ({found.steps[1]} steps, {found.verdicts[1]})")
    lines += ["  " + f"{row[0]:<20}{row[1]:>10}{row[2]:>10}{row[3]:>10}  {row[4]}".rstrip() for row in rows(found)]
    return "\n".join(lines)


def rows(found: Comparison) -> list[tuple[str, str, str, str, str]]:
    """Part, before, after, change, interval."""
    return [
        (NAMES[one.part], duration(one.before), duration(one.after), _percent(one.change), _interval(one))
        for one in found.changes
    ]


def render_comparison(found: Comparison) -> str:
    """The comparison as an HTML page of the report's kind."""
    slower = found.step is not None and found.step.is_clear and (found.step.change or 0) > 0
    return render_page(
        "compare.html", title="Comparison - sm-profiler", found=found, rows=rows(found),
        mood="issue" if slower else "healthy" if found.changes else "open",
    )  # fmt: skip


def _percent(change: float | None) -> str:
    if change is None:
        return ""
    return f"{100 * change:+.1f} %" if change < MANY else f"x {change + 1:.3g}"


def _interval(one: Change) -> str:
    if one.low is None or one.high is None:
        return ""
    note = "" if one.is_clear else " (may be chance)"
    return f"{_percent(one.low)} to {_percent(one.high)}{note}"
