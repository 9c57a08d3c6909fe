"""Activities that the loop waits for call by call: saving, logging, callbacks, compiling again, collecting garbage, evaluating."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.confidence import MAY_BE_NEEDED
from sm_profiler.diagnosis.model import Evidence, Location
from sm_profiler.diagnosis.profile.case import Case, Found
from sm_profiler.diagnosis.profile.ledger import (
    AGAIN,
    BESIDE_THE_PHASES,
    CALLBACKS,
    COLLECTING,
    COMPILING,
    EVALUATION,
    LOGGING,
    NAMED,
    SAVING,
    flushes,
)
from sm_profiler.diagnosis.profile.lines import (
    MODULE,
    Lines,
    in_loop,
    lines_of_collections,
    lines_of_phase,
    lines_of_samples,
)
from sm_profiler.diagnosis.profile.loop import Loop
from sm_profiler.diagnosis.profile.occurrences import (
    Calls,
    Seen,
    Spent,
    calls_by_name,
    calls_of,
    in_first_steps,
    joined_lines,
    lines_of_records,
    seen_in_samples,
)
from sm_profiler.diagnosis.repairing import Saving
from sm_profiler.diagnosis.words import ADVICE, FRAGMENTS
from sm_profiler.formats.recorded import Callback, Compile, EvalMode, Log, Save
from sm_profiler.formatting import duration, percent, plural, size
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.job_metrics import Rank
from sm_profiler.metrics.parts import Covered
from sm_profiler.metrics.record_fold import Record
from sm_profiler.metrics.sample_fold import Sampled
from sm_profiler.metrics.step_fold import TRAIN

_WITHIN = {"forward": "the forward pass", "backward": "the backward pass", "optimizer": "the optimizer's step"}
HOST_CALL = "host_callback"  # advice
GENERATION = "generation"  # text
# Compiled code calls a function on the host.
HOST_CALLS = ("pure_callback", "io_callback", "callback", "numpy_function", "py_function")


def activity(case: Case, name: str, loop: Loop) -> Saving | None:
    """Return what is saved of an activity that happens rarely, or in another thread, with the collections that it causes."""
    spent = loop.of_activity(name)
    if not spent.any():
        return None
    least, value, most = limits.SAVED
    collected = loop.of_activity(COLLECTING) * case.seen.collected_in(name)
    taken = name, COLLECTING, *(other for other in loop.left if other not in NAMED)
    seconds = (spent + collected + loop.around(spent)) * value
    return Saving(seconds, least / value, most / value, taken, strict=True)


def saving(case: Case) -> Found | None:
    """Find checkpoints and other files that the loop waits for."""
    writers = case.seen.writers()
    # a save imports only once
    spent = calls_of(case, Save, lambda one: not one.args.imported and not flushes(one, writers))
    timed = lines_of_records(spent.records if spent else ())
    seen, share = _seen_beside(case, SAVING, timed)
    called = min(spent.seconds / spent.rank.loop, share) if spent else 0.0
    lines = joined_lines((seen.share, seen.lines), (called, timed))
    if spent is None or share < 2 * seen.share:
        return _seen("saving_seen", partial(activity, case, SAVING), attrs.evolve(seen, lines=lines), share)
    rank = spent.rank
    calls = [own for own in calls_by_name(spent) if own.seconds >= limits.SHOWN * 2 * spent.seconds][:2]
    most = calls[0]
    usual, _ = most.durations
    evidence = [
        Evidence("time in the training loop spent saving files", round(share, 4), unit="share"),
        Evidence("files saved" if most.is_exact else "files saved, about", most.count, None, rank.name),
        Evidence("duration of a save", round(usual * 1e3, 3), None, rank.name, "ms"),
    ]
    around = ""
    if seen.share >= limits.FLOOR:
        evidence.append(Evidence("saving outside of these calls, from samples", round(share - called, 4), unit="share"))
        around = FRAGMENTS["saving_around"].format(share=percent(share - called))
    else:
        called, lines = share, timed
    if most.size:
        evidence += [
            Evidence("size of a file", round(most.size), None, rank.name, "bytes"),
            Evidence("speed of saving", round(most.size / max(usual, 1e-6)), None, rank.name, "bytes/s"),
        ]
        if path := next((one.args.path for one in most.single if one.args.path), None):
            evidence.append(Evidence("saved to", path, None, rank.name))
    if most.steps_between > 0:
        evidence.append(Evidence("steps from one save to the next", most.steps_between, None, rank.name, "steps"))
    words = {
        "stops": ", and for ".join(map(_stop, calls)), "share": percent(called), "around": around, **_growth(most),
    }  # fmt: skip
    advice = "saving_text" if _TEXT.match(most.name) else "saving"
    return Found("saving", words, tuple(evidence), share, advice, partial(activity, case, SAVING), where=lines)


_TEXT = re.compile(r"^(json|yaml|csv)\b|\bto_(csv|json)$")  # functions that write text


def _growth(calls: Calls[Any]) -> dict[str, str]:
    """Return the words about calls that take longer and longer, which a longer training will notice more; else empty ones."""
    if (grows := calls.grows) is None:
        return {"grows": "", "anew": ""}
    first, last = map(duration, grows)
    return {
        "grows": FRAGMENTS["grows"].format(name=calls.name, first=first, last=last),
        "anew": FRAGMENTS["grows_anew"],
    }


def _stop(calls: Calls[Save]) -> str:
    """Return how often and for how long the training stops for some calls."""
    usual, longest = calls.durations
    every = calls.steps_between
    about = "" if calls.is_exact else "about "
    how_often = (
        "at every step" if every == 1 else f"every {every} steps" if every else f"{about}{plural(calls.count, 'time')}"
    )
    but = f" and {duration(longest)} the longest time" if longest else ""
    return (
        f"{calls.name} {how_often}, {duration(usual)} each time{but}{f' for {size(calls.size)}' if calls.size else ''}"
    )


def logging(case: Case) -> Found | None:
    """Find log lines, prints and experiment trackers that the loop waits for, and lines written to open files."""
    spent = calls_of(case, Log)
    timed = lines_of_records(spent.records if spent else ())
    seen, share = _seen_beside(case, LOGGING, timed)
    called = min(spent.seconds / spent.rank.loop, share) if spent else 0.0
    if spent is None or called < seen.share:
        seen = attrs.evolve(seen, lines=joined_lines((seen.share, seen.lines), (called, timed)))
        return _seen("logging_seen", partial(activity, case, LOGGING), seen, share)
    rank, names, rest = spent.rank, [own.name for own in calls_by_name(spent)], share - called
    each, most = spent.seconds / spent.calls, calls_by_name(spent)[0]
    words = {
        "share": percent(called),
        "names": " and ".join(names[:2]),
        "calls": f"{spent.calls:,}",
        "each": duration(each),
        "rest": FRAGMENTS["logging_rest"].format(share=percent(rest)) if rest >= limits.FLOOR else "",
        **_growth(most),
    }
    evidence = (
        Evidence("time in the training loop spent logging", round(share, 4), unit="share"),
        Evidence("calls for each training step", round(spent.calls / max(int(rank.train.sum()), 1), 2), None, rank.name),
        Evidence("duration of a call", round(each * 1e3, 4), None, rank.name, "ms"),
    )  # fmt: skip
    return Found("logging", words, evidence, share, saves=partial(activity, case, LOGGING), where=timed)


def _seen_beside(case: Case, name: str, timed: Sequence[Location]) -> tuple[Seen, float]:
    """Return the samples of an activity outside the lines of its recorded calls, and the share of the loop of all of it."""
    return seen_in_samples(case, name, {(line.file, line.line) for line in timed}), case.share_of(name)


def _seen(text: str, saves: partial[Saving | None], seen: Seen, share: float) -> Found | None:
    """Return what only samples of lines show."""
    if not seen.lines:
        return None
    line = seen.lines[0]
    place = f"{line.function}()" if line.function != MODULE else f"line {line.line} of {line.file.rpartition('/')[2]}"
    return seen.found(text, "time in the training loop", share, {"place": place}, saves=saves)


def callbacks(case: Case) -> Found | None:
    """Find callbacks of the training that the loop waits for; those that save a file are the file's."""
    found = _callbacks(case)
    return found if found is not None and found.advice != HOST_CALL else None


