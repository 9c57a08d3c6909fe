"""The report as output of the rule runner: `main(words, write_report=write_for_runner, make_folds=make_folds)`."""

from __future__ import annotations

from typing import Any

from sm_profiler.report.build import JobInfo, MetricFolds, assemble
from sm_profiler.report.classes import Class
from sm_profiler.report.write import write_report
from sm_profiler.rules.runner import Judgement, ReportJob
from sm_profiler.rules.settings import Status


def make_folds() -> list[Any]:
    """Return the report's folds, which the runner feeds beside the rules."""
    return MetricFolds().all()


def write_for_runner(job: ReportJob) -> Judgement:
    """Write the whole report from the runner's data so far; return its verdict."""
    report = assemble(
        job.source,
        job.results,
        MetricFolds.of(job.folds),
        JobInfo(name=job.job or None, finished=True if job.finished else None),
    )
    write_report(report, job.folder)
    main = report.verdict.main
    undecided = main.kind is Class.INCONCLUSIVE or main.confidence == "low"  # then the rules decide
    status = None if undecided else Status.NO_ISSUES if main.kind.is_healthy else Status.ISSUES
    details = f"{main.kind.value} ({main.confidence} confidence): {main.headline}"
    return Judgement(status, details)
