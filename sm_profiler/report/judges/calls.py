"""Judges of calls that save files or log."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sm_profiler.formats import event_names
from sm_profiler.report import policy
from sm_profiler.report.classes import Class
from sm_profiler.report.formatting import duration, percent, plural, size
from sm_profiler.report.judges.judge_context import JudgeContext
from sm_profiler.report.judges.occurrences import Spent, calls_of, largest_names, lines_of, time_in_calls
from sm_profiler.report.judges.opened import with_opening
from sm_profiler.report.judges.written import Written, written_lines
from sm_profiler.report.model import Evidence, Finding, Location
from sm_profiler.report.record_fold import Record
from sm_profiler.report.where import MODULE, lines_of_samples

HOST_CALLS = ("pure_callback", "io_callback", "callback")  # of JAX: compiled code calls a function on the host
_HOST_ADVICE = (
    "The compiled function stops until {} returns, and its arguments are copied to the host. Write it with jax.numpy inside "
    "the compiled function, do it once before the loop, in the input's workers, or call it after the step with what the step "
    "returns, every hundredth step."
)
OUTSTANDING = 5.0  # times the mean of the other calls: one that is named by itself
FLUSHES = ("os.fsync", "os.fdatasync")


def _explained(spent: Spent) -> dict[Class, float]:
    """Return what the calls account for: long steps, and time outside the phases of the others."""
    return {
        Class.PERIODIC_STALL: spent.in_long,
        Class.STEP_OUTLIERS: spent.in_long,
        Class.SYNC_BOUND: spent.share - spent.in_long,
    }


def judge_saving(context: JudgeContext) -> Finding | None:
    """Find checkpoints and other files that the loop waits for."""
    spent = time_in_calls(
        context, event_names.SAVE, lambda one: not one.args.get("imported")
    )  # a save imports only once
    spent, opening = with_opening(context, spent)
    rank = spent.worst
    if rank is None or spent.share < policy.SAVING:
        return None
    name = largest_names(spent.records)[0]
    own = [one for one in spent.records if one.name == name]
    single = [one for one in own if calls_of(one) == 1]
    usual, longest = _durations(own)
    evidence = [
        Evidence("time in the training loop spent saving files", round(spent.share, 4), policy.SAVING, unit="share"),
        Evidence("files saved", spent.calls, None, rank.name),
        Evidence("duration of a save", round(usual * 1e3, 3), None, rank.name, "ms"),
        *opening,
    ]
    written = [
        float(one.args["bytes"]) for one in single if isinstance(one.args.get("bytes"), int) and one.args["bytes"]
    ]
    if written:
        bytes_each = float(np.median(written))
        evidence += [
            Evidence("size of a file", round(bytes_each), None, rank.name, "bytes"),
            Evidence("speed of saving", round(bytes_each / max(usual, 1e-6)), None, rank.name, "bytes/s"),
        ]
        path = next((one.args.get("path") for one in single if isinstance(one.args.get("path"), str)), None)
        if path:
            evidence.append(Evidence("saved to", path, None, rank.name))
    steps = [one.step for one in single if one.step >= 0]
    every = round(float(np.median(np.diff(steps)))) if len(steps) > 1 else 0
    if every > 0:
        evidence.append(Evidence("steps from one save to the next", every, None, rank.name, "steps"))
    how_often = "at every step" if every == 1 else f"every {every} steps" if every else plural(spent.calls, "time")
    but = f" and {duration(longest)} the longest time" if longest else ""
    return Finding(
        Class.CHECKPOINTING,
        f"Training stops for {name} {how_often}, {duration(usual)} each time{but}"
        f"{f' for {size(bytes_each)}' if written else ''}; this costs {percent(spent.share)} of the loop.",
        tuple(evidence),
        f"{context.stack.saving} Save less often, to a local disk first, and only from rank 0; leave out what can be "
        "recomputed.",
        spent.share,
        confidence=context.confidence(spent.share, policy.SAVING),
        where=lines_of(spent.records),
        explains=_explained(spent),
    )  # fmt: skip


def _durations(calls: Sequence[Record]) -> tuple[float, float]:
    """Return the mean duration of a call; with one that takes as long as many, the mean of the others, and that one's, else 0."""
    count, seconds = sum(map(calls_of, calls)), sum(one.seconds for one in calls)
    longest = max((one.seconds for one in calls if calls_of(one) == 1), default=0.0)
    if count > 1 and longest > OUTSTANDING * (seconds - longest) / (count - 1):
        return (seconds - longest) / (count - 1), longest
    return seconds / count, 0.0