def host_calls(case: Case) -> Found | None:
    """Find functions on the host for which compiled code stops."""
    found = _callbacks(case)
    return found if found is not None and found.advice == HOST_CALL else None


def _callbacks(case: Case) -> Found | None:
    spent = calls_of(case, Callback, lambda one: not _saves(case, one))
    seen, share = seen_in_samples(case, CALLBACKS), case.share_of(CALLBACKS)
    if spent is None or share < 2 * seen.share:
        return _seen_callback(case, seen)
    rank, own = spent.rank, calls_by_name(spent)[0]
    of_all, each = own.seconds / max(spent.seconds, 1e-9), own.seconds / own.working
    whole = min(spent.seconds / rank.loop, 1.0)
    # what has a name by itself, such as evaluating and compiling, is no part of the callback in the ledger either
    alone = min(share, whole)
    share, inside = alone * of_all, (whole - alone) * of_all
    name, _, event = own.name.partition(".")
    evidence = (
        Evidence("time in the training loop spent in this callback", round(share, 4), unit="share"),
        Evidence(f"calls of {event}", own.count, None, rank.name),
        *([Evidence("calls that do all the work", own.working, None, rank.name)] if own.working < own.count else []),
        Evidence("duration of a call", round(each * 1e3, 4), None, rank.name, "ms"),
    )
    words = {
        "name": name,
        "share": percent(share),
        "calls": f"{own.working:,} of {own.count:,}" if own.working < own.count else f"{own.count:,}",
        "event": event,
        "each": duration(each),
        "less": _less(name, event),
        **_growth(own),
        "inside": FRAGMENTS["callback_inside"].format(share=percent(inside)) if inside >= limits.FLOOR else "",
    }
    return Found(
        "callback", words, evidence, share, HOST_CALL if event in HOST_CALLS else "callback", partial(_without_callback, _inside(own, rank, case)),
        where=lines_of_phase(case.metrics, "callback") or _lines_below(own, case) or lines_of_records(own.records),
    )  # fmt: skip


