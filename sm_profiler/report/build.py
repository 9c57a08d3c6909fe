"""Build a report from a profile source in one pass, shared by the rules and the report's own folds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Literal

import attrs
from msgspec.structs import replace

from sm_profiler.diagnosis.damage import Damage, damage_of, doubted, unwritten_sentence
from sm_profiler.diagnosis.ledger import Totals
from sm_profiler.diagnosis.model import DamagedFiles, Finding, Quality, Report, Verdict
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.ledger import totals_of
from sm_profiler.diagnosis.profile.verdict import decide, priced
from sm_profiler.errors import SourceError
from sm_profiler.folding import Slice, error_line, run_folds, run_sliced
from sm_profiler.formatting import plural
from sm_profiler.metrics.job_metrics import JobMetrics, measure_job
from sm_profiler.metrics.metric_folds import JobInfo, MetricFolds, new_folds
from sm_profiler.metrics.scaling import kept
from sm_profiler.metrics.scaling.folding import fold_with
from sm_profiler.metrics.scaling.kept import put_away
from sm_profiler.metrics.step_fold import StepFold
from sm_profiler.metrics.system_fold import SystemFold
from sm_profiler.report.prices import cost_of
from sm_profiler.report.report_json import MAX_BYTES, read_report, stored_end
from sm_profiler.rules import RuleResults
from sm_profiler.source.opening import job_name

__all__ = [
    "JobInfo",
    "MetricFolds",
    "assemble",
    "build_report",
    "data_quality",
    "job_name",
    "report_of",
    "report_without_profile",
]

MAX_QUALITY_ROWS = 200  # files listed in the report; the others are counted
NORMAL_STATES = {"on", "ok", "off", "armed", "done", "ready", "waiting"}  # of a collector; others are reported


def build_report(  # most are optional parts
    source: Any,
    *,
    parameters: Mapping[str, object] | None = None,
    compat: Literal["service"] | None = None,
    job: JobInfo | None = None,
    executor: str | Executor | None = None,
) -> Report:
    """Judge a job.

    Args:
        source: a `sm_profiler.source.ProfileSource`.
        parameters: parameters of the rules: `{"<RuleName>_<parameter>": value}`.
        compat: "service" to compute the rules' results as the managed service did.
        job: name, instance type, prices.
        executor: fold parts of the job in other processes: `local[:N]`, `dask:local[:N]`, `dask:tcp://HOST:PORT`, or an
            executor of `concurrent.futures` whose workers have sm-profiler installed. The report has the same digits.

    Raises:
        ConfigError: the parameters are invalid.
        SourceError: the data cannot be read.
    """
    values, job = parameters or {}, _with_stored_end(source, job or JobInfo())
    may_keep = not values and compat is None
    if may_keep and (report := _of_kept_state(source, job)) is not None:
        return report
    whole = _folded(source, values, compat, executor)
    if may_keep:
        kept.keep(source, whole)
    return report_of_folds(source, whole, job)


def _with_stored_end(source: Any, job: JobInfo) -> JobInfo:
    """Return the job with its end in the report beside the profile, if nothing in the profile shows one."""
    storage = getattr(source, "storage", None)
    if job.stored_end or job.description or storage is None or source.finished or source.run is not None:
        return job
    try:
        return attrs.evolve(job, stored_end=stored_end(read_report(storage.read("report.json", 0, MAX_BYTES + 1))))
    except SourceError:  # there is none, or it is no report
        return job


def _of_kept_state(source: Any, job: JobInfo) -> Report | None:
    """Return the report of the folds that are kept with a profile; None, with all rows to be read, without a usable state."""
    whole = kept.load(source)
    if whole is None:
        return None
    with suppress(Exception):  # the rows are read then
        report = report_of_folds(source, whole, job)
        if not report.broken:
            return report
    source.rewind()
    return None


def _folded(
    source: Any, parameters: Mapping[str, object], compat: Literal["service"] | None, executor: str | Executor | None
) -> Slice:
    """Fold a job: hour by hour, in this process or in an executor's; in one piece if the rules cannot be merged."""
    folds = new_folds(parameters, compat)
    interval_us = folds[0].parameters.scan_interval_us
    if compat is not None:
        return Slice(folds, run_folds(source, folds, interval_us=interval_us))
    if executor:
        whole = fold_with(source, executor, parameters=parameters, interval_us=interval_us)
        if whole is not None:
            return whole
    return run_sliced(source, lambda: new_folds(parameters), interval_us=interval_us, put_away=put_away)


