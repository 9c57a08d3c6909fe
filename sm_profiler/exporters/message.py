"""A finding as a message: a title, a few lines and the data behind them; and long series, shortened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
from msgspec.structs import replace

from sm_profiler.formats.columns import Floats, Ints
from sm_profiler.printable import printable
from sm_profiler.render.gain_text import gain_of_finding
from sm_profiler.render.terminal import OF_ENDS
from sm_profiler.report import Report
from sm_profiler.report.report_json import SCHEMA_VERSION, end_of, plain

MAX_NAME = 200
MAX_LINE = 600
MAX_ALSO = 10


@attrs.frozen
class Message:
    """The part of a report that is sent.

    Attributes:
        title: the job and its verdict.
        lines: end of the job, headline, line of code, gain, next step, location of the profile.
        detail: the same as data, in the words of report.json.
    """

    title: str
    lines: tuple[str, ...]
    detail: dict[str, Any]

    @property
    def text(self) -> str:
        """The message as plain text."""
        return "\n".join((self.title, *self.lines))


def place_of(report: Report) -> str:
    """Return where a job's data is, the same however its folder was named."""
    source = report.source
    return str(Path(source).resolve()) if source and "://" not in source else source


def message_of(report: Report) -> Message:
    """Return a report's verdict as a message."""
    main, name = report.verdict.main, printable(report.metrics.name)[:MAX_NAME]
    place = main.where[0] if main.where else None
    ending = report.metrics.ending
    lines = [
        "" if main.kind in OF_ENDS else ending.sentence,
        main.headline,
        f"Where: {place.file}:{place.line} {place.function}" if place else "",
        gain_of_finding(main),
        main.next_step,
        f"Report: {printable(report.link)}" if report.link else "",
        f"Profile: {place_of(report)}" if report.source else "",
    ]
    detail = {
        "schema_version": SCHEMA_VERSION,
        "job": name,
        "source": printable(report.source),
        "report": printable(report.link),
        "generated": report.generated,
        "end": end_of(ending),
        "verdict": replace(main, evidence=main.evidence[:MAX_ALSO]),
        "also": [
            {"class": finding.kind.value, "headline": finding.headline, "share_of_time": finding.share_of_time}
            for finding in report.verdict.also[:MAX_ALSO]
        ],
    }
    return Message(
        f"{name}: {main.label} ({main.confidence} confidence{', so far' if report.metrics.running else ''})",
        tuple(printable(line)[:MAX_LINE] for line in lines if line),
        plain(detail),
    )


def group_length(count: int, points: int) -> int:
    """Return how many values become one, so that at most `points` are left."""
    return max(-(-count // max(points, 1)), 1)


def group_means(values: Floats, points: int) -> tuple[Ints, Floats]:
    """Return the means of equal groups of values, the last of what is left, and the index of each group's first value.

    Args:
        values: the series; shape (n,).
        points: the most groups.
    """
    starts = np.arange(0, len(values), group_length(len(values), points))
    if not len(starts):
        return starts, np.zeros(0)
    return starts, np.add.reduceat(values, starts) / np.diff(np.append(starts, len(values)))
