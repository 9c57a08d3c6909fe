"""A comparison as Markdown, for the summary of a CI run or a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import attrs

from sm_profiler.formatting import shorten
from sm_profiler.printable import printable

MARKER = "<!-- sm-profiler compare -->"
_LONGEST_NAME = 70
# Characters that mean something in Markdown or HTML; a backslash before any of them is not shown.
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+!|~&@:])")


@attrs.frozen
class Summary:
    """Content of the Markdown.

    Attributes:
        sentence: what changed.
        lines: further sentences.
        runs: moment, name, verdict and steps of each run.
        tables: head and rows of each table.
    """

    sentence: str
    lines: tuple[str, ...]
    runs: tuple[tuple[str, str, str, str], ...]
    tables: tuple[tuple[Sequence[str], Sequence[Sequence[str]]], ...]


def to_markdown(summary: Summary, failure: str = "") -> str:
    """Return the summary as GitHub-flavoured Markdown.

    The first line is a comment, by which a CI job finds the message that it posted before. Names come from a profile
    and are escaped, so that they can neither format, link nor mention.

    Args:
        summary: the content.
        failure: the limit that the second run exceeds; "" if it holds.
    """
    title = f"**Failed: {escape(failure)}.** " if failure else ""
    lines = [MARKER, "### sm-profiler", "", title + escape(summary.sentence), ""]
    lines += [f"- {escape(line)}" for line in summary.lines]
    lines += [""] if summary.lines else []
    lines += _table(("", "run", "verdict", "steps"), summary.runs)
    for head, rows in summary.tables:
        lines += ["", *_table(head, rows)] if rows else []
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", shorten(printable(text), 400))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(head) - 1)]
    lines = [f"| {' | '.join(map(escape, head))} |", f"| {' | '.join(rule)} |"]
    return lines + [f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows]


def runs_of(
    names: Sequence[str], verdicts: Sequence[str], steps: Sequence[int]
) -> tuple[tuple[str, str, str, str], ...]:
    """Return the rows of the two runs."""
    moments = ("before", "after")
    return tuple(
        (moment, shorten(name, _LONGEST_NAME), verdict, f"{count:,}")
        for moment, name, verdict, count in zip(moments, names, verdicts, steps, strict=True)
    )
