"""The report on a table of times, and the verdict of the diagnosis as a report shows it."""

from __future__ import annotations

import os
from collections.abc import Mapping

import attrs
from msgspec.structs import replace

from sm_profiler import diagnosis
from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.model import DamagedFiles, Evidence, Finding, Gain, Interval, Report, Verdict
from sm_profiler.formatting import plural
from sm_profiler.report.build import JobInfo, report_without_profile
from sm_profiler.source import FileQuality

NOTHING_FOUND = "No cause found"


def report_table(
    source: str | os.PathLike[str], job: JobInfo | None = None, columns: Mapping[str, str] | None = None
) -> Report:
    """Judge a table of times that another tool recorded, or an MLPerf log.

    Args:
        source: a CSV, Parquet or JSON lines file, or a log of mllog; a path or an s3:// URI.
        job: name and prices.
        columns: `rank`, `step`, `seconds`, `start`, `end`, `operation`, `stage` or `microbatch` → its name in the table.

    Raises:
        SourceError: the file cannot be read, or misses a column.
    """
    where = os.fspath(source)
    table = diagnosis.read_table(where, columns)
    found = diagnosis.diagnose(table.ledger)
    verdict = Verdict(_main(found, table), tuple(finding_of(finding, found) for finding in found.findings[1:]))
    name, files = where.rstrip("/").rpartition("/")[2], [FileQuality(where, "read", table.lost, table.why)]
    report = report_without_profile(name, verdict, files, job or JobInfo(), where, ledger=table.ledger.totals)
    if not table.lost:
        return report
    text = f"{table.lost:,} of {plural(table.rows + table.lost, 'row')} {'is' if table.lost == 1 else 'are'} left out: {table.why}."
    damage = DamagedFiles(1, text, f"{plural(table.lost, 'row')} could not be used")
    return attrs.evolve(report, quality=replace(report.quality, damage=damage))


def finding_of(found: diagnosis.Finding, verdict: diagnosis.Verdict) -> Finding:
    """Return a finding of the diagnosis as reports show it."""
    saved = found.gain
    evidence = tuple(
        Evidence(fact.metric, round(fact.value, 4) if isinstance(fact.value, float) else fact.value, fact.usual, fact.where and _rank(fact.where), fact.unit, "usually")
        for fact in found.facts
    )  # fmt: skip
    total = verdict.step_s * verdict.steps
    scale = found.seconds / (saved.value * total) if saved.value * total > 0 else 0.0  # below 1 for a part of the steps

    def times(amount: float) -> Interval:
        return Interval(*(share * scale * amount for share in (saved.low, saved.value, saved.high)))

    gain = Gain(
        times(verdict.step_s), times(1.0), Interval(*(1 / (1 - share) for share in (saved.low, saved.value, saved.high))),
        seconds=times(total), of="loop" if found.steps is None else "steps",
    )  # fmt: skip
    return Finding(
        Class[found.kind], found.headline, evidence, found.advice, saved.value * scale,
        confidence=found.confidence, gain=gain, ranks=found.ranks, stage=found.stage,
    )  # fmt: skip


def _rank(where: str) -> str:
    return f"rank {where}" if where.isdigit() else where


def _main(found: diagnosis.Verdict, table: diagnosis.Table) -> Finding:
    ledger = table.ledger
    evidence = [Evidence("steps that all ranks have", found.steps, limits.MIN_STEPS, held="judged from")]
    if found.step_s:
        evidence.append(Evidence("mean step of the job", round(found.step_s, 6), unit="s"))
    if len(ledger.ranks) > 1 and found.even > 1:
        evidence.insert(
            0,
            Evidence("speedup if all ranks, stages and microbatches took the average time", f"{found.even:.2f} times"),
        )
    if ledger.before:
        evidence.append(Evidence("time before the first step", round(ledger.before, 3), unit="s"))
    if found.findings:
        main = finding_of(found.findings[0], found)
        return replace(main, evidence=(*main.evidence, *evidence))
    if found.steps < limits.MIN_STEPS:
        return Finding(
            Class.INCONCLUSIVE,
            found.reason,
            tuple(evidence),
            "Record more steps, the same ones on every rank.",
            0.0,
            confidence="low",
        )
    advice = "Nothing needs repair. To go faster, try lower precision, a larger batch, or faster hardware."
    if not found.healthy:
        advice = (
            "Add a column operation, with a row for each part of the step, to see where its time goes; or profile the training with "
            "'sm-profiler run'."
        )
    return Finding(
        Class.BALANCED, found.reason, tuple(evidence), advice, 0.0, confidence="medium" if found.healthy else "low",
        label=Class.BALANCED.label if found.healthy else NOTHING_FOUND,
    )  # fmt: skip
