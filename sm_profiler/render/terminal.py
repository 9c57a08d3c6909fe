"""The verdict as text for a terminal, in at most fifteen lines."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence

from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.model import Evidence, Finding, Location, Report
from sm_profiler.diagnosis.profile.lines import MODULE
from sm_profiler.formats.process_end import RUNNING
from sm_profiler.formatting import SENTENCE, clean, duration, in_unit, percent, plural, shorten
from sm_profiler.metrics.ends import JobEnd
from sm_profiler.metrics.startup import job_parts, repeated_work, unstored_attempts
from sm_profiler.printable import cut, printable
from sm_profiler.render.charts import COLOURS
from sm_profiler.render.flame import at_line, part_of
from sm_profiler.render.view import shares
from sm_profiler.render.words import gain_of_finding, loop_alarm, other_findings, readable_processes, short_gain

MAX_LINES = 15
MAX_PLACES = 2  # lines of code
MAX_STACKS = 3  # of a training that stopped
MIN_NAMED = 0.005  # of a job
NO_VERDICT = "no verdict yet"  # of a job that goes on
_CLAUSE = re.compile(r"(?<=[,;:]) ")
_MOODS = {"bad": "33;1", "good": "32;1", "open": "36;1"}


def terminal_summary(
    report: Report, colour: bool = False, *, width: int | None = None
) -> str:  # the interface that the rule runner uses
    """Return the verdict with its evidence and the next step.

    Args:
        colour: use ANSI colours.
        width: columns; default: those of the terminal, at most 100.
    """
    width = max(min(width or shutil.get_terminal_size((100, 24)).columns, 100), 40)
    main = report.verdict.main
    mood = "open" if main.is_open else "good" if main.kind.is_healthy else "bad"
    code = f"\x1b[{_MOODS[mood]}m{main.kind.value}\x1b[0m" if colour else main.kind.value
    ending, so_far = report.metrics.ending, ", so far" if report.metrics.running else ""
    certain = main.confidence_text.replace(" confidence", f" confidence{so_far}", 1)
    first = _ending(ending, width, colour=colour) if not main.is_end else []
    title = f"{code}  {main.label} ({certain})"
    if main.kind is Class.INCONCLUSIVE and report.metrics.running:
        title = NO_VERDICT[:1].upper() + NO_VERDICT[1:]
    verdict, places = [*first, title, *_wrap(main.headline, width)], _places(main, width)
    gain = _wrap(gain_of_finding(main), width)
    advice = [*gain, *_sentences(f"Next: {main.next_step}", width)]
    stopped = main.kind is Class.HANG  # the page also has how the loop spent its time before
    rest = _stacks(report, width) if stopped else _bar(report, width, colour=colour)
    facts = [_whole(_evidence(fact), width) for fact in main.evidence[:3] if not _is_said(fact, main.headline)]
    last = _wrap(printable(f"nodes: {report.metrics.hosts}"), width) if report.metrics.hosts else []
    count, downtime = report.metrics.interruptions
    if count:
        times = "once" if count == 1 else f"{count} times"
        repeated = repeated_work(report.metrics)
        again = f"; {plural(repeated.steps, 'step')} ({duration(repeated.seconds)}) done again" if repeated else ""
        excluded = f"; {duration(downtime)} of downtime excluded" if downtime else ""
        unstored = unstored_attempts(report.metrics)
        moved = "".join(f"; {move}" for move in report.metrics.moves)
        last += _wrap(
            printable(f"interrupted {times} and resumed{unstored and f'; {unstored}'}{excluded}{again}{moved}"), width
        )
    for alarm in (
        report.damage_alarm,
        None if stopped else report.left_out_alarm,
        report.switched_off_alarm,
        None if stopped else report.load_alarm,
        report.profiling_alarm,
        report.metrics.trainings,
        loop_alarm(report),
    ):
        last += _wrap(alarm, width) if alarm else []
    last += _also(other_findings(report), width)
    if report.broken:
        last.append(shorten(printable(f"  {_broken(report.broken)}"), width))
    room = MAX_LINES - len(last)
    if room - len(rest) < len(verdict) + bool(places) + len(gain) + 1:
        rest = []  # the place and the advice come first, and a bar is nothing without its legend
    text = max(room - len(rest), len(verdict))
    places = places[: max(text - len(verdict) - len(advice), 1)]  # the first line names the place
    left = text - len(verdict) - len(places) - len(gain)
    advice = [*gain, *_sentences(f"Next: {main.next_step}", width, max(left, 1))]
    lines = [*_cut([*verdict, *places, *advice], text, width), *rest]
    for fact in facts:
        lines += fact if len(lines) + len(fact) <= room else []
    return readable_processes(report.metrics)("\n".join([*lines[:room], *last]))


def _cut(lines: list[str], room: int, width: int) -> list[str]:
    if len(lines) <= room:
        return lines
    *kept, end = lines[: max(room, 1)]
    return [*kept, f"{end[: width - 2].rstrip()} …"]


def _ending(ending: JobEnd, width: int, *, colour: bool) -> list[str]:
    """Return how the job ended, unless it is complete or still running."""
    if ending.state == RUNNING or not ending.sentence:
        return []
    lines = textwrap.wrap(printable(ending.sentence), width, max_lines=3, placeholder=" …")
    return [f"\x1b[31;1m{line}\x1b[0m" for line in lines] if colour and ending.failed else lines


def _also(findings: Sequence[Finding], width: int) -> list[str]:
    """Return the other findings, each with what its repair gains, in at most two lines."""
    if not findings:
        return []
    gains = [finding.gain and short_gain(finding.gain) for finding in findings]
    each = [
        f"{finding.kind.value} {f'{gain} ' if gain else ''}({finding.confidence})"
        for finding, gain in zip(findings, gains, strict=True)
    ]
    head = "Also, with the gain of a repair" if any(gains) else "Also"
    return textwrap.wrap(
        f"{head}: {', '.join(each)}", width, initial_indent="  ", subsequent_indent="  ", max_lines=2, placeholder=" …"
    )


def _stacks(report: Report, width: int) -> list[str]:
    """Return the stacks of the threads that matter in a training that stopped, each in a line, innermost frame first."""
    if (hang := report.hang) is None:
        return []
    stacks = [stack for stack in hang.stacks() if stack.training or stack.own is not None]
    lines = []
    for stack in stacks[:MAX_STACKS]:
        frames = " < ".join(f"{file.rpartition('/')[2]}:{line} {name}" for file, line, name in stack.frames)
        text = clean(printable(f"    {stack.rank} {stack.thread}: {frames}"))
        lines.append(cut(text, width))
    more = f" ({len(stacks) - MAX_STACKS} more are on the page)" if len(stacks) > MAX_STACKS else ""
    return [f"  Stacks, the innermost frame first{more}:", *lines] if lines else []


def _location(finding: Finding, location: Location) -> str:
    rank = f" on {location.rank}" if location.rank else ""
    function = "" if location.function == MODULE else f" in {shorten(location.function, 40)}"
    return f"{at_line(location)}{function}{rank} \N{EM DASH} {part_of(finding, location)}"


def _places(main: Finding, width: int) -> list[str]:
    """Return the lines of code, the first with its source."""
    lines = []
    for number, location in enumerate(main.where[:MAX_PLACES]):
        lines.append(shorten(printable(f"  {_location(main, location)}"), width))
        if not number and location.source:
            lines.append(cut(printable(f"      {location.source.strip()}"), width))
    return lines


def _evidence(fact: Evidence) -> str:
    limit = f" ({fact.compared})" if fact.compared else ""
    return f"{fact.metric}: {in_unit(fact.value, fact.unit)}{limit}" + (f", {fact.where}" if fact.where else "")


def _broken(broken: Mapping[str, str]) -> str:
    """Return which parts of the report failed, as report.json lists them."""
    (first, why), *others = broken.items()
    return f"Failed and left out: {', '.join([first, *(name for name, _ in others)])} ({why})"


def _wrap(text: str, width: int, most: int = 4) -> list[str]:
    return textwrap.wrap(
        shorten(printable(text), 600),
        width,
        initial_indent="  ",
        subsequent_indent="  ",
        max_lines=most,
        placeholder=" …",
    )


def _sentences(text: str, width: int, most: int = 4) -> list[str]:
    """Return the sentences that fit into some lines; if none does, the clauses of the first one that do."""
    sentences = SENTENCE.split(printable(text))
    for count in range(len(sentences), 0, -1):
        lines = textwrap.wrap(" ".join(sentences[:count]), width, initial_indent="  ", subsequent_indent="  ")
        if len(lines) <= most:
            return lines
    clauses = _CLAUSE.split(sentences[0])
    for count in range(len(clauses) - 1, 1, -1):  # "Next:" alone is none
        lines = _wrap(f"{' '.join(clauses[:count]).rstrip(',;:')} …", width, most + 1)
        if len(lines) <= most:
            return lines
    return _wrap(sentences[0], width, most)


def _is_said(fact: Evidence, headline: str) -> bool:
    """Return whether a headline has the number of a fact."""
    return bool(fact.unit) and in_unit(fact.value, fact.unit) in headline


def _whole(text: str, width: int) -> list[str]:
    """Return a fact in two lines at most: the words at its end are what its number is compared with."""
    return textwrap.wrap(
        shorten(printable(text), 600),
        width,
        initial_indent="  ",
        subsequent_indent="    ",
        max_lines=2,
        placeholder=" …",
    )


def _job_slices(report: Report) -> list[tuple[float, str, str, str]]:
    """Return the parts of a job that starts slowly: share, colour, letter, text."""
    if report.verdict.kind is not Class.INITIALIZATION_BOUND:
        return []
    found = job_parts(report.metrics)
    whole = sum(row.seconds for row in found) or 1.0
    return [
        (row.seconds / whole, row.colour, row.letter, f"{row.label[:1].lower()}{row.label[1:]} {duration(row.seconds)}")
        for row in found
        if row.seconds / whole >= MIN_NAMED
    ]


def _bar(report: Report, width: int, *, colour: bool) -> list[str]:
    """Return where the time of the loop (of the job if it starts slowly) goes: a line of blocks or letters, its legend."""
    slices = _job_slices(report) or [
        (each.share, each.colour, each.letter, f"{each.name} {percent(each.share)}" if each.is_named else "")
        for each in shares(report.ledger, on_device=report.metrics.on_device)
    ]
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
