"""Judges of calls that save files or log."""

from __future__ import annotations

import numpy as np

from sm_profiler.diagnosis import limits, policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.diagnosis.judges.occurrences import Calls, calls_by_name, calls_of, lines_of, time_in_calls
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
MAX_NAMED = 2  # functions in a sentence
NAMED_SHARE = 0.1  # of the time of all; functions with less have no sentence
OUTSTANDING = 5.0  # times any other call: one that is named by itself


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
    calls = [one for one in calls_by_name(spent) if one.seconds >= NAMED_SHARE * spent.seconds][:MAX_NAMED]
    most, single = calls[0], _single(calls[0])
    usual, _ = _durations(most)
    evidence = [
        Evidence("time in the training loop spent saving files", round(share, 4), unit="share"),
        Evidence("files saved", most.count, None, rank.name),
        Evidence("duration of a save", round(usual * 1e3, 3), None, rank.name, "ms"),
    ]
    around = ""
    if seen.share >= limits.FLOOR:
        evidence.append(Evidence("saving outside of these calls, from samples", round(seen.share, 4), unit="share"))
        around = f", and saving outside of these calls {percent(seen.share)}"
    if bytes_each := _size(most):
        evidence += [
            Evidence("size of a file", round(bytes_each), None, rank.name, "bytes"),
            Evidence("speed of saving", round(bytes_each / max(usual, 1e-6)), None, rank.name, "bytes/s"),
        ]
        path = next((one.args.get("path") for one in single if isinstance(one.args.get("path"), str)), None)
        if path:
            evidence.append(Evidence("saved to", path, None, rank.name))
    if (every := _steps_between(most)) > 0:
        evidence.append(Evidence("steps from one save to the next", every, None, rank.name, "steps"))
    return Finding(
        Class.CHECKPOINTING,
        f"Training stops for {', and for '.join(map(_stop, calls))}; this costs {percent(spent.share)} of the loop{around}.",
        tuple(evidence),
        f"{context.stack.saving} Save less often, to a local disk first, and only from rank 0; leave out what can be "
        "recomputed.",
        share,
        confidence=context.confidence(spent.share, limits.FLOOR),
        where=timed,
    )  # fmt: skip


def _stop(calls: Calls) -> str:
    """Return how often and for how long the training stops for some calls."""
    usual, longest = _durations(calls)
    every, bytes_each = _steps_between(calls), _size(calls)
    how_often = "at every step" if every == 1 else f"every {every} steps" if every else plural(calls.count, "time")
    but = f" and {duration(longest)} the longest time" if longest else ""
    return (
        f"{calls.name} {how_often}, {duration(usual)} each time{but}{f' for {size(bytes_each)}' if bytes_each else ''}"
    )


def _single(calls: Calls) -> list[Record]:
    """Return the calls that were recorded one by one."""
    return [one for one in calls.records if calls_of(one) == 1]


def _size(calls: Calls) -> float:
    """Return the bytes that a call writes; 0 if unknown."""
    written = [one.args.get("bytes") for one in _single(calls)]
    known = [float(one) for one in written if isinstance(one, int) and one]
    return float(np.median(known)) if known else 0.0


def _steps_between(calls: Calls) -> int:
    """Return the steps from one call to the next; 0 if unknown."""
    steps = [one.step for one in _single(calls) if one.step >= 0]
    return round(float(np.median(np.diff(steps)))) if calls.count == len(steps) > 1 else 0


def _durations(calls: Calls) -> tuple[float, float]:
    """Return the mean duration of a call; with one that takes as long as many, the mean of the others, and that one's, else 0."""
    longest, *others = sorted((one.seconds for one in _single(calls)), reverse=True) or [0.0]
    if calls.count <= 1:
        return calls.seconds, 0.0
    mean = (calls.seconds - longest) / (calls.count - 1)
    if longest > OUTSTANDING * max([mean, *others[:1]]):
        return mean, longest
    return calls.seconds / calls.count, 0.0


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
    names = [one.name for one in calls_by_name(spent)]
    rest = share - spent.share
    per_step = spent.calls / max(int(rank.train.sum()), 1)
    return Finding(
        Class.LOGGING,
        f"{percent(spent.share)} of the loop is spent in {names[0]}"
        f"{f' and {names[1]}' if len(names) > 1 else ''}: {spent.calls:,} calls of {duration(spent.seconds / spent.calls)}"
        f"{f'; other lines that write take {percent(rest)}' if rest >= limits.FLOOR else ''}.",
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
    own = calls_by_name(spent)[0]
    share = spent.share * own.seconds / max(spent.seconds, 1e-9)
    name, _, event = own.name.partition(".")
    sampled = lines_of_samples(context.metrics, lambda one: one.phase == "callback")
    return Finding(
        Class.SLOW_CALLBACK,
        f"The callback {name} takes {percent(share)} of the loop: {own.count:,} calls of {event}, {duration(own.seconds / own.count)} "
        "each.",
        (
            Evidence("time in the training loop spent in this callback", round(share, 4), None, unit="share"),
            Evidence(f"calls of {event}", own.count, None, rank.name),
            Evidence("duration of a call", round(own.seconds / own.count * 1e3, 4), None, rank.name, "ms"),
        ),
        _HOST_ADVICE.format(name)
        if event in HOST_CALLS
        else _CALLBACK_ADVICE.format(name),
        share,
        confidence=context.confidence(share, limits.FLOOR),
        where=sampled or lines_of(own.records),
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