def report_of_folds(source: Any, whole: Slice, job: JobInfo, *, windows: bool = True) -> Report:
    """Return the report of a whole job's folds, the rules' first; `windows` as for `assemble`."""
    rules, *folds = whole.folds
    results = rules.results()
    for index, line in whole.broken.items():
        results.broken[type(whole.folds[index]).__name__] = line
    return assemble(source, results, MetricFolds.of(folds), job, windows=windows)


def assemble(
    source: Any, results: RuleResults, folds: MetricFolds, job: JobInfo | None = None, *, windows: bool = True
) -> Report:
    """Return a report from the rule results and folds of the same windows, for callers that drive the engine.

    Args:
        source: a `sm_profiler.source.ProfileSource`.
        results: results of the rules.
        folds: the report's own folds.
        job: what the profile does not contain.
        windows: read the raw traces of detailed windows, too.
    """
    job = job or JobInfo()
    broken = dict(results.broken)
    metrics, rules = folds.metrics(source, job, broken), results.as_dict()
    case = Case(metrics, rules)
    quality, verdict = quality_of(source, metrics.metadata), decide(case, broken)
    if (damage := quality.damage) and not metrics.running:  # files of a running job may still be on their way
        verdict = doubted(verdict, damage.doubt)
    report = report_of(
        metrics,
        verdict,
        rules,
        broken=broken,
        quality=quality,
        job=job,
        source=getattr(source, "origin", source.uri),
        ledger=case.totals,
    )
    return _with_windows(report, source) if windows else report


def _with_windows(report: Report, source: Any) -> Report:
    """Return a report with what the raw traces of the detailed windows show of the GPUs."""
    if not source.files.detailed:
        return report
    from sm_profiler.report.trace_windows import add_windows  # few profiles have such traces

    try:
        return add_windows(report, source)
    except Exception as error:  # the rest of the report does not depend on it
        return attrs.evolve(report, broken={**report.broken, "detailed windows": error_line(error)})


def report_of(  # most are optional parts
    metrics: JobMetrics,
    verdict: Verdict,
    rules: dict[str, dict[str, Any]],
    *,
    broken: dict[str, str] | None = None,
    quality: Quality | None = None,
    job: JobInfo | None = None,
    source: str = "",
    ledger: Totals | None = None,
) -> Report:
    """Return a report from its parts; without its ledger, that follows from the metrics."""
    cost = cost_of(metrics, verdict, (job or JobInfo()).prices)
    verdict = priced(verdict, cost.per_hour if cost else None)
    if cost and cost.price_estimated:
        verdict = attrs.evolve(verdict, main=_roughly(verdict.main), also=tuple(map(_roughly, verdict.also)))
    quality = quality or data_quality([], ())
    if any(rank.judged is not None for rank in metrics.ranks):
        quality = replace(quality, collectors=(*quality.collectors, sampled_sentence(metrics)))
    generated = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    ledger = totals_of(metrics) if ledger is None else ledger
    return Report(
        metrics,
        verdict,
        rules,
        broken or {},
        quality,
        cost,
        source,
        generated,
        ledger=ledger if ledger and ledger.ranks else None,
    )


def report_without_profile(
    name: str, verdict: Verdict, files: Sequence[Any], job: JobInfo, source: str, **more: Any
) -> Report:
    """Return a report on data that another tool recorded.

    Args:
        name: of the job, unless `job` has one.
        verdict: the verdict.
        files: outcomes of files.
        job: name and prices.
        source: where the data is.
        more: further attributes of the report.
    """
    metrics = measure_job(StepFold().result(), SystemFold().result(), name=job.name or name, running=False)
    report = report_of(metrics, verdict, {}, quality=data_quality(files, ()), job=job, source=source)
    return attrs.evolve(report, verdict=verdict, **more)  # no prices: seconds of a recording are not those of the job


def _roughly(finding: Finding) -> Finding:
    """Return a finding whose dollars are marked as those of an estimated price."""
    return replace(finding, gain=finding.gain and replace(finding.gain, usd_is_rough=True))


