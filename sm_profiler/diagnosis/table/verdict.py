"""The verdict on a ledger: repair the cause with the largest certain gain, ask again, until nothing is worth it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.blocks import Blocks
from sm_profiler.diagnosis.classes import NO_CAUSE, Class, class_named
from sm_profiler.diagnosis.confidence import CLOSE_TO_FLOOR, RIVALLED, Confidence
from sm_profiler.diagnosis.extensions import more_causes
from sm_profiler.diagnosis.ledger import USEFUL, Ledger
from sm_profiler.diagnosis.model import Evidence, Finding, Gain, Interval, Verdict
from sm_profiler.diagnosis.repairing import Saving, Trial, repaired_in_turn
from sm_profiler.diagnosis.table.causes import CAUSES, Cause, Repair, listed
from sm_profiler.diagnosis.table.patterns import long_steps
from sm_profiler.diagnosis.table.whatif import Steps
from sm_profiler.formatting import percent, plural


def diagnose(ledger: Ledger, causes: Sequence[Cause] | None = None) -> Verdict:
    """Return the verdict on a ledger.

    Args:
        ledger: the ledger.
        causes: what to look for; default: `CAUSES`, and the causes of other packages.
    """
    count = len(ledger.common_steps) if ledger.ranks else 0
    whole = Steps.of(ledger) if count >= limits.MIN_STEPS and ledger.totals.duration > 0 else None
    findings = _findings(whole, ledger, (*CAUSES, *more_causes()) if causes is None else causes) if whole else []
    findings = [*findings, *_ended_early(ledger)] or [_without_cause(whole, ledger, count)]
    main, *also = findings
    columns = (Evidence("columns", ledger.columns),) if ledger.columns else ()
    evidence = (*main.evidence[:2], *columns, *main.evidence[2:], *_about(whole, ledger, count))
    return Verdict(replace(main, evidence=evidence), tuple(also))


def _findings(whole: Steps, ledger: Ledger, causes: Sequence[Cause]) -> list[Finding]:
    """Return the causes whose repair is worth it, the one that leads first."""
    found, known = [], set[tuple[str, tuple[str, ...]]]()  # what has been repaired is found once for the same ranks
    for best in repaired_in_turn(whole, lambda steps: _tried(causes, steps, ledger, known)):
        cause, repair = best.repaired
        known.add((cause.kind, repair.ranks))
        found.append(best)
    findings = [_finding(one, whole, len(ledger.ranks)) for one in found]
    if any(one.worth >= limits.CLOSE * found[0].worth for one in found[1:]) and findings[0].confidence == "high":
        findings[0] = replace(findings[0], confidence=Confidence("medium", RIVALLED))
    return findings


def _tried(
    causes: Sequence[Cause], steps: Steps, ledger: Ledger, known: Collection[tuple[str, tuple[str, ...]]]
) -> Iterator[Trial[tuple[Cause, Repair], Steps]]:
    for cause in causes:
        repair = cause.repair(steps, ledger)
        if repair is not None and (cause.kind, repair.ranks) not in known:
            saved, certain = _gain(steps, repair)
            part = steps.seconds_of(repair.steps) / steps.seconds_of()
            yield Trial(
                (cause, repair), steps, repair.after, saved, certain, _confidence(repair, certain, ledger), part
            )


def _gain(before: Steps, repair: Repair) -> tuple[Interval, float]:
    """Return the share of the time that a repair saves, of the steps that it is about, and the share it certainly saves."""
    rows = slice(None) if repair.steps is None else repair.steps
    length = before.length[rows]
    scenarios = (repair.least or repair.after, repair.after, repair.most or repair.after)
    low, value, high = (before.saved(after, repair.steps) for after in scenarios)
    if value <= 0:
        return Interval(0.0, 0.0, 0.0), 0.0
    blocks, saved = Blocks.of(length), length - repair.after.length[rows]
    if not repair.certain:  # of what came by chance, there might have been less
        low = min(low, value - blocks.error_of_part(blocks.sums(saved))[0])
    saving = Saving(saved, min(low / value, 1.0), max(high / value, 1.0), error=before.graph.error / value)
    found, certain = saving.share(saved, blocks, length)
    if repair.most is repair.after:  # there is no more to save
        most = max(high, value) * (1 + before.graph.error / value)
        found = Interval(found.low, found.value, max(min(found.high, most), found.value))
    return found, certain


def _confidence(repair: Repair, certain: float, ledger: Ledger) -> Confidence:
    """Return how sure a finding is: by its distance from the floor, and by what is known of the steps."""
    if certain < limits.FAR:
        return Confidence("low", CLOSE_TO_FLOOR)
    if not repair.certain and ledger.totals.coverage < limits.SEEN:
        return Confidence("medium", "what the steps spend their time on was not recorded")
    return Confidence("high")


def _finding(found: Trial[tuple[Cause, Repair], Steps], whole: Steps, ranks: int) -> Finding:
    (cause, repair), total = found.repaired, whole.seconds_of()
    words = {**_about_ranks(repair, ranks), **repair.words}
    rounded = tuple(
        replace(one, value=round(one.value, 4)) if isinstance(one.value, float) else one for one in repair.evidence
    )
    numbers = [] if repair.steps is None else found.before.graph.steps[repair.steps].tolist()
    part = found.part * found.before.seconds_of() / total
    gain = Gain.of_share(found.saved, total / len(whole.length), total, part, "steps" if numbers else "loop")
    return Finding(
        class_named(cause.kind), cause.headline.format_map(words), rounded, cause.advice.format_map(words), found.saved.value * part,
        confidence=found.confidence, gain=gain, ranks=repair.ranks, stage=repair.stage,
        steps=(numbers[0], numbers[-1]) if numbers else None,
    )  # fmt: skip


def _about_ranks(repair: Repair, count: int) -> Mapping[str, object]:
    """Return the words of texts that name ranks."""
    names = repair.ranks
    ranks = listed(names) if names else "all ranks" if count > 1 else "the job"
    many = len(names) != 1
    return {
        "ranks": ranks, "Ranks": f"{ranks[0].upper()}{ranks[1:]}", "take": "take" if many else "takes",
        "their": "their" if many else "its", "wait": ", and the others waited" if names else "",
    }  # fmt: skip


def _about(whole: Steps | None, ledger: Ledger, count: int) -> tuple[Evidence, ...]:
    """Return numbers about the steps that were judged."""
    found = []
    if whole is not None and whole.start:
        found.append(Evidence("the first steps, which are long in every job", round(whole.start, 3), unit="s"))
    if whole is not None and len(ledger.ranks) > 1 and whole.even_speedup > 1:
        metric = "speedup if all ranks, stages and microbatches took the average time"
        found.append(Evidence(metric, f"{whole.even_speedup:.2f} times"))
    judged = count if whole is None else len(whole.length)
    found.append(Evidence("steps that all ranks have", judged, limits.MIN_STEPS, held="judged from"))
    if whole is not None:
        found.append(Evidence("mean step of the job", round(float(whole.length.mean()), 6), unit="s"))
    if ledger.before:
        found.append(Evidence("time before the first step", round(ledger.before, 3), unit="s"))
    return tuple(found)


def _ended_early(ledger: Ledger) -> tuple[Finding, ...]:
    """Return that ranks have no step where the others go on; rows of the last few steps may just be unwritten."""
    if len(ledger.ranks) < 2:
        return ()
    furthest = max((rank for rank in ledger.ranks), key=lambda rank: int(rank.steps[-1]))
    last = {rank.name: int(rank.steps[-1]) for rank in ledger.ranks}
    early = [name for name, step in last.items() if int((furthest.steps > step).sum()) >= limits.SAMPLES]
    if not early:
        return ()
    first = min(early, key=lambda name: last[name])
    named = [name for name in early if last[name] == last[first]]
    ranks = f"Rank {first} has" if len(named) == 1 else f"{plural(len(named), 'rank')} ({', '.join(named[:4])} …) have"
    return (
        Finding(
            Class.UNEQUAL_STEPS,
            f"{ranks} no step after {last[first]:,}, while rank {furthest.name} goes on to step {last[furthest.name]:,}.",
            (Evidence("ranks that end before the others", len(early)),),
            f"See how rank {first} ended (its log, its exit code), or whether its rows are missing.",
            ranks=tuple(named),
        ),
    )


def _without_cause(whole: Steps | None, ledger: Ledger, count: int) -> Finding:
    """Return that the training is healthy, or why that is unknown."""
    if count < limits.MIN_STEPS:
        return Finding(
            Class.INCONCLUSIVE,
            f"Too few steps to judge: all ranks have {count} in common, {limits.MIN_STEPS} are needed.",
            next_step="Record more steps, the same ones on every rank.",
            confidence="low",
        )
    waits = max(whole.saved(whole.level()) - whole.jitter, 0.0) if whole is not None else 0.0
    totals = ledger.totals
    beside = 1 - totals.useful - totals.share("evaluation")
    if totals.coverage >= limits.SEEN and not ledger.parts_only and beside < limits.USUAL and waits < limits.FLOOR:
        return Finding(
            Class.BALANCED,
            f"{percent(totals.useful)} of the time is computation, and no repair would save {percent(limits.FLOOR)} of it.",
            next_step="Nothing needs repair. To go faster, try lower precision, a larger batch, or faster hardware.",
        )
    reason = "No step takes any time: all seconds are 0." if whole is None else _reason(ledger, whole, waits)
    add = "Add a column operation, with a row for each part of the step, to see where its time goes"
    if ledger.parts_only:
        add = "Add a column with the time of whole steps, to see what else they take"
    elif totals.coverage >= limits.SEEN:
        add = (
            "Add columns with the work of each rank, such as tokens or samples, to see whether its time goes with them"
        )
    return Finding(
        Class.BALANCED,
        reason,
        next_step=f"{add}; or profile the training with 'sm-profiler run'.",
        confidence="low",
        label=NO_CAUSE,
    )


def _reason(ledger: Ledger, whole: Steps, waits: float) -> str:
    long = long_steps(whole.length_for_work)
    beyond = float((whole.length[long] - np.median(whole.length)).sum() / whole.seconds_of())
    if beyond >= limits.FLOOR:
        return (
            f"{plural(int(long.sum()), 'step')} {'take' if long.sum() > 1 else 'takes'} much longer than the others, {percent(beyond)} of "
            "the time, but so few may be chance; otherwise, nothing slows some steps or ranks more than others."
        )
    if waits >= limits.FLOOR:
        last = np.bincount(whole.local.argmax(axis=0)) / len(whole.length)
        most = int(last.argmax())
        return (
            f"With equal work in each step, the ranks would save {percent(waits)} of the time, which they wait for each other; what makes "
            f"them late is unknown. Rank {whole.ranks[most]} is the last most often, in {percent(last[most])} of the steps."
        )
    if ledger.parts_only:
        return (
            "No part of the steps is worth repairing, and nothing slows some steps or ranks more than others. How long whole steps "
            "take is not in the table, so what else they spend their time on is unknown."
        )
    if ledger.totals.coverage < limits.SEEN:
        return (
            f"Nothing slows some steps or ranks more than others. Where a step's time goes is known for {percent(ledger.totals.coverage)} "
            "of it, too little to call the training healthy."
        )
    rest = next(key for key in ledger.totals.activities if key not in USEFUL)
    return (
        f"No single cause is worth repairing, but only {percent(ledger.totals.useful)} of the time is computation; most of the rest "
        f"is {rest}."
    )
