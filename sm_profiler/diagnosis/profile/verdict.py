"""The verdict on a profile: repair the cause with the largest certain gain, judge the others again, until none is worth it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import attrs
import numpy as np
from msgspec.structs import astuple, replace

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.classes import BEFORE_FAILURE, MOSTLY_IDLE, SHARED, Class
from sm_profiler.diagnosis.confidence import OTHERS_WORK, RIVALLED, Confidence, few_steps
from sm_profiler.diagnosis.extensions import more_judges
from sm_profiler.diagnosis.model import Evidence, Finding, Gain, Interval, Location, Verdict
from sm_profiler.diagnosis.profile.case import Case, Found
from sm_profiler.diagnosis.profile.causes import CAUSES, ProfileCause
from sm_profiler.diagnosis.profile.computing import (
    launches_unknown,
    part_of_share,
    waits_unseen,
)
from sm_profiler.diagnosis.profile.job import beginning_of
from sm_profiler.diagnosis.profile.ledger import EVALUATION, RUNNING, SAVING
from sm_profiler.diagnosis.profile.lines import (
    Shown,
    function_of,
    lines_of_samples,
    other_code,
    short_place,
)
from sm_profiler.diagnosis.profile.loop import Loop
from sm_profiler.diagnosis.profile.open import inconclusive, not_judged
from sm_profiler.diagnosis.profile.patterns import largest_slowdown, slow_since
from sm_profiler.diagnosis.repairing import Saving, Trial, not_certain, repaired_in_turn
from sm_profiler.diagnosis.words import ADVICE, FRAGMENTS, HEADLINES
from sm_profiler.folding import error_line
from sm_profiler.formats.recorded import Threads
from sm_profiler.formatting import duration, percent, plural
from sm_profiler.metrics import parts
from sm_profiler.metrics.job_metrics import Rank

NO_SINGLE_CAUSE = "No single cause"
NOTHING = Interval(0.0, 0.0, 0.0)
LATE = (Class.STRAGGLER, Class.MOVING_STRAGGLER, Class.GC_OUT_OF_PHASE)
Result = TypeVar("Result")


@attrs.frozen
class Candidate:
    """A cause that was recognized.

    Attributes:
        cause: the row of the table of causes.
        found: what its repair saves.
        finding: its sentences.
        foreign: the finding is another package's, with its own confidence.
    """

    cause: ProfileCause
    found: Found
    finding: Finding
    foreign: bool = False

    def confidence(self, case: Case, certain: float) -> str:
        """Return the confidence in a repair that certainly saves a share of the loop."""
        return self.finding.confidence if self.foreign else case.confidence(self.found, certain)

    def with_confidence(self, case: Case, certain: float) -> Finding:
        """Return the finding, without its gain, with its confidence."""
        return self.finding if self.foreign else replace(self.finding, confidence=self.confidence(case, certain))


@attrs.frozen
class Ranked:
    """A finding, and its worth: the share of the job that its repair certainly saves, if it is right."""

    finding: Finding
    certain: float


def decide(case: Case, broken: dict[str, str] | None = None) -> Verdict:
    """Find the causes of lost time: of those recognized, the one with the largest certain gain leads.

    It is repaired in the ledger, and the others are judged again, until none is worth it: symptoms vanish with their cause.

    Args:
        case: what there is to judge.
        broken: receives the names of causes that raise, each with one line about the error; default: they may raise.
    """
    found = _recognized(case, broken)
    ranked = rank_by_gain(found, case, broken)
    if not ranked:
        good = next((one for one in found if one.cause.kind.is_healthy), None)
        sure = "high" if case.ranks else "medium"
        main = good and (good.finding if good.foreign else replace(good.finding, confidence=Confidence(sure)))
        ranked = [Ranked(main or _healthy(case) or inconclusive(case), 0.0)]
    main, also = ranked[0].finding, [one.finding for one in ranked[1:]]
    if any(one.certain >= limits.CLOSE * ranked[0].certain for one in ranked[1:] if one.finding.of == main.of):
        main = not_certain(main, RIVALLED)
    main, *also = (_after_start(one, case, alone=not also) for one in (main, *also))
    return Verdict(main, tuple(also), tuple(not_judged(case)), case.shared_wait)


def _recognized(case: Case, broken: dict[str, str] | None) -> list[Candidate]:
    """Return all causes that are recognized, but for those of a loop that did not train."""
    found = []
    trained = not case.metrics.ranks or any(rank.train_steps for rank in case.metrics.ranks)

    def tried(name: str, find: Callable[[], Candidate | None]) -> None:
        candidate = _unless_broken(name, find, broken)
        if candidate is not None and (trained or candidate.found.of == "job"):
            found.append(candidate)

    for cause in CAUSES:
        tried(cause.name, lambda cause=cause: _candidate(cause, case))  # type: ignore[misc]
    for judge in more_judges():
        tried(judge.__name__, lambda judge=judge: _foreign(judge(case)))  # type: ignore[misc]
    return found


def _unless_broken(name: str, find: Callable[[], Result | None], broken: dict[str, str] | None) -> Result | None:
    """Return what a part of a cause finds; None, and its name in `broken`, if it raises."""
    try:
        return find()
    except Exception as error:
        if broken is None:
            raise
        broken[name] = error_line(error)
        return None


def _candidate(cause: ProfileCause, case: Case) -> Candidate | None:
    found = cause.find(case)
    return Candidate(cause, found, worded(cause, found, case)) if found is not None else None


def _foreign(finding: Finding | None) -> Candidate | None:
    """Return a finding of another package as a candidate: its repair saves the share of the time that it names."""
    if finding is None:
        return None
    if finding.confidence not in limits.PROBABILITY:
        raise ValueError(f"confidence {finding.confidence!r}")
    found = Found("", {}, finding.evidence, finding.share_of_time, of=finding.of)
    same = [cause for cause in CAUSES if cause.kind is finding.kind]
    stops, on_host = any(cause.stops for cause in same), any(cause.on_host for cause in same)
    return Candidate(
        ProfileCause(finding.kind, lambda _: None, stops=stops, on_host=on_host), found, finding, foreign=True
    )


def rank_by_gain(found: Sequence[Candidate], case: Case, broken: dict[str, str] | None = None) -> list[Ranked]:
    """Return the findings that are worth a repair, the one that certainly saves most first, with their gains.

    A cause whose saving cannot be computed is left out and named in `broken`, as in `decide`.
    """
    found = [one for one in found if not one.cause.kind.is_healthy]
    stopped = [Ranked(one.with_confidence(case, 1.0), math.inf) for one in found if one.cause.stops]
    growing = [one for one in found if one.cause.kind is Class.MEMORY_GROWTH]
    growth = [
        Ranked(found, one.found.share * limits.PROBABILITY[found.confidence])
        for one in growing
        for found in (one.with_confidence(case, one.found.share),)
    ]
    others = [one for one in found if not one.cause.stops and one not in growing]
    idle = [one for one in others if one.cause.kind is Class.IDLE]  # its pauses are repaired in the loop
    in_loop = [one for one in others if one.found.of == "loop" and one not in idle]
    ranked = [*growth, *_repaired([*idle, *in_loop], case, broken)]
    left = case.metrics.duration - sum(one.finding.gain.seconds.value for one in ranked if one.finding.gain)
    for one in others:
        if one.found.of == "job":
            ranked.append(of_job := _of_job(one, case, max(left, 0.0)))
            left -= of_job.finding.gain.seconds.value if of_job.finding.gain else 0.0
    return [*stopped, *sorted(ranked, key=lambda one: -one.certain)]


def _repaired(candidates: Sequence[Candidate], case: Case, broken: dict[str, str] | None) -> list[Ranked]:
    """Repair the best candidate, ask the others again, until none saves enough."""
    loop, ranked, left = case.loop, [], list(candidates)
    if loop is None:  # no steps to repair: the share of the time has to do
        for one in left:
            certain = one.found.share * limits.PART_SAVED_INDIRECT[0]
            if one.found.of == "loop" and certain >= limits.FLOOR:
                finding = one.with_confidence(case, certain)
                ranked.append(Ranked(finding, certain * limits.PROBABILITY[finding.confidence]))
        return ranked
    loop = _exceptions(loop, candidates, case)
    of_job = min(loop.whole / case.metrics.duration, 1.0) if case.metrics.duration > 0 else 1.0
    for best in repaired_in_turn(loop, lambda loop: _tried(left, loop, case, broken)):
        left.remove(best.repaired)
        if best.repaired.found.of == "loop":
            gain = _gain(_possible(best.saved, best.repaired), best.before)
            ranked.append(
                Ranked(replace(best.repaired.with_confidence(case, best.certain), gain=gain), best.worth * of_job)
            )
    return ranked


def _tried(
    candidates: Sequence[Candidate], loop: Loop, case: Case, broken: dict[str, str] | None
) -> Iterator[Trial[Candidate, Loop]]:
    for one in candidates:
        gain = _unless_broken(one.cause.name, partial(_repaired_in, loop, one, case), broken)
        if gain is None:
            continue
        after, share, certain = gain
        # a larger batch changes what is learned: only one twice as large is a repair without more experiments
        kept = 1 / 2 if one.found.larger_batch else 1.0
        yield Trial(one, loop, after, share, certain, one.confidence(case, certain), kept)


def _repaired_in(loop: Loop, one: Candidate, case: Case) -> tuple[Loop, Interval, float]:
    return loop.gain(_saving_of(one, case, loop))


def _exceptions(loop: Loop, candidates: Sequence[Candidate], case: Case) -> Loop:
    """Return the loop with what is known about exceptions: rare long rows, rows that are slower, ranks that are late."""
    slow = None
    kinds = {one.cause.kind for one in candidates}
    if Class.FAIL_SLOW in kinds and (change := largest_slowdown(case)) is not None:
        slow = slow_since(loop, int(change[1].iterations.index[change[2].at]))
    least = {}
    if not kinds.isdisjoint(LATE):
        least = {name: case.ledger.table(name).min(axis=0) for name in loop.left}
    return attrs.evolve(loop, long=case.long_rows, slow=slow, least=least)


def _saving_of(one: Candidate, case: Case, loop: Loop) -> Saving:
    """Return what the repair of a candidate saves: on the host, no more than the time in which the device is idle."""
    saving = one.found.saves(loop) if one.found.saves else None
    if saving is None:
        saving = part_of_share(loop, one.found.share, sure=not one.found.doubt)
    if saving.error is None and one.found.error and one.found.share > 0:
        error, bound = one.found.error / one.found.share, one.found.bound * float(loop.length.sum())
        saving = attrs.evolve(saving, error=error, bound=bound)
    host = one.cause.on_host
    saving = attrs.evolve(saving, evicts=one.cause.evicts and np.isinf(loop.idle))
    if one.cause.kind is Class.OPTIMIZER_BOUND:  # the host may only wait in it for the GPU to finish
        host = not any(rank.on_device for rank in case.ranks)
    if not host or not np.isfinite(loop.idle):
        return saving
    if one.cause.kind is not Class.HOST_BOUND:  # larger batches fill the GPU
        saving = saving.at_most(loop.idle + limits.FLOOR * loop.total)  # use is sampled, short pauses count as use
    total = float(saving.seconds.sum())
    certain = saving.low if saving.certain is None else saving.certain
    bound = max(loop.idle - limits.FAR * float(loop.length.sum()), 0.0) / total if total > 0 else 0.0
    return attrs.evolve(saving, certain=min(certain, bound))


def _possible(share: Any, one: Candidate) -> Interval:
    """Return what a repair saves: of a larger batch, no more than a step costs for each sample."""
    most = 1 - 1 / limits.BATCH_LARGER if one.found.larger_batch else 1.0
    return Interval(*(min(part, most) for part in (share.low, share.value, share.high)))


def _gain(found: Interval, loop: Loop) -> Gain:
    """Return the gain of a repair that saves a share of the loop."""
    return Gain.of_share(found, float(loop.length.sum()) / max(loop.steps, 1), loop.whole)


def _of_job(one: Candidate, case: Case, left: float) -> Ranked:
    """Return a finding about the whole job with what its repair saves of it."""
    whole, share = case.metrics.duration, one.found.share
    least, value = limits.PART_SAVED_INDIRECT if one.found.doubt else limits.SAVED[:2]
    if whole <= 0:
        return Ranked(one.with_confidence(case, share), share)
    most = beyond = whole * share
    if one.cause.kind is Class.INITIALIZATION_BOUND and (start := beginning_of(case.metrics)) is not None:
        beyond, most, (least, value) = start.excess, start.avoidable, limits.SAVED[:2]
    seconds = Interval(*(min(part, left) for part in (beyond * least, beyond * value, most)))
    speedup = Interval(*(min(part / whole, limits.MOST_SAVED) for part in astuple(seconds))).speedup
    # a start is paid once and a slow loop with every epoch: the start leads only if it is twice as large
    certain = max(seconds.low / whole, share * least * limits.MAJORITY)
    gain = Gain(NOTHING, NOTHING, speedup, None, seconds, "job")
    return Ranked(replace(one.with_confidence(case, certain), gain=gain), certain)


def priced(verdict: Verdict, per_hour: float | None) -> Verdict:
    """Return the verdict with the price of what each repair saves; `per_hour` are dollars for all nodes, None if unknown."""
    if per_hour is None or not math.isfinite(per_hour):
        return verdict

    def of(one: Finding) -> Finding:
        if one.gain is None:
            return one
        return replace(one, gain=replace(one.gain, usd=one.gain.seconds.times(per_hour / 3600)))

    return attrs.evolve(verdict, main=of(verdict.main), also=tuple(map(of, verdict.also)))


# --- words ----------------------------------------------------------------------------------------------------------


def worded(cause: ProfileCause, found: Found, case: Case) -> Finding:
    """Return a finding with its sentences; its confidence follows from what its repair saves."""
    words = {**found.words, "stack": case.stack}
    shown = Shown.of(case.metrics.samples)
    where = tuple(map(shown.location, found.where))
    first = _first_place(where) if cause.points else ""
    lost = found.share if cause.kind.costs_time else 0.0
    return Finding(
        cause.kind, case.metrics.with_hosts(HEADLINES[found.text].format_map(words)), found.evidence, f"{first}{ADVICE[found.advice].format_map(words)}".strip(),
        lost, found.of, where=where, ranks=found.ranks,
        larger_batch=found.larger_batch, label=found.label,
    )  # fmt: skip


def _first_place(where: Sequence[Location]) -> str:
    """Return the sentence about the function, or the line outside of any, that takes most of the lost time."""
    shares: dict[tuple[str, str], float] = {}
    for line in where:
        shares[function_of(line)] = shares.get(function_of(line), 0.0) + line.share
    most = max(shares, key=lambda key: shares[key], default=None)
    if most is None or shares[most] < limits.USUAL:  # one of several
        return ""
    first = next(line for line in where if function_of(line) == most)
    return FRAGMENTS["look_first"].format(place=short_place(first))


def _after_start(finding: Finding, case: Case, *, alone: bool) -> Finding:
    """Return a slow start with a healthy loop named as such, and as a trial run's if the job is short."""
    if finding.kind is not Class.INITIALIZATION_BOUND or not alone:
        return finding
    if case.metrics.duration < limits.SHORT_RUN_S:
        finding = not_certain(finding, "a short run")
    healthy = _healthy(case)
    if healthy is not None and healthy.label == healthy.kind.label:
        rest = f"{finding.headline[:1].lower()}{finding.headline[1:]}"
        finding = replace(finding, headline=HEADLINES["healthy_loop"].format(rest=rest))
    return finding


