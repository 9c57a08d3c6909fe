"""The report on a folder of traces."""

from __future__ import annotations

import os
from collections.abc import Sequence

import attrs
import numpy as np

from sm_profiler.analysis.gpu.callers import operators_alone
from sm_profiler.analysis.gpu.gpu_traces import GpuTraces
from sm_profiler.diagnosis import policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.gpu_judge import decide_traces
from sm_profiler.diagnosis.model import Evidence, Finding, Report, Verdict
from sm_profiler.formatting import percent
from sm_profiler.metrics.gpu.measure import RankTime, measure
from sm_profiler.metrics.gpu.tables import describe
from sm_profiler.metrics.job_metrics import measure_job
from sm_profiler.metrics.step_fold import StepFold
from sm_profiler.metrics.system_fold import SystemFold
from sm_profiler.report.build import JobInfo, data_quality, job_name, report_of
from sm_profiler.source import FileQuality


def report_traces(source: str | os.PathLike[str], job: JobInfo | None = None) -> Report:
    """Judge traces of torch.profiler.

    Args:
        source: a file, a folder or an s3:// prefix of Kineto traces.
        job: name and prices.

    Raises:
        SourceError: there are no traces, or they cannot be read.
    """
    job = job or JobInfo()
    gpu = GpuTraces(source)
    ranks = measure(gpu)
    metrics = measure_job(
        StepFold().result(), SystemFold().result(), name=job.name or job_name(os.fspath(source)), running=False
    )  # fmt: skip
    verdict = verdict_on(gpu, ranks)
    files = [FileQuality(file.key, file.outcome.status, file.outcome.lost, file.outcome.reason) for file in gpu.files]
    report = report_of(metrics, verdict, {}, quality=data_quality(files, ()), job=job, source=os.fspath(source))
    return attrs.evolve(report, verdict=verdict, gpu_traces=tuple(describe(gpu, rank) for rank in ranks))


def verdict_on(gpu: GpuTraces, ranks: Sequence[RankTime]) -> Verdict:
    """Return the verdict on traces that were measured; an inconclusive one if they hold too little."""
    kernels = min((int(trace.events.on_device.sum()) for trace in gpu.ranks.values()), default=0)
    return decide_traces(ranks, gpu) if kernels >= policy.TRACE_KERNELS else Verdict(_too_few(gpu, kernels))


def _on_host(gpu: GpuTraces) -> tuple[Evidence, ...]:
    """Return which operators take most of the host's time, inner operators apart."""
    spent: dict[str, float] = {}
    for trace in gpu.ranks.values():
        rows, alone = operators_alone(trace.events)
        names = trace.events.name
        sums = np.bincount(names.codes[rows], alone[rows], len(names.values))
        for code in np.flatnonzero(sums):
            spent[names.values[code]] = spent.get(names.values[code], 0.0) + float(sums[code])
    whole = sum(spent.values())
    most = sorted(spent, key=lambda name: -spent[name])[:3]
    shown = ", ".join(f"{name[:80]} {percent(spent[name] / whole)}" for name in most)
    return (Evidence("the host's operators", shown),) if shown else ()


def _too_few(gpu: GpuTraces, kernels: int) -> Finding:
    events = sum(len(trace.events) for trace in gpu.ranks.values())
    text = f"Too few kernels to judge: {kernels} recorded, {policy.TRACE_KERNELS:.0f} needed."
    if not kernels:
        text = "The traces hold no kernel: nothing ran on a GPU while they were recorded."
    return Finding(
        Class.INCONCLUSIVE,
        text,
        (
            Evidence("kernels and copies", kernels, policy.TRACE_KERNELS, held="judged from"),
            Evidence("all events", events),
            *_on_host(gpu),
        ),
        "Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] while the model trains; or profile the script "
        "with 'sm-profiler run', which judges training on the CPU, too.",
        0.0,
        confidence="low",
    )
