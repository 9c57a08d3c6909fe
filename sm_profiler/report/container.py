"""The report as the rule runner's writer: `main(words, write_report=write_for_runner, make_folds=make_folds)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sm_profiler.report.build import FactFolds, JobInfo, assemble
from sm_profiler.report.memory_fold import MemoryFold
from sm_profiler.report.step_fold import StepFold
from sm_profiler.report.system_fold import SystemFold
from sm_profiler.report.write import write_report
from sm_profiler.rules.runner import ReportJob


def make_folds() -> list[Any]:
    """The folds to feed beside the rules."""
    return FactFolds().all()


def write_for_runner(job: ReportJob) -> list[str]:
    """Write the whole report from what the runner's pass has seen so far; returns the keys written."""
    report = assemble(
        job.source,
        job.results,
        _sorted(job.folds),
        JobInfo(name=job.job or None, finished=True if job.finished else None),
    )
    return write_report(report, job.folder)


def _sorted(folds: Sequence[Any]) -> FactFolds:
    found = {type(fold): fold for fold in folds}
    return FactFolds(found[StepFold], found[SystemFold], found[MemoryFold])