# --- health ---------------------------------------------------------------------------------------------------------


def _healthy(case: Case) -> Finding | None:
    """Return BALANCED if there are enough steps to judge from; it is open if too little of the time is computing."""
    if not case.ranks:
        return None
    computing = case.mean(
        lambda rank: sum(rank.share(key) for key in ("between", *(part.key for part in parts.phases())))
    )
    computing += case.totals.share(RUNNING)
    evaluation, long = (case.mean(lambda rank: rank.share("evaluation")), case.mean(lambda rank: rank.stall_share))
    beside, stretched = max(1 - computing - evaluation, 0.0), case.mean(_stretched)
    unexplained, unseen = min(beside + stretched, 1.0), waits_unseen(case)
    evidence = [Evidence("time inside training steps", round(computing, 4), unit="share")]
    if case.waits_known:
        wait = case.metrics.average_share("wait")
        evidence.append(Evidence("time in the training loop spent waiting for data", round(wait, 4), unit="share"))
    if evaluation > 0:
        evidence.append(Evidence("time in evaluation", round(evaluation, 4), unit="share"))
    if long >= limits.CLOSE * limits.FLOOR:
        evidence.append(Evidence("time lost in long steps", round(long, 4), unit="share"))
    if case.core_wait >= limits.FLOOR:
        evidence.append(Evidence("time the main thread waits for a core", round(case.core_wait, 4), unit="share"))
    words: dict[str, Any] = {
        "computing": percent(computing + evaluation), "beside": percent(beside), "unseen": percent(unseen),
        "stretched": FRAGMENTS["stretched"].format(share=percent(stretched)) if stretched >= limits.FLOOR else "",
        "why": _why_not_waiting(case), "waited": percent(case.shared_wait), "gpu": f"{case.gpu_mean or 0:.0f}",
        "threads": _idle_cores(case), "stack": case.stack, "compiler": "" if case.compiles else f"{case.stack.compiler}, ",
    }  # fmt: skip
    text, label = "healthy", Class.BALANCED.label
    where: tuple[Location, ...] = ()
    wanted = case.share_of(EVALUATION, SAVING)
    evaluates = wanted * limits.MAJORITY >= limits.FLOOR
    confidence = _confidence_in_health(case, unexplained, evaluates=evaluates)
    if evaluates:
        text, words = "healthy_evaluates", {**words, "computing": percent(computing), **_evaluating(case, wanted)}
    if unexplained >= limits.USUAL:
        text, label = "no_single_cause", NO_SINGLE_CAUSE
        where = lines_of_samples(case.metrics, other_code)
    if unseen >= limits.USUAL:
        text, confidence = "unseen_waits", Confidence("low", "what blocks a read is unknown")
    headline, advice = HEADLINES[text].format_map(words), ADVICE[text].format_map(words)
    if case.shared_wait >= limits.MAJORITY:
        headline, advice, label = HEADLINES["shared_machine"].format_map(words), ADVICE["shared_machine"], SHARED
    elif case.shared_wait >= limits.NOTICEABLE:
        headline, label = headline + FRAGMENTS["shared_besides"].format_map(words), SHARED
        advice = ADVICE["shared_machine"] if text == "healthy" else f"{ADVICE['shared_machine']} {advice}"
    gpu = case.gpu_mean
    if label == Class.BALANCED.label and gpu is not None and gpu < 100 * limits.MAJORITY:
        headline, advice, label = HEADLINES["gpu_mostly_idle"].format_map(words), ADVICE["gpu_mostly_idle"], MOSTLY_IDLE
        confidence = Confidence("low", "no cause explains it")
        evidence.append(
            Evidence("mean GPU use in the loop", round(gpu, 1), limits.BUSY, unit="percent", held="good from")
        )
    failed = label == Class.BALANCED.label and case.metrics.ending.failed
    advice, label = (ADVICE["failed"], BEFORE_FAILURE) if failed else (advice, label)
    shown = Shown.of(case.metrics.samples)
    where = tuple(map(shown.location, where))
    return Finding(Class.BALANCED, headline, tuple(evidence), advice, 0.0, "loop", confidence, where, label=label)


