"""The verdict for a terminal: at most fifteen lines."""

from __future__ import annotations

import shutil
import textwrap

from sm_profiler.report.judges.judge_context import duration
from sm_profiler.report.labels import NAMES
from sm_profiler.report.model import Report
from sm_profiler.report.slices import loop_slices
from sm_profiler.report.svg import clean, shorten
from sm_profiler.report.view import shown

MAX_LINES = 15
_CODES = {"bad": "33;1", "good": "32;1", "open": "36;1", "soft": "2", "bold": "1"}
_BLOCKS = {
    "wait": "33",
    "forward": "34",
    "backward": "94",
    "optimizer": "36",
    "between": "90",
    "evaluation": "35",
    "outside": "31",
}
_LETTERS = {
    "wait": "W",
    "forward": "F",
    "backward": "B",
    "optimizer": "O",
    "between": ".",
    "evaluation": "E",
    "outside": "x",
}


def terminal_summary(report: Report, colour: bool = False, *, width: int | None = None) -> str:  # noqa: FBT001, FBT002 - the interface that the rule runner uses
    """Verdict, evidence and next step.

    Args:
        report: what to tell.
        colour: whether the terminal shows colours.
        width: columns; default: the terminal's, at most 100.
    """
    width = max(min(width or shutil.get_terminal_size((100, 24)).columns, 100), 40)

    def paint(words: str, how: str) -> str:
        return f"\x1b[{_CODES[how]}m{words}\x1b[0m" if colour else words

    main = report.verdict.main
    mood = "good" if main.kind.is_healthy else "open" if main.kind.value == "INCONCLUSIVE" else "bad"
    lines = [f"{paint(main.kind.value, mood)}  {NAMES[main.kind]} ({main.confidence} confidence)"]
    lines += _wrap(main.headline, width, 4, "  ")
    bar = _bar(report, width, colour=colour)
    lines += bar
    lines += [
        shorten(f"  {one.metric}: {shown(one, one.value)}" + (f" ({one.held} {shown(one, one.threshold)})" if one.threshold is not None else "")
        + (f", {one.where}" if one.where else ""), width)
        for one in main.evidence[:3]
    ]  # fmt: skip
    interrupted, down = report.facts.interruptions
    if interrupted:
        times = "once" if interrupted == 1 else f"{interrupted} times"
        lines.append(
            shorten(f"  interrupted {times} and taken up again; {duration(down)} in between do not count", width)
        )
    lines += _wrap(f"Next: {main.next_step}", width, 4, "  ")
    others = [finding.kind.value for finding in report.verdict.also if not finding.kind.is_healthy]
    if others:
        lines.append(shorten(f"  Also: {', '.join(others)}", width))
    return "\n".join(clean(line) if not colour else line for line in lines[:MAX_LINES])


def _wrap(words: str, width: int, most: int, indent: str) -> list[str]:
    return textwrap.wrap(
        shorten(words, 600), width, initial_indent=indent, subsequent_indent=indent, max_lines=most, placeholder=" …"
    )


def _bar(report: Report, width: int, *, colour: bool) -> list[str]:
    """Where the loop's time goes, as one line of blocks and its legend."""
    slices = loop_slices(report.facts.ranks)
    if not slices:
        return []
    room, drawn, legend = width - 4, "", []
    for one in slices:
        name, cells = one.key, round(one.share * room)
        if one.is_named:
            label = f"{one.label.lower()} {one.value}"
            legend.append(f"\x1b[{_BLOCKS[name]}m■\x1b[0m {label}" if colour else f"{_LETTERS[name]} {label}")
        drawn += f"\x1b[{_BLOCKS[name]}m{'█' * cells}\x1b[0m" if colour else _LETTERS[name] * cells
    lines, line, used = [f"  {drawn}"], "  ", 2
    for entry in legend:
        size = len(entry) - (9 if colour else 0) + 2
        if used + size > width:
            lines, line, used = [*lines, line.rstrip()], "  ", 2
        line, used = line + entry + "  ", used + size
    return [*lines, line.rstrip()]
