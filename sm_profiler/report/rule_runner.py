"""The rule image's program: the rule runner, with the whole report as its output, on one host or on several."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sm_profiler.container import PROCESSING_RESOURCE_CONFIG, read_resources
from sm_profiler.diagnosis.classes import Class
from sm_profiler.errors import SourceError
from sm_profiler.executors import hosts
from sm_profiler.folding import Slice
from sm_profiler.metrics.scaling.folding import fold_with
from sm_profiler.printable import logger_for
from sm_profiler.report.build import JobInfo, MetricFolds, assemble
from sm_profiler.report.write import write_report
from sm_profiler.rules.runner import Judgement, ReportJob, main
from sm_profiler.rules.settings import Status, log_to_stdout
from sm_profiler.signals import SignalEvent
from sm_profiler.source import ProfileSource

log = logger_for("sm_profiler.rules")


def run_rules_job(words: Sequence[str]) -> int:
    """Run the rule image's program on this host of a processing job, and return the exit code.

    If the job has several hosts, the first one evaluates and the others lend it their processors. One that does not take
    part is named in the status.

    Args:
        words: the command line.
    """
    run = partial(main, words, write_report=write_for_runner, make_folds=make_folds)
    resources = read_resources(path=PROCESSING_RESOURCE_CONFIG)
    if len(resources.hosts) < 2:  # alone
        return run()
    if resources.is_first_node:
        if not hosts.is_possible():
            return run(notes=["Only the first host was used: the image has no Dask."])
        notes: list[str] = []
        with hosts.open_cluster(resources) as cluster:
            return run(spread=partial(_spread, cluster, notes), notes=notes)
    log_to_stdout()
    if hosts.is_possible():
        stop = SignalEvent()
        stop.set_on(signal.SIGTERM)
        hosts.serve(resources, stopped=stop.is_set)
    return 0  # even after an error: SageMaker fails a job if one of its containers fails


def _spread(  # the runner's arguments after ours
    cluster: hosts.HostCluster,
    notes: list[str],
    source: ProfileSource,
    parameters: dict[str, str],
    interval_us: int,
    stopped: Callable[[], bool],
) -> Slice | None:
    """Fold a job with the workers of all hosts; None if the first host must read it alone."""
    try:
        pool = cluster.join(stopped)
        if cluster.missing:
            notes.append(f"Worked without {', '.join(cluster.missing)}, which did not join.")
        return fold_with(source, pool, parameters=parameters, interval_us=interval_us)
    except SourceError as error:
        log.warning("this host reads the profile alone: %s", error)
        notes.append(f"Only the first host was used: {error}.")
        return None


def make_folds() -> list[Any]:
    """Return the report's folds, which the runner feeds along with the rules."""
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
    end = report.metrics.ending
    if end.failed:  # an issue, however fast the job was, as for `report --fail-on issues`
        status = Status.ISSUES
        details = details if end.sentence in details else f"{end.sentence} {details}"
    return Judgement(status, details)