def _idle_cores(case: Case) -> str:
    """Return the words about cores that a training on the CPU leaves idle because its library has fewer threads."""
    alone = len(case.metrics.ranks) == 1 and not case.metrics.gpus and not case.ranks[0].on_device
    found = [one.args for one in case.metrics.recorded(Threads).longest if one.args.library_threads > 0]
    if not alone or not found:
        return ""
    threads, cores = (
        float(np.median(of)) for of in zip(*((one.library_threads, one.cores) for one in found), strict=True)
    )
    few = plural(int(threads), "thread")
    return FRAGMENTS["idle_cores"].format(threads=few, cores=plural(int(cores), "core")) if threads < int(cores) else ""


def _evaluating(case: Case, wanted: float) -> dict[str, str]:
    """Return the words about evaluating and saving, which users want, and may want less often."""
    shares = {"evaluat": case.share_of(EVALUATION), "sav": case.share_of(SAVING)}
    shown = {verb: share for verb, share in shares.items() if share >= wanted * limits.SHOWN}
    control = case.stack.less_evaluation if case.trainer == "" else FRAGMENTS[f"less_evaluation_{case.trainer}"]
    *others, last = (f"{verb}es {percent(share)}" for verb, share in shown.items())
    return {
        "spent": f"{''.join(f', {one}' for one in others)} and {last}",
        "doing": " and ".join(f"{verb}ing" for verb in shown).capitalize(),
        "half": percent(wanted * limits.MAJORITY), "control": f" ({control})" if control else "",
    }  # fmt: skip


