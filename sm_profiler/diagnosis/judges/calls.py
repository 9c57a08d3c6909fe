"""Judges of calls that save files or log."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sm_profiler.diagnosis import limits, policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.diagnosis.judges.occurrences import calls_of, largest_names, lines_of, time_in_calls
from sm_profiler.diagnosis.judges.written import BESIDE_THE_PHASES, Seen, seen_in_samples
from sm_profiler.diagnosis.loop_ledger import CALLBACKS, LOGGING, SAVING, flushes
from sm_profiler.diagnosis.model import Evidence, Finding, Location
from sm_profiler.diagnosis.where import MODULE, lines_of_samples
from sm_profiler.formats import event_names
from sm_profiler.formatting import duration, percent, plural, size
from sm_profiler.metrics.record_fold import Record

HOST_CALLS = ("pure_callback", "io_callback", "callback")  # of JAX: compiled code calls a function on the host
_HOST_ADVICE = (
    "The compiled function stops until {} returns, and its arguments are copied to the host. Write it with jax.numpy inside "
    "the compiled function, do it once before the loop, in the input's workers, or call it after the step with what the step "
    "returns, every hundredth step."
)
_SAVING_ADVICE = (
    "Save less often, or let another thread or process encode and write: images, arrays and samples are no part of a step. "
    "Write to a local disk first, in a format that is cheap to make."
)
_WRITING_ADVICE = (
    "Write every 50th step, or collect rows and write them once: a list, then one write for all. Do not flush after each line, "
    "and let a thread or a queue do the writing if every row is needed."
)
_CALLBACK_ADVICE = (
    "Let {} work less often: at the end of an epoch instead of each batch, or at every hundredth batch. Move what does not "
    "change the training (images, statistics, uploads) to a thread, or into a job of its own."
)
OUTSTANDING = 5.0  # times the mean of the other calls: one that is named by itself


def judge_saving(context: JudgeContext) -> Finding | None:
    """Find checkpoints and other files that the loop waits for."""
    writers = context.seen.writers()
    spent = time_in_calls(  # a save imports only once
        context, event_names.SAVE, lambda one: not one.args.get("imported") and not flushes(one, writers)
    )
    timed = lines_of(spent.records)
    seen = seen_in_samples(context, SAVING, {(one.file, one.line) for one in timed})
    share, rank = min(spent.share + seen.share, 1.0), spent.worst
    if share < limits.FLOOR or (spent.share < seen.share and seen.count < policy.WRITTEN_SAMPLES):
        return None
    if rank is None or spent.share < seen.share:
        return _judge_seen(context, seen, share, "saving files", "that save files", Class.CHECKPOINTING, _SAVING_ADVICE)
    name = largest_names(spent.records)[0]
    own = [one for one in spent.records if one.name == name]
    single = [one for one in own if calls_of(one) == 1]
    usual, longest = _durations(own)
    evidence = [
        Evidence("time in the training loop spent saving files", round(share, 4), unit="share"),
        Evidence("files saved", spent.calls, None, rank.name),
        Evidence("duration of a save", round(usual * 1e3, 3), None, rank.name, "ms"),
        *(
            [Evidence("saving outside of these calls, from samples", round(seen.share, 4), unit="share")]
            if seen.share >= limits.FLOOR
            else []
        ),
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
        f"{f' for {size(bytes_each)}' if written else ''}; this costs {percent(share)} of the loop.",
        tuple(evidence),
        f"{context.stack.saving} Save less often, to a local disk first, and only from rank 0; leave out what can be "
        "recomputed.",
        share,
        confidence=context.confidence(spent.share, limits.FLOOR),
        where=timed,
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
    seen = seen_in_samples(context, LOGGING, {(one.file, one.line) for one in timed})
    writers = context.seen.writers()
    flushed = time_in_calls(context, event_names.SAVE, lambda one: flushes(one, writers)).share
    share, rank = min(spent.share + seen.share + flushed, 1.0), spent.worst
    if share < limits.FLOOR or (spent.share < seen.share and seen.count < policy.WRITTEN_SAMPLES):
        return None
    if rank is None or spent.share < seen.share:
        return _judge_seen(context, seen, share, "writing text", "that write", Class.LOGGING, _WRITING_ADVICE)
    names = largest_names(spent.records)
    per_step = spent.calls / max(int(rank.train.sum()), 1)
    return Finding(
        Class.LOGGING,
        f"{percent(share)} of the loop is spent in {names[0]}"
        f"{f' and {names[1]}' if len(names) > 1 else ''}: {spent.calls:,} calls of {duration(spent.seconds / spent.calls)}.",
        (
            Evidence("time in the training loop spent logging", round(share, 4), None, unit="share"),
            Evidence("calls for each training step", round(per_step, 2), None, rank.name),
            Evidence("duration of a call", round(spent.seconds / spent.calls * 1e3, 4), None, rank.name, "ms"),
        ),
        "Log every 50th step, or collect values and log them once. Let a queue write them "
        "(logging.handlers.QueueHandler), do not flush after each line, and draw images and histograms rarely.",
        share,
        confidence=context.confidence(spent.share, limits.FLOOR),
        where=timed,
    )  # fmt: skip


def _judge_seen(  # the words of one sentence
    context: JudgeContext, seen: Seen, share: float, what: str, lines: str, kind: Class, advice: str
) -> Finding:
    """Return a finding about lines that only samples show."""
    return Finding(
        kind,
        f"{percent(share)} of the loop is spent {what}, mostly in {_named(seen.lines[0])}.",
        (
            Evidence(f"time in the training loop spent {what}", round(share, 4), unit="share"),
            Evidence(f"samples in lines {lines}", seen.count, policy.WRITTEN_SAMPLES, held="judged from"),
        ),
        advice,
        share,
        confidence=context.confidence(share, limits.FLOOR, sure=False, error=seen.error),
        where=seen.lines,
    )


def _named(one: Location) -> str:
    """Return the function of a line, or the line if it is in none."""
    return f"{one.function}()" if one.function != MODULE else f"line {one.line} of {one.file.rpartition('/')[2]}"


def judge_callbacks(context: JudgeContext) -> Finding | None:
    """Find callbacks of the training that the loop waits for; those that save a file are the file's."""
    spent = time_in_calls(context, event_names.CALLBACK, lambda one: not _saves(context, one))
    rank = spent.worst
    if rank is None:
        return _judge_seen_callback(context)
    if spent.share < limits.FLOOR:
        return None
    method = largest_names(spent.records)[0]
    own = [one for one in spent.records if one.name == method]
    seconds, calls = sum(one.seconds for one in own), sum(calls_of(one) for one in own)
    share = spent.share * seconds / max(sum(one.seconds for one in spent.records), 1e-9)
    name, _, event = method.partition(".")
    sampled = lines_of_samples(context.metrics, lambda one: one.phase == "callback")
    return Finding(
        Class.SLOW_CALLBACK,
        f"The callback {name} takes {percent(share)} of the loop: {calls:,} calls of {event}, {duration(seconds / calls)} "
        "each.",
        (
            Evidence("time in the training loop spent in this callback", round(share, 4), None, unit="share"),
            Evidence(f"calls of {event}", calls, None, rank.name),
            Evidence("duration of a call", round(seconds / calls * 1e3, 4), None, rank.name, "ms"),
        ),
        _HOST_ADVICE.format(name)
        if event in HOST_CALLS
        else _CALLBACK_ADVICE.format(name),
        share,
        confidence=context.confidence(share, limits.FLOOR),
        where=sampled or lines_of(own),
    )  # fmt: skip