def judge_logging(context: JudgeContext) -> Finding | None:
    """Find log lines, prints and experiment trackers that the loop waits for, and lines written to open files."""
    spent = time_in_calls(context, event_names.LOG)
    timed = lines_of(spent.records)
    written = written_lines(context, {(one.file, one.line) for one in timed})
    if written.count >= policy.WRITTEN_SAMPLES and written.share > spent.share:
        return _judge_written(context, written, spent)
    rank = spent.worst
    if rank is None or spent.share < policy.LOGGING:
        return None
    names = largest_names(spent.records)
    per_step = spent.calls / max(int(rank.train.sum()), 1)
    return Finding(
        Class.LOGGING,
        f"{percent(spent.share)} of the loop is spent in {names[0]}"
        f"{f' and {names[1]}' if len(names) > 1 else ''}: {spent.calls:,} calls of {duration(spent.seconds / spent.calls)}.",
        (
            Evidence("time in the training loop spent logging", round(spent.share, 4), policy.LOGGING, unit="share"),
            Evidence("calls for each training step", round(per_step, 2), None, rank.name),
            Evidence("duration of a call", round(spent.seconds / spent.calls * 1e3, 4), None, rank.name, "ms"),
        ),
        "Log every 50th step, or collect values and log them once. Let a queue write them "
        "(logging.handlers.QueueHandler), do not flush after each line, and draw images and histograms rarely.",
        spent.share,
        confidence=context.confidence(spent.share, policy.LOGGING),
        where=timed,
        explains=_explained(spent),
    )  # fmt: skip


def _judge_written(context: JudgeContext, written: Written, spent: Spent) -> Finding | None:
    """Find lines written to open files, from the samples of the lines that write them."""
    share = min(written.share + spent.share, 1.0)
    if share < policy.LOGGING:
        return None
    in_long = min(written.in_long + spent.in_long, share)
    return Finding(
        Class.LOGGING,
        f"{percent(share)} of the loop is spent writing text, mostly in {_named(written.lines[0])}.",
        (
            Evidence("time in the training loop spent writing text", round(share, 4), policy.LOGGING, unit="share"),
            Evidence("samples in lines that write", written.count, policy.WRITTEN_SAMPLES, held="judged from"),
        ),
        "Write every 50th step, or collect rows and write them once: a list, then one write for all. Do not flush after each "
        "line, and let a thread or a queue do the writing if every row is needed.",
        share,
        confidence=context.confidence(share, policy.LOGGING, sure=False, error=written.error),
        where=written.lines,
        explains={
            Class.PERIODIC_STALL: in_long, Class.STEP_OUTLIERS: in_long, Class.SYNC_BOUND: share - in_long,
            Class.CHECKPOINTING: _flushed(context, written),
        },
    )  # fmt: skip


def _named(one: Location) -> str:
    """Return the function of a line, or the line if it is in none."""
    return f"{one.function}()" if one.function != MODULE else f"line {one.line} of {one.file.rpartition('/')[2]}"


def _flushed(context: JudgeContext, written: Written) -> float:
    """Return the share of the loop in which the functions that write text wait for the disk: no checkpoint does that."""
    writers = {(one.file.rpartition("/")[2], one.function) for one in written.lines}

    def flushes(one: Record) -> bool:
        file = str(one.args.get("file", "")).rpartition("/")[2]
        return one.name in FLUSHES and (file, one.args.get("function")) in writers

    return time_in_calls(context, event_names.SAVE, flushes).share


def judge_callbacks(context: JudgeContext) -> Finding | None:
    """Find callbacks of the training that the loop waits for; those that save a file are the file's."""
    spent = time_in_calls(context, event_names.CALLBACK, lambda one: not _saves(context, one))
    rank = spent.worst
    if rank is None or spent.share < policy.CALLBACK:
        return None
    method = largest_names(spent.records)[0]
    own = [one for one in spent.records if one.name == method]
    seconds, calls = sum(one.seconds for one in own), sum(calls_of(one) for one in own)
    share = spent.share * seconds / max(sum(one.seconds for one in spent.records), 1e-9)
    if share < policy.CALLBACK:
        return None
    name, _, event = method.partition(".")
    sampled = lines_of_samples(context.metrics, lambda one: one.phase == "callback")
    return Finding(
        Class.SLOW_CALLBACK,
        f"The callback {name} takes {percent(share)} of the loop: {calls:,} calls of {event}, {duration(seconds / calls)} "
        "each.",
        (
            Evidence("time in the training loop spent in this callback", round(share, 4), policy.CALLBACK, unit="share"),
            Evidence(f"calls of {event}", calls, None, rank.name),
            Evidence("duration of a call", round(seconds / calls * 1e3, 4), None, rank.name, "ms"),
        ),
        _HOST_ADVICE.format(name)
        if event in HOST_CALLS
        else f"Let {name} work less often: at the end of an epoch instead of each batch, or at every hundredth batch. Move what "
        "does not change the training (images, statistics, uploads) to a thread, or into a job of its own.",
        share,
        confidence=context.confidence(share, policy.CALLBACK),
        where=sampled or lines_of(own),
        explains=_explained(spent),
    )  # fmt: skip


def _saves(context: JudgeContext, call: Record) -> bool:
    """Return whether a callback saves a file for most of this call."""
    saves = context.metrics.records.get(event_names.SAVE)
    if saves is None or calls_of(call) > 1:
        return False
    inside = sum(one.seconds for one in saves.of(call.process) if call.start <= one.start <= call.end)
    return inside >= policy.CALLBACK_SAVES * call.seconds