def _lines_below(own: Calls[Callback], case: Case) -> tuple[Location, ...]:
    """Return the lines in the function of recorded calls, or in what it calls."""
    functions = {(one.args.file, one.args.function) for one in own.records}
    names = {((file or "").rpartition("/")[2], (function or "").rpartition(".")[2]) for file, function in functions}

    def inside(one: Sampled) -> bool:
        return any((place.file.rpartition("/")[2], place.function.rpartition(".")[2]) in names for place in one.places)

    return lines_of_samples(case.metrics, lambda one: in_loop(one) and inside(one))


def _without_callback(inside: Mapping[str, float], loop: Loop) -> Saving | None:
    """Return what is saved with a callback: its own time, and the part of evaluating and compiling that is inside it."""
    own = loop.of_activity(CALLBACKS)
    least, value, most = limits.SAVED
    seconds = (own + sum(loop.of_activity(name) * part for name, part in inside.items())) * value
    return Saving(seconds, least / value, most / value, (CALLBACKS, *inside), strict=True) if own.any() else None


def _inside(own: Calls[Callback], rank: Rank, case: Case) -> dict[str, float]:
    """Return the parts of evaluating and of compiling that happen inside a callback's calls."""
    calls = Covered.by(np.array([one.start for one in own.single]), np.array([one.end for one in own.single]))
    rows = rank.steps[rank.steps.mode != TRAIN]
    found = {EVALUATION: (rows.start / 1e6, rows.end / 1e6)}
    compiled = case.metrics.recorded(Compile).of(rank.name)
    for name, again in ((COMPILING, False), (AGAIN, True)):
        records = [one for one in compiled if bool(one.args.again) is again and rank.start <= one.start <= rank.end]
        found[name] = np.array([one.start for one in records]), np.array([one.end for one in records])
    return {
        name: min(float(calls.within(start, end).sum() / whole), 1.0)
        for name, (start, end) in found.items()
        if (whole := float(np.maximum(end - start, 0.0).sum())) > 0
    }


def _less(name: str, event: str) -> str:
    """Return how a callback may take less, by the method that is called."""
    method = event.rpartition(".")[2]
    when = "epochs" if "epoch" in method else "batches" if method.startswith("on_") else "passes"
    return FRAGMENTS[f"less_in_{when}"].format(name=name)


def _seen_callback(case: Case, seen: Seen) -> Found | None:
    """Find callbacks that no record times, from the samples of their lines: hooks of modules and optimizers, those of trainers."""
    methods = defaultdict[tuple[str, str], float](float)
    for stack in case.metrics.samples.stacks:
        place = case.seen.callback(stack)
        if place is not None:
            methods[place.function, _WITHIN.get(stack.phase, "")] += stack.seconds
    if not seen.lines or not methods:
        return None
    method, within = max(methods, key=lambda one: methods[one])
    name, _, event = (method, "", within) if within else method.rpartition(".")
    words = {
        "name": name or event,
        "where": f", in {event}" if name else "",
        "less": _less(name or event, method),
        "anew": "",
    }
    saves = partial(activity, case, CALLBACKS)
    return seen.found(
        "callback_seen",
        "time in the training loop spent in callbacks",
        seen.share,
        words,
        advice="callback",
        saves=saves,
    )