def _judge_seen_callback(context: JudgeContext) -> Finding | None:
    """Find callbacks that no record times, as those of Lightning and transformers, from the samples of their lines."""
    seen = seen_in_samples(context, CALLBACKS)
    if seen.share < limits.FLOOR or seen.count < policy.WRITTEN_SAMPLES:
        return None
    methods: dict[str, float] = {}
    for one in context.metrics.samples.stacks:
        place = context.seen.callback(one) if one.phase in BESIDE_THE_PHASES else None
        if place is not None:
            methods[place.function] = methods.get(place.function, 0.0) + one.seconds
    name, _, event = max(methods, key=lambda method: methods[method]).rpartition(".")
    return Finding(
        Class.SLOW_CALLBACK,
        f"The callback {name or event} takes {percent(seen.share)} of the loop{f', in {event}' if name else ''}.",
        (
            Evidence("time in the training loop spent in callbacks", round(seen.share, 4), unit="share"),
            Evidence("samples in their lines", seen.count, policy.WRITTEN_SAMPLES, held="judged from"),
        ),
        _CALLBACK_ADVICE.format(name or event),
        seen.share,
        confidence=context.confidence(seen.share, limits.FLOOR, sure=False, error=seen.error),
        where=seen.lines,
    )


def _saves(context: JudgeContext, call: Record) -> bool:
    """Return whether a callback saves a file for most of this call."""
    saves = context.metrics.records.get(event_names.SAVE)
    if saves is None or calls_of(call) > 1:
        return False
    inside = sum(one.seconds for one in saves.of(call.process) if call.start <= one.start <= call.end)
    return inside >= policy.CALLBACK_SAVES * call.seconds
