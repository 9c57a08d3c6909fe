"""Words that the page, the terminal and messages share: what a repair gains, and the names of processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from msgspec.structs import replace

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.model import Finding, Gain, Interval
from sm_profiler.formatting import duration, percent
from sm_profiler.metrics.attempts import process_name
from sm_profiler.metrics.job_metrics import JobMetrics

AnyFinding = TypeVar("AnyFinding", bound=Finding)
CLEAR_FACTOR = 1.1  # smaller speedups are worded as a share of the time
CENT = 0.01
WIDE = 10.0  # times its low end, from which on the high end of a range is left out
_MOST = 0.999 / (1 - limits.MOST_SAVED)


def gain_of_finding(finding: Finding) -> str:
    """Return what the repair of a finding saves; empty if that is unknown or nothing."""
    if finding.larger_batch:
        return gain_sentence(
            finding.gain, subject=f"A batch {limits.BATCH_LARGER:g} times as large", per=" for each sample"
        )
    return gain_sentence(finding.gain)


def gain_sentence(gain: Gain | None, *, subject: str = "Repairing it", per: str = "") -> str:
    """Return what a repair saves; empty if that is unknown or nothing."""
    if gain is None or gain.speedup.high <= 1.0:
        return ""
    money = f", saves about {dollars(gain.usd.value)}" if gain.usd and gain.usd.value >= CENT else ""
    money += " at an estimated price" if money and gain.usd_is_rough else ""
    if gain.of == "job":
        seconds = _range(duration(gain.seconds.low), duration(gain.seconds.high))
        return f"{subject} saves {seconds} of the job{money.replace(', saves', ',')}."
    if gain.of == "steps":
        return f"{subject} makes these steps {factors(gain.speedup)} times as fast{money}."
    if gain.speedup.value < CLEAR_FACTOR:
        share = gain.share_of_loop
        return f"{subject} saves {_range(percent(share.low), percent(share.high))} of the loop{money.replace(', saves', ',')}."
    return f"{subject} makes the loop {factors(gain.speedup)} times as fast{per}{money}."


def factors(speedup: Interval) -> str:
    """Format a range of speedups: `1.6 to 1.8`, `more than 4.9`."""
    if speedup.high >= _MOST or speedup.high > WIDE * speedup.low:  # a cap, or a range of all sizes: no estimate
        return f"more than {speedup.low:.1f}"
    digits = 0 if speedup.low >= 10 else 1 if speedup.high - speedup.low >= 0.15 else 2  # digits shown
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


_PLAIN = re.compile(r"[\w.-]{1,63}")


def process_labels(metrics: JobMetrics) -> dict[str, str]:
    """Return what texts for people call the processes of a job on one node: `algo-1-0` → `rank 0`."""
    labels = {}
    if len(metrics.nodes) == 1 and _PLAIN.fullmatch(metrics.nodes[0]):
        for one in metrics.metadata:
            name, rank, pid = process_name(one), one.get("rank"), one.get("pid")
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