def _saves(case: Case, call: Record[Callback]) -> bool:
    """Return whether a callback saves a file for most of this call."""
    if call.calls > 1:
        return False
    saves = case.metrics.recorded(Save).of(call.process)
    inside = sum(one.seconds for one in saves if call.start <= one.start <= call.end)
    return inside >= limits.MAJORITY * call.seconds


def recompilation(case: Case) -> Found | None:
    """Find functions that a compiler compiles again while the loop runs."""
    spent = calls_of(case, Compile, lambda one: bool(one.args.again), once=True)
    # each new shape is compiled once, such as that of a part batch: two are no habit
    if spent is None or spent.calls < limits.REPEATS or all(map(in_first_steps, spent.records)):
        return None
    rank, share = spent.rank, case.compiled_again
    slowed = sum(one.seconds for one in spent.records for start, end in rank.stretches if start <= one.start < end)
    share = (share * rank.loop + slowed) / (rank.loop + slowed)  # the ledger leaves out steps that the profiler slowed
    compiler = next((one.args.compiler for one in reversed(spent.records) if one.args.compiler), "torch.compile")
    reason = next((one.args.reason for one in reversed(spent.records) if one.args.reason), "")
    breaks = [one for one in case.metrics.recorded(Compile).of(rank.name) if one.name == "graph break"]
    each = share * rank.loop / spent.calls
    evidence = [
        *([Evidence("reason of the last", reason, None, rank.name)] if reason else []),
        Evidence("time in the training loop spent compiling again", round(share, 4), unit="share"),
        Evidence("recompilations", spent.calls, limits.REPEATS, rank.name),
        Evidence("duration of a recompilation", round(each * 1e3, 3), None, rank.name, "ms"),
    ]
    if breaks:
        evidence.append(Evidence("graph breaks", len(breaks), None, rank.name))
        evidence.append(Evidence("reason of the first graph break", breaks[0].args.reason or "", None, rank.name))
    words = {
        "compiler": compiler,
        "name": spent.records[-1].name,
        "times": plural(spent.calls, "time"),
        "each": duration(each),
        "share": percent(share),
    }
    advice = f"recompilation_{compiler.replace('.', '_')}"
    return Found(
        "recompilation", words, tuple(evidence), share,
        advice if advice in ADVICE else "recompilation_torch_compile", partial(_compiled_once, _again_in_first_steps(spent)),
        error=share * _chance(spent), where=lines_of_records(spent.records),
    )  # fmt: skip


def _chance(spent: Spent[Compile]) -> float:
    """Return the standard error of the time of rare calls, as a share of it: another run would have a few more or fewer.

    However they lie in the loop: most shapes come first at its start.
    """
    seconds = np.array([one.seconds for one in spent.records])
    return float(np.sqrt((seconds**2).sum()) / seconds.sum()) if seconds.sum() > 0 else 1.0


def _again_in_first_steps(spent: Spent[Compile]) -> float:
    """Return the seconds of the first steps in which functions are compiled for the second time, or more often."""
    return sum(one.seconds for one in spent.records if in_first_steps(one))


def _compiled_once(first: float, loop: Loop) -> Saving | None:
    """Make the steps that compile again as long as others: what was compiled runs slowly at first, which no record shows.

    If there are no others, such a step may take any time, so at most all of it is saved.
    """
    again, compiled = loop.of_activity(AGAIN), loop.of_activity(AGAIN, COMPILING)
    rows, total, beyond, whole = again > 0, float(again.sum()), 0.0, 0.0
    if total <= 0:
        return None
    rest = loop.training - compiled
    if np.count_nonzero(compiled <= 0) >= thresholds.MIN_STEPS:
        more = float(np.median(rest[rows]) - np.median(rest[compiled <= 0]))
        beyond = max(more, 0.0) * np.count_nonzero(rows)
    else:
        whole = float(loop.training[rows].sum())
    least, value, most = limits.SAVED
    collected = np.minimum(loop.of_activity(COLLECTING), again)  # tracing leaves garbage
    lost = again * ((total + beyond) / total) + collected
    taken = (AGAIN, COLLECTING, "compiled", "forward", "backward")
    first = min(first, loop.once)
    return Saving(
        lost * value,
        least / value,
        most / value * max(whole / total, 1.0),
        taken,
        error=0.0,
        once=(first * least, first * value, first),
    )


