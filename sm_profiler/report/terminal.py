"""The verdict as text for a terminal, in at most fifteen lines."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence

from sm_profiler.printable import printable
from sm_profiler.report.classes import Class
from sm_profiler.report.flame import at_line, part_of
from sm_profiler.report.formatting import duration, in_unit, percent, plural
from sm_profiler.report.gains import gain_of_finding
from sm_profiler.report.gpu.section import parts_of as gpu_parts
from sm_profiler.report.model import Evidence, Finding, Location, Report
from sm_profiler.report.parts import COLOURS
from sm_profiler.report.restarts import repeated_work
from sm_profiler.report.slices import loop_slices
from sm_profiler.report.startup import job_parts
from sm_profiler.report.svg import shorten
from sm_profiler.report.where import MODULE

MAX_LINES = 15
MAX_PLACES = 2  # lines of code
MIN_NAMED = 0.005  # of a job
_MOODS = {"bad": "33;1", "good": "32;1", "open": "36;1"}


def terminal_summary(report: Report, colour: bool = False, *, width: int | None = None) -> str:  # noqa: FBT001, FBT002 - the interface that the rule runner uses
    """Return the verdict with its evidence and the next step.

    Args:
        report: the report.
        colour: use ANSI colours.
        width: columns; default: those of the terminal, at most 100.
    """
    width = max(min(width or shutil.get_terminal_size((100, 24)).columns, 100), 40)
    main = report.verdict.main
    mood = "open" if main.is_open else "good" if main.kind.is_healthy else "bad"
    code = f"\x1b[{_MOODS[mood]}m{main.kind.value}\x1b[0m" if colour else main.kind.value
    lines = [f"{code}  {main.label} ({main.confidence} confidence)", *_wrap(main.headline, width)]
    lines += [shorten(printable(f"  {_location(main, one)}"), width) for one in main.where[:MAX_PLACES]]
    lines += _wrap(gain_of_finding(main), width)
    lines += _wrap(f"Next: {main.next_step}", width)
    lines += _bar(report, width, colour=colour)
    lines += [shorten(printable(f"  {_evidence(one)}"), width) for one in main.evidence[:3]]
    last = []
    count, downtime = report.metrics.interruptions
    if count:
        times = "once" if count == 1 else f"{count} times"
        repeated = repeated_work(report.metrics)
        again = f"; {plural(repeated.steps, 'step')} ({duration(repeated.seconds)}) done again" if repeated else ""
        text = f"  interrupted {times} and resumed; {duration(downtime)} of downtime excluded{again}"
        last.append(shorten(text, width))
    last += _also(report.verdict.also, width)
    if report.broken:
        last.append(shorten(printable(f"  {_broken(report.broken)}"), width))
    return "\n".join([*lines[: MAX_LINES - len(last)], *last])


def _also(findings: Sequence[Finding], width: int) -> list[str]:
    """Return the other findings, each with its share of the time, in at most two lines."""
    if not findings:
        return []
    each = [f"{one.kind.value} {_share(one)}({one.confidence})" for one in findings]
    return textwrap.wrap(
        f"Also: {', '.join(each)}", width, initial_indent="  ", subsequent_indent="  ", max_lines=2, placeholder=" …"
    )


def _share(finding: Finding) -> str:
    of_job = " of the job" if finding.of == "job" else ""
    return f"{percent(finding.share_of_time)}{of_job} " if finding.share_of_time > 0 else ""


def _location(finding: Finding, one: Location) -> str:
    rank = f" on {one.rank}" if one.rank else ""
    function = "" if one.function == MODULE else f" in {shorten(one.function, 40)}"
    return f"{at_line(one)}{function}{rank} \N{EM DASH} {part_of(finding, one)}"


def _evidence(one: Evidence) -> str:
    limit = f" ({one.held} {in_unit(one.threshold, one.unit)})" if one.threshold is not None else ""
    return f"{one.metric}: {in_unit(one.value, one.unit)}{limit}" + (f", {one.where}" if one.where else "")


def _broken(broken: Mapping[str, str]) -> str:
    """Return which parts of the report failed, as report.json lists them."""
    (first, why), *others = broken.items()
    return f"Failed and left out: {', '.join([first, *(name for name, _ in others)])} ({why})"


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        shorten(printable(text), 600), width, initial_indent="  ", subsequent_indent="  ", max_lines=4, placeholder=" …"
    )


def _job_slices(report: Report) -> list[tuple[float, str, str, str]]:
    """Return the parts of a job that starts slowly: share, colour, letter, text."""
    if report.verdict.kind is not Class.INITIALIZATION_BOUND:
        return []
    found = job_parts(report.metrics)
    whole = sum(one.seconds for one in found) or 1.0
    return [
        (one.seconds / whole, one.colour, one.letter, f"{one.label.lower()} {duration(one.seconds)}")
        for one in found
        if one.seconds / whole >= MIN_NAMED
    ]


def _bar(report: Report, width: int, *, colour: bool) -> list[str]:
    """Return where the time of the loop (of the job if it starts slowly) goes: a line of blocks or letters, its legend."""
    slices = _job_slices(report) or [
        (one.share, one.part.colour, one.part.letter, f"{one.label.lower()} {one.value}" if one.is_named else "")
        for one in loop_slices(report.metrics.ranks)
    ] or [
        (share, part.colour, part.letter, f"{part.label[:1].lower()}{part.label[1:]} {percent(share)}")
        for part, share in gpu_parts(report.gpu_traces)
    ]  # fmt: skip
    if not slices:
        return []
    title = "Job: " if report.verdict.kind is Class.INITIALIZATION_BOUND else "Loop: "
    drawn, legend = "", []
    for share, name, letter, label in slices:
        cells, ansi = round(share * (width - 4)), COLOURS[name].ansi
        drawn += f"\x1b[{ansi}m{'█' * cells}\x1b[0m" if colour else letter * cells
        if label:
            key = f"\x1b[{ansi}m■\x1b[0m" if colour else letter
            legend.append((f"{key} {label}", len(label) + 2))
    lines, line, used = [f"  {drawn}"], f"  {title}", 2 + len(title)
    for entry, columns in legend:
        if used + columns + 2 > width:
            lines, line, used = [*lines, line.rstrip()], "  ", 2
        line, used = f"{line}{entry}  ", used + columns + 2
    return [*lines, line.rstrip()]