def _stretched(rank: Rank) -> float:
    """Return the share of the loop by which long steps compute longer than usual ones."""
    iterations, long = rank.iterations, rank.stalls.long & rank.iterations.known
    usual = iterations.known & ~long
    if not long.any() or not usual.any() or rank.loop <= 0:
        return 0.0
    phases = [iterations.of(part.key) for part in parts.phases()]
    beyond = sum(float((spent[long] - np.median(spent[usual])).sum()) for spent in phases)
    return min(max(beyond, 0.0) * rank.scale / rank.loop, 1.0)


def _why_not_waiting(case: Case) -> str:
    """Return why waiting for data is not named as the cause although it is long; "" if it is not."""
    share = case.metrics.average_share("wait")
    if not case.waits_known or share < limits.HEALTHY:
        return ""
    hidden = "hidden_waits" if case.metrics.gpus else "short_waits"
    name = "rare_waits" if case.wait < limits.HEALTHY else hidden
    wait = duration(case.mean(lambda rank: rank.mean("wait", without_stalls=False)))
    return FRAGMENTS[name].format(share=percent(share), usual=percent(case.wait), wait=wait)


def _confidence_in_health(case: Case, unexplained: float, *, evaluates: bool) -> Confidence:
    """Return the confidence that nothing needs repair: never high, as the records do not show what the passes could leave out.

    Other programs that take the cores stretch what computes, and so hide what waits.
    """
    much = "much of the loop is unexplained"
    if case.shared_wait >= limits.NOTICEABLE:
        return Confidence("low", OTHERS_WORK)
    if unexplained >= limits.MAJORITY:
        return Confidence("low", much)
    blind = not case.waits_known and not case.metrics.gpus and not any(rank.waits_seen for rank in case.ranks)
    others = case.shared_wait >= limits.FLOOR or largest_slowdown(case) is not None  # that is none of the script's
    reasons = (
        (case.steps < limits.STEADY_STEPS, few_steps(case.steps)),
        (blind, "waits for data were not recorded"),
        (others, "something else slows the steps"),
        (unexplained >= limits.USUAL, much),
        (launches_unknown(case), "the cost of launches is unknown"),
        (case.gpu_mean is not None and case.gpu_mean < limits.BUSY, "the GPU is idle for a part of the time"),
    )
    unmeasured = (
        "how often it must evaluate is not known" if evaluates else "how well the model computes was not measured"
    )
    return Confidence("medium", next((text for applies, text in reasons if applies), unmeasured))