def collections(case: Case) -> Found | None:
    """Find pauses by Python's garbage collector, but for those in steps that compile a function, as long as that takes."""
    if case.loop is None:
        return None
    collected, compiled = case.loop.of_activity(COLLECTING), case.loop.of_activity(COMPILING, AGAIN)
    spent = np.maximum(collected - compiled, 0.0).sum()
    if spent <= 0:
        return None
    share, where = case.share_of(COLLECTING) * float(spent / collected.sum()), lines_of_collections(case.metrics)
    called = bool(where) and "gc.collect(" in where[0].source
    return Found(
        "collections", {"share": percent(share), "total": duration(share * case.mean(lambda rank: rank.loop))},
        (Evidence("time in collections of 1 ms and more", round(share, 4), unit="share"),), share,
        "collections_called" if called else "collections", saves=partial(activity, case, COLLECTING),
        error=case.share_error(COLLECTING), where=where,
    )  # fmt: skip


def evaluation(case: Case) -> Found | None:
    """Find a loop that spends much of its time in evaluation, or in passes without gradients that its steps learn from."""
    text = "evaluation"
    ranks = [rank for rank in case.metrics.ranks if rank.loop > 0]
    if not ranks:
        return None
    compiling = [_compiling_for_evaluation(rank, case) for rank in ranks]
    spent = [max(rank.seconds["evaluation"] - once, 0.0) for rank, once in zip(ranks, compiling, strict=True)]
    share, once = (
        float(np.mean([one / rank.loop for one, rank in zip(spent, ranks, strict=True)])),
        float(np.mean(compiling)),
    )
    if share < limits.HEALTHY + limits.FLOOR:
        return None

    def saves(loop: Loop) -> Saving:
        """Evaluate less often, or on less data; at most, never."""
        seconds = loop.of_activity(EVALUATION)
        return Saving.of_scenarios([seconds * part for part in limits.SAVED], (EVALUATION,))

    compiled = FRAGMENTS["evaluation_compiled"].format(time=duration(once)) if once > 0 else ""
    words = {"share": percent(share), "total": duration(float(np.mean(spent))), "compiled": compiled}
    often = float(np.mean(case.loop.of_activity(EVALUATION) > 0)) if case.loop is not None else 0.0
    # An evaluation switches the model to eval() mode, and comes less often.
    if often > limits.MAJORITY - limits.SHOWN and not case.metrics.recorded(EvalMode).count:
        text, words["every"] = GENERATION, "each" if often > limits.CLOSE else "every second"
    words["how"] = FRAGMENTS[f"evaluation_{case.trainer}"] if case.trainer else case.stack.evaluation
    words["graphs"] = FRAGMENTS["evaluation_graphs"] if any(rank.forward_only for rank in ranks) else ""
    return Found(
        text, words, (Evidence("time in evaluation", round(share, 4), unit="share"),), share,
        saves=saves, doubt=MAY_BE_NEEDED,
        where=_lines_of_evaluation(case),
    )  # fmt: skip


def _lines_of_evaluation(case: Case) -> tuple[Location, ...]:
    """Return the lines that evaluate; samples of an evaluation that only model.eval() shows lie outside the phases."""
    stacks = [one for one in case.metrics.samples.stacks if one.phase in BESIDE_THE_PHASES]
    found = [one for one in stacks if one.phase == "evaluation"] or [
        one for one in stacks if not case.seen.activity(one)
    ]
    lines = Lines.of(map(case.seen.before_model, found))
    return lines.locations(lines.weights(), case.metrics, least=1)


def _compiling_for_evaluation(rank: Rank, case: Case) -> float:
    """Return the seconds in which functions were compiled during evaluation, which evaluating less often does not save."""
    own = [one for one in case.metrics.recorded(Compile).of(rank.name) if rank.start <= one.start <= rank.end]
    if not own or not len(rank.steps):
        return 0.0
    # Between two training steps nothing is evaluated.
    train, ends = np.equal(rank.steps.mode, TRAIN), np.array([one.end for one in own])
    before = np.searchsorted(rank.steps.start, ends * 1e6, side="right") - 1
    evaluates = ~train[np.maximum(before, 0)] | ~train[np.minimum(before + 1, len(train) - 1)]
    starts, ends = np.array([one.start for one in own])[evaluates], ends[evaluates]
    return float(Covered.by(starts, ends).before[-1])
