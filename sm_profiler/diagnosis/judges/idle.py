"""Judge of time in which the job runs but nothing happens: after the loop, or in pauses between its steps."""

from __future__ import annotations

import numpy as np

from sm_profiler.diagnosis import policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.judges.job import start_allowance
from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.diagnosis.model import Evidence, Finding
from sm_profiler.diagnosis.where import lines_of_samples
from sm_profiler.formats.event_names import COMPILE, HANG, LOG, PROFILING, SAVE
from sm_profiler.formatting import duration, percent, plural
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.job_metrics import JobMetrics

Span = tuple[float, float]
BUSY = (SAVE, LOG, COMPILE, PROFILING)  # records of something that happens between steps
MAX_GAPS = 1_000


def judge_idle(context: JudgeContext) -> Finding | None:
    """Find a long idle end of the job, and idle pauses between its steps."""
    metrics = context.metrics
    if metrics.loop is None or metrics.duration <= 0 or HANG in metrics.records:
        return None
    tail, pauses = _tail(metrics, metrics.loop[1]), idle_pauses(metrics)
    paused = sum(end - start for start, end in pauses)
    share = (tail + paused) / metrics.duration
    beyond = (max(tail - start_allowance(metrics), 0.0) + paused) / metrics.duration  # a usual end is in each job
    if beyond < policy.IDLE:
        return None
    where = []
    evidence = [Evidence("idle time of the job", round(share, 4), policy.IDLE, unit="share")]
    if tail:
        where.append(f"{duration(tail)} after the last step")
        evidence.append(Evidence("idle after the last step", round(tail, 2), start_allowance(metrics), unit="s"))
    if pauses:
        where.append(f"{duration(paused)} in {plural(len(pauses), 'pause')} between steps")
        longest = max(end - start for start, end in pauses)
        evidence.append(Evidence("longest idle pause between steps", round(longest, 2), unit="s"))
    cores = _cores(metrics, (metrics.loop[1], metrics.end) if tail >= paused else pauses[0])
    if cores is not None:
        evidence.append(Evidence("CPU cores in use meanwhile", round(cores, 3), policy.IDLE_CORES))
    return Finding(
        Class.IDLE,
        f"The job is idle {percent(share)} of the time: {' and '.join(where)}.",
        tuple(evidence),
        _advice(tail >= paused, running=metrics.running),
        share,
        of="job",
        confidence="high" if beyond >= policy.CLEARLY * policy.IDLE and cores is not None else "medium",
        where=lines_of_samples(
            metrics, lambda one: one.phase == "end" if tail >= paused else one.long and one.phase == "outside"
        ),
    )


def _advice(is_tail: bool, *, running: bool) -> str:  # one of two texts
    if not is_tail:
        return (
            "Stop the instance between experiments (a notebook's kernel keeps it running), or run the script as a job. If the "
            "script itself waits (for a file, a lock, another service, input), remove the wait from the paid time."
        )
    if running:
        return "Stop the job if its work is done; otherwise find what it waits for (py-spy dump --pid PID)."
    return (
        "End the process when training ends: look for threads and child processes that are joined, open connections, a sleep, a "
        "server that is not shut down, or an upload that could run in the background earlier."
    )


def _tail(metrics: JobMetrics, last_step: float) -> float:
    """Return the seconds after the last step if nothing happens in them, beyond a usual end."""
    span = last_step, metrics.end
    length = span[1] - span[0]
    if length <= start_allowance(metrics):
        return 0.0
    used = _gpu(metrics, span)
    if used is not None:
        return length if used < thresholds.SAMPLE_IDLE else 0.0
    return length if _is_idle(metrics, span) else 0.0


def idle_pauses(metrics: JobMetrics) -> list[Span]:
    """Return the long spans between two steps in which no process works."""
    rank = metrics.ranks[0]
    if len(rank.iterations) < thresholds.MIN_STEPS or rank.stalls.period is not None:
        return []
    usual = float(np.median(rank.iterations.length))
    ends = rank.steps.end[:-1] / 1e6
    starts = rank.steps.start[1:] / 1e6 - rank.steps.seconds("wait")[1:]
    gaps = starts - ends
    gaps[np.asarray(rank.attempts.breaks, np.int64) - 1] = 0.0  # downtime between attempts
    if rank.judged is not None:
        ends, starts = rank.judged.pauses
        gaps = starts - ends
    rows = np.flatnonzero(gaps > policy.PAUSE * usual)
    rows = rows[np.argsort(-gaps[rows])][:MAX_GAPS]
    spans = [(float(ends[row]), float(starts[row])) for row in rows]
    return [span for span in spans if not _is_recorded(metrics, span) and _is_idle(metrics, span)]


def _is_recorded(metrics: JobMetrics, span: Span) -> bool:
    """Return whether something is known to have happened in a span: a checkpoint, a compilation, a window."""
    known = 0.0
    for phase in BUSY:
        if phase in metrics.records:
            for one in metrics.records[phase].longest:
                known += max(min(one.end, span[1]) - max(one.start, span[0]), 0.0)
    return known >= policy.PAUSE_KNOWN * (span[1] - span[0])


def _is_idle(metrics: JobMetrics, span: Span) -> bool:
    """Return whether neither a GPU nor a training process works in a span; False if that is not known."""
    used = _gpu(metrics, span)
    if used is not None and used >= thresholds.SAMPLE_IDLE:
        return False
    cores = _cores(metrics, span)
    if cores is not None:
        return cores < policy.IDLE_CORES
    cpu = _within(metrics, "cpu", span)
    if cpu is None:
        return False
    used_cores = cpu / 100 * max(metrics.system.cores.values(), default=1)
    return cpu < thresholds.SAMPLE_IDLE and used_cores < policy.IDLE_MACHINE_CORES


def _cores(metrics: JobMetrics, span: Span) -> float | None:
    """Return the CPU cores that the busiest training process occupies in a span; None if samples cover too little of it."""
    used = [
        cores for usage in metrics.usage.values()
        if usage.covered(*span) >= policy.IDLE_SAMPLED and (cores := usage.cores(*span)) is not None
    ]  # fmt: skip
    return max(used, default=None)


def _gpu(metrics: JobMetrics, span: Span) -> float | None:
    return _within(metrics, "gpu", span)


def _within(metrics: JobMetrics, metric: str, span: Span) -> float | None:
    """Return the mean of a system metric in a span; None without samples in it."""
    means = []
    for data in metrics.system.of(metric).values():
        inside = (data.count > 0) & (data.seconds >= span[0]) & (data.seconds <= span[1])
        if inside.any():
            means.append(float(data.total[inside].sum() / data.count[inside].sum()))
    return float(np.mean(means)) if means else None
