"""Words that the page, the terminal and messages share: what a repair gains, names of processes, a comparison in Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import attrs
from msgspec.structs import replace

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.model import Finding, Gain, Interval, Report
from sm_profiler.formatting import duration, percent, shorten
from sm_profiler.metrics.attempts import process_name
from sm_profiler.metrics.job_metrics import JobMetrics
from sm_profiler.printable import printable

AnyFinding = TypeVar("AnyFinding", bound=Finding)
CLEAR_FACTOR = 1.1  # smaller speedups are worded as a share of the time
CENT = 0.01
WIDE = 10.0  # times its low end, from which on the high end of a range is left out
_MOST = 0.999 / (1 - limits.MOST_SAVED)

_TIME = ("of the loop", "of the job")  # ends of gains that are a saved time, not a factor
_PLAIN = re.compile(r"[\w.-]{1,63}")

MARKER = "<!-- sm-profiler compare -->"
_LONGEST_NAME = 70
# Characters that mean something in Markdown or HTML; a backslash before any of them is not shown.
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+!|~&@:])")


def loop_alarm(report: Report) -> str:
    """Return that the loop was not recorded, and why; "" if it was, or if that is the verdict."""
    if report.metrics.ranks or report.gpu_traces or report.verdict.main.is_open:
        return ""
    return "".join(
        f"Not judged: {what}: {why}" for what, why in report.verdict.not_judged if what == "the training loop"
    )


def other_findings(report: Report) -> tuple[Finding, ...]:
    """Return the findings beside the verdict's; none beside a hang, which their times ended before."""
    return () if report.verdict.kind is Class.HANG else tuple(report.verdict.also)


def gain_of_finding(finding: Finding) -> str:
    """Return what the repair of a finding saves; empty if that is unknown or nothing."""
    if finding.larger_batch:
        return gain_sentence(
            finding.gain, subject=f"A batch {limits.BATCH_LARGER:g} times as large", per=" for each sample"
        )
    return gain_sentence(finding.gain, lost=finding.share_of_time)


def gain_sentence(gain: Gain | None, *, subject: str = "Repairing it", per: str = "", lost: float = 1.0) -> str:
    """Return what a repair saves; empty if that is unknown or nothing.

    Args:
        gain: the gain.
        subject: what saves it.
        per: what the speedup is for.
        lost: part of the time that is lost; a speedup beyond it is explained.
    """
    if gain is None or gain.speedup.high <= 1.0:
        return ""
    short = short_gain(gain)
    saves = "saves" if short.endswith(_TIME) else "makes the loop" if gain.of == "loop" else "makes"
    money = (
        f"{',' if saves == 'saves' else ', saves'} about {dollars(gain.usd.value)}"
        if gain.usd and gain.usd.value >= CENT
        else ""
    )
    money += " at an estimated price" if money and gain.usd_is_rough else ""
    if saves != "makes the loop":
        return f"{subject} {saves} {short}{money}."
    # the ends that are shown: a rounding is no reason to explain anything
    beyond = 0 < lost < 1 and round(gain.speedup.high, 1) > round(1 / (1 - lost), 1)
    chance = "; two runs also differ by chance" if beyond and not short.startswith("more") else ""
    return f"{subject} {saves} {short}{per}{money}{chance}."


def short_gain(gain: Gain) -> str:
    """Return a gain without a sentence: `1.2 to 2.3 times as fast`, `3 to 5 % of the loop`; empty if it is nothing."""
    if gain.speedup.high <= 1.0:
        return ""
    if gain.of == "job":
        return f"{_range(duration(gain.seconds.low), duration(gain.seconds.high))} of the job"
    if gain.of == "steps":
        return f"these steps {factors(gain.speedup)} times as fast"
    if gain.speedup.value < CLEAR_FACTOR:
        return f"{_range(percent(gain.share_of_loop.low), percent(gain.share_of_loop.high))} of the loop"
    return f"{factors(gain.speedup)} times as fast"


def factors(speedup: Interval) -> str:
    """Format a range of speedups: `1.6 to 1.8`, `more than 4.9`, `up to 1.3`."""
    if speedup.high >= _MOST or speedup.high > WIDE * speedup.low:  # a cap, or a range of all sizes: no estimate
        return f"more than {speedup.low:.1f}"
    digits = 0 if speedup.low >= 10 else 1 if speedup.high - speedup.low >= 0.15 else 2  # digits shown
    if digits == 1 and not round(speedup.low, 1) <= round(speedup.value, 2) <= round(speedup.high, 1):
        digits = 2  # rounded to one, the range would leave out the estimate
    if round(speedup.low, digits) <= 1 < speedup.high:
        return f"up to {speedup.high:.{digits}f}"
    return _range(f"{speedup.low:.{digits}f}", f"{speedup.high:.{digits}f}")


def dollars(amount: float) -> str:
    """Format dollars: `$210`, `$2.10`."""
    return f"${amount:,.0f}" if amount >= 10 else f"${amount:.2f}"  # digits shown


def _range(low: str, high: str) -> str:
    """Join the ends of a range; a unit that both have is written once."""
    if low == high:
        return low
    first, _, unit = low.partition(" ")
    return f"{first if unit == high.partition(' ')[2] else low} to {high}"


def process_labels(metrics: JobMetrics) -> dict[str, str]:
    """Return what texts for people call the processes of a job on one node: `algo-1-0` → `rank 0`."""
    labels = {}
    if len(metrics.nodes) == 1 and _PLAIN.fullmatch(metrics.nodes[0]):
        for record in metrics.metadata:
            name, rank, pid = process_name(record), record.get("rank"), record.get("pid")
            if name == f"{metrics.nodes[0]}-{pid if rank is None else rank}":
                labels[name] = f"process {pid}" if rank is None else f"rank {rank}"
    return labels


def readable_processes(metrics: JobMetrics) -> Callable[[str], str]:
    """Return a function that renames the processes in a text; files and report.json keep the names `algo-1-0`."""
    return with_labels(process_labels(metrics))


def with_labels(labels: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that replaces the names of processes in a text by their labels."""
    if not labels:
        return lambda text: text
    each = "|".join(sorted(map(re.escape, labels), key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w./-])(?:([Rr]ank|[Pp]rocess) )?({each})(?![\w/-])")

    def readable(found: re.Match[str]) -> str:
        kind, label = found[1] or "", labels[found[2]]  # a text may already name it a rank
        return f"{label[0].upper()}{label[1:]}" if kind[:1].isupper() else label

    return lambda text: pattern.sub(readable, text)


def readable_finding(finding: AnyFinding, renamed: Callable[[str], str]) -> AnyFinding:
    """Return a finding with the labels of processes in its sentences."""
    return replace(finding, headline=renamed(finding.headline), next_step=renamed(finding.next_step))


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
    moments = ("before", "after")
    return tuple(
        (moment, shorten(name, _LONGEST_NAME), verdict, f"{count:,}")
        for moment, name, verdict, count in zip(moments, names, verdicts, steps, strict=True)
    )