def sampled_sentence(metrics: JobMetrics) -> str:
    """Return the sentence about a job with so many steps that some are judged for all."""
    judged, steps = sum(len(rank.steps) for rank in metrics.ranks), sum(rank.all_steps for rank in metrics.ranks)
    return (
        f"medians, percentiles and periods of steps are those of {judged:,} of {steps:,} steps; sums are of all steps"
    )


def quality_of(source: Any, metadata: Sequence[Mapping[str, Any]]) -> Quality:
    """Return what of a source could not be read."""
    if hasattr(source, "faults"):
        faults, read = source.faults()
        return data_quality(faults, metadata, read=read)
    return data_quality(source.quality(), metadata)


def data_quality(files: Sequence[Any], metadata: Sequence[Mapping[str, Any]], *, read: int = 0) -> Quality:
    """Return the quality of the data: files read and repaired, records lost, states of collectors.

    Args:
        files: outcomes of files.
        metadata: records with the states of collectors.
        read: number of further files, which were read completely.
    """
    states = Counter(file.status for file in files)
    if read:
        states["read"] += read
    lost = sum(file.lost for file in files)
    bad = sorted(
        (file for file in files if file.status != "read" or file.lost), key=lambda file: (-file.lost, file.path)
    )
    total = len(files) + read
    if not total:
        sentence = "No files were read for this report."
    elif not bad:
        sentence = f"{plural(total, 'file')}, all read completely; no records were lost."
    else:
        sentence = (
            f"{plural(total, 'file')}: {states['read']:,} read as they are, {states['repaired']:,} repaired, "
            f"{states['refused']:,} not usable; {plural(lost, 'record')} lost."
        )
    return Quality(
        sentence=sentence,
        files=total,
        states=dict(sorted(states.items())),
        lost=lost,
        rows=tuple(bad[:MAX_QUALITY_ROWS]),
        damage=_damage(damage_of(bad, total), metadata),
        more=max(len(bad) - MAX_QUALITY_ROWS, 0),
        collectors=_collectors(metadata),
    )


def _damage(files: Damage, metadata: Sequence[Mapping[str, Any]]) -> DamagedFiles | None:
    unwritten = unwritten_sentence(metadata)
    if not (files.paths or unwritten):
        return None
    doubt = files.doubt if files.paths else "events could not be written"
    return DamagedFiles(len(files.paths), f"{unwritten} {files.sentence}".strip(), doubt)


def _collectors(metadata: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return one line for each unusual state of a collector, with the number of processes."""
    lines: Counter[str] = Counter()
    seen = set()
    for record in metadata:
        states = record.get("collectors")
        process = record.get("rank"), record.get("pid"), record.get("host")
        for name, state in states.items() if isinstance(states, Mapping) else ():
            if (process, name, str(state)) in seen or str(state) in NORMAL_STATES:
                continue
            seen.add((process, name, str(state)))
            lines[f"{name}: {state}"] += 1
    latest: dict[Any, dict[str, Any]] = {}
    for item in metadata:
        latest.setdefault((item.get("rank"), item.get("pid"), item.get("host")), {}).update(item)
    for entry in latest.values():
        if entry.get("phases_every", 1) not in (1, None):
            lines[
                f"phases were sampled at one of {entry['phases_every']} steps to stay within the overhead budget"
            ] += 1
        if entry.get("dropped"):
            lines[f"{entry['dropped']:,} events were not recorded: the disk was too slow, or failed"] += 1
        if entry.get("left_out"):
            lines[f"{entry['left_out']:,} events of the script were left out: their arguments cannot be recorded"] += 1
        if entry.get("events_cut"):
            lines[f"{entry['events_cut']:,} events of the script had too long names or arguments, which were cut"] += 1
        if entry.get("phases_elsewhere"):
            elsewhere = f"{plural(entry['phases_elsewhere'], 'phase')} ran on other threads than the training's"
            lines[f"{elsewhere}: they are in timelines, and no part of the loop"] += 1
        if entry.get("clock_error_us"):
            lines[f"clocks agree within {float(entry['clock_error_us']) / 1e3:.3g} ms"] += 1
    return tuple(line + (f" ({count} processes)" if count > 1 else "") for line, count in sorted(lines.items()))
