"""Verdicts on profiles that hold too little to judge, and what could not be judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.damage import disk_failure
from sm_profiler.diagnosis.model import Evidence, Finding
from sm_profiler.diagnosis.profile.case import NO_LOADER, Case
from sm_profiler.diagnosis.profile.job import beginning_of
from sm_profiler.diagnosis.profile.lines import Shown, lines_around_the_loop
from sm_profiler.diagnosis.words import FRAGMENTS
from sm_profiler.formats.process_end import COMPLETED, END, NEVER_STARTED, STOPPED, bounded_line
from sm_profiler.formatting import percent, plural
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.ends import BEFORE_STEPS
from sm_profiler.metrics.job_metrics import JobMetrics, how_to_record, why_no_steps

MAX_GPUS = 4  # in a sentence


def inconclusive(case: Case) -> Finding:
    """Return why there is no verdict, and what to do about it."""
    metrics = case.metrics
    steps = sum(int(rank.train.sum()) for rank in metrics.ranks)
    judged = max((len(rank.iterations) for rank in metrics.ranks), default=0)
    evidence = [Evidence("training steps that can be judged", judged, thresholds.MIN_STEPS, held="judged from")]
    gpu, cpu = case.gpu_mean, metrics.mean_of("cpu")
    if gpu is not None:
        evidence.append(Evidence("mean GPU use", round(gpu, 1), limits.BUSY, unit="percent", held="good from"))
    if cpu is not None:
        evidence.append(Evidence("mean CPU use", round(cpu, 1), unit="percent"))
    if metrics.ranks and (start := beginning_of(metrics)) is not None:
        evidence.append(Evidence("initialization", round(start.seconds, 2), unit="s"))
    if metrics.ranks:
        text, advice = _too_few(case, steps, judged)
    elif metrics.ending.first_file_s is not None and not metrics.metadata:
        text = "Nothing is recorded as a whole yet: the job is still running."
        advice = (
            f"The first file closes in {metrics.ending.first_file_s:.0f} s. 'sm-profiler watch' and 'sm-profiler serve' read open files, "
            "and 'sm-profiler report --follow' waits for them."
        )
    elif failure := disk_failure(metrics.metadata):
        text = f"The hook was on, but no training step could be stored: {failure}."
        advice = (
            "Free space on the disk of LocalPath, or name another one. SM_PROFILER_LOCAL_MAX limits what a profile keeps "
            "there."
        )
    elif metrics.metadata:
        text, advice = _no_step(metrics)
    elif metrics.system.rows and metrics.ending.launched:
        text, advice = _unseen(metrics)
    elif metrics.system.rows:
        seen = f" (mean GPU use {gpu:.0f} %)" if gpu is not None else ""
        why, advice = why_no_steps(metrics)
        none = f"Only system metrics were recorded{seen}; they do not show what the training loop waits for."
        so_far = f"No training step has been seen so far{seen}; the job is still running."
        text = f"{so_far if metrics.running else none} {why}".rstrip()
    elif metrics.running:
        text, advice = "Nothing is stored as a whole yet: the job is still running.", why_no_steps(metrics)[1]
    else:
        text = "There is no data to judge: neither system metrics nor training steps were found."
        advice = (
            "Check that the profiler was on (profiler_config of the estimator, or 'sm-profiler run') and that SOURCE is its "
            "output."
        )
    where = () if metrics.ranks else lines_around_the_loop(metrics, lambda _: True)
    where = tuple(map(Shown.of(metrics.samples).location, where))
    return Finding(Class.INCONCLUSIVE, text, tuple(evidence), advice, 0.0, confidence="low", where=where)


def _unseen(metrics: JobMetrics) -> tuple[str, str]:
    """Return the headline and the advice for a script of `sm-profiler run` in which no framework was imported."""
    if metrics.running:
        return (
            "No training step has been seen so far; the job is still running.",
            "'sm-profiler watch' and 'sm-profiler report --follow' show its steps once they begin.",
        )
    if metrics.ending.state == STOPPED:
        return (
            "It was stopped before a training step was seen.",
            "Let it run longer. Steps that no framework makes can be marked with 'with get_hook().step():'.",
        )
    return (
        "No training step was seen; those of PyTorch, Keras, TensorFlow and JAX are found without changes.",
        (
            "In a script without these frameworks, mark each step: 'from sm_profiler.hook import get_hook', then 'with "
            "get_hook().step():'. get_hook() is None in a run without the profiler. A script that calls sm_profiler.start() must do "
            "so before its loop."
        ),
    )


def _no_step(metrics: JobMetrics) -> tuple[str, str]:
    """Return the headline and the advice for processes with the hook that completed no step."""
    states = [state for one in metrics.metadata for state in _states(one)]
    if any(name == "profiler" and state.startswith(NEVER_STARTED) for name, state in states):
        return (
            "The hook was switched on while the job ran, but found no moment to start.",
            "Start the job with framework metrics on: give its ProfilerConfig a FrameworkProfile.",
        )
    text = f"The hook was on, but no training step {'is over yet' if metrics.running else 'was completed'}."
    failed = next((one for one in states if one[1].startswith("failed: ")), None)
    marked = "Steps that the hook does not recognize can be marked with 'with hook.step():'."
    if failed is not None:
        error = bounded_line(failed[1].partition(": ")[2])
        return text, f"The hook's part “{bounded_line(failed[0])}” failed and was switched off ({error}). {marked}"
    if stopped := metrics.ending.stopped_at:
        waited = "If it waited there, see what that line waits for; else let it run longer."
        return f"It was stopped{stopped}.", f"{waited if metrics.ending.place else 'Let it run longer.'} {marked}"
    if metrics.ending.failed:
        known = "Correct the error that ended it" if metrics.ending.error else "Look into its output for the reason"
        return f"It failed {BEFORE_STEPS}.", f"{known}; of the training, nothing could be measured yet."
    if all(one.get(END) == COMPLETED for one in metrics.metadata):
        return text, marked
    return text, f"Look into the script's output for an error in its first step. {marked}"


def _states(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    states = metadata.get("collectors")
    return [(str(name), str(state)) for name, state in states.items()] if isinstance(states, Mapping) else []


def _too_few(case: Case, recorded: int, judged: int) -> tuple[str, str]:
    """Return the headline and the advice for a loop that is too short."""
    metrics = case.metrics
    if not recorded:
        text = "No training step was recorded, only evaluation."
    else:
        text = (
            f"Too few training steps to judge: of {plural(recorded, 'recorded step')}, {judged} can be judged, and "
            f"{thresholds.MIN_STEPS:.0f} are needed."
        )
        if (again := case.compiled_again) >= limits.MAJORITY:
            text += FRAGMENTS["mostly_compiled"].format(share=percent(again))
    if metrics.running:
        return (
            text,
            "The job is still running: 'sm-profiler watch' and 'sm-profiler report --follow' keep the report current.",
        )
    if metrics.ending.failed:
        return text, "Repair the failure first: the job's log has the whole error. Then run at least 100 steps."
    more = "at least 100 steps, for example by a higher limit of steps or more epochs"
    windows = "; detailed windows, which are not judged, can begin later (--config)" if judged < recorded - 1 else ""
    return text, f"Run {more}{windows}."


def not_judged(case: Case) -> list[tuple[str, str]]:
    """Return what could not be judged, each with the reason or what to switch on."""
    metrics, missing = case.metrics, []
    if not metrics.ranks:
        missing.append(("the training loop", f"no steps recorded; {how_to_record(metrics)}"))
    elif not case.waits_known:
        why = "recorded in the dataloader window only; sm-profiler's hook records it for the whole loop"
        missing.append(("waiting for data over the whole loop", NO_LOADER if metrics.metadata else why))
    if metrics.others_gpus:
        names = ", ".join(f"{device} of {node}" for node, device in metrics.others_gpus[:MAX_GPUS])
        more = " and others" if len(metrics.others_gpus) > MAX_GPUS else ""
        missing.append(("GPU use", f"the training used no GPU; other programs kept {names}{more} busy"))
    elif not metrics.gpus:
        missing.append(("GPU use", "no GPU metrics; there is no GPU, or the monitor found no driver"))
    if len(metrics.ranks) > 1 and not any(rank.communication for rank in metrics.ranks):
        missing.append(
            (
                "communication",
                "no collectives recorded; they need a detailed window, or the timeline of Horovod or SMDDP",
            )
        )
    if not metrics.system.rows:
        missing.append(("system metrics", "none recorded; run the monitor with the job"))
    if not metrics.memory and not np.isfinite(metrics.mean_of("memory") or np.nan):
        missing.append(("memory growth", "no memory samples"))
    return missing
