"""Reasons that a job has no steps, and what to do for them in the next one."""

from __future__ import annotations

from sm_profiler.metrics.job_metrics import JobMetrics
from sm_profiler.source.job import Launched


def why_no_steps(metrics: JobMetrics) -> tuple[str, str]:
    """Return why a job without steps has none, "" if that is unknown, and what to do."""
    if metrics.description:
        return Launched.of(metrics.description).why_no_steps()
    return "", (
        "Record steps and phases: start the script with 'sm-profiler run', or set SM_PROFILER_AUTO=1 in the container, with "
        "ProfilingParameters in the configuration. If that was so, no process made a step that is known: a process that only "
        "imports a framework makes none, and other loops mark each step with get_hook().step()."
    )


def how_to_record(metrics: JobMetrics) -> str:
    """Return what to do in a few words."""
    if metrics.description:
        return why_no_steps(metrics)[1]
    if metrics.ending.launched:
        return "no process made a training step."
    return "start the script with 'sm-profiler run', or set SM_PROFILER_AUTO=1; if it was set, no process made a step."
