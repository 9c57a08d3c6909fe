"""The verdict on a ledger: repair the cause with the largest certain gain, ask again, until nothing is worth it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.blocks import Blocks
from sm_profiler.diagnosis.confidence import CLOSE_TO_FLOOR, RIVALLED, Confidence
from sm_profiler.diagnosis.extensions import more_causes
from sm_profiler.diagnosis.ledger import USEFUL, Ledger
from sm_profiler.diagnosis.model import Interval
from sm_profiler.diagnosis.repairing import Saving, Trial, repaired_in_turn
from sm_profiler.diagnosis.table.causes import CAUSES, Cause, Fact, Repair, listed
from sm_profiler.diagnosis.table.whatif import Steps


@attrs.frozen
class Finding:
    """A cause of lost time.

    Attributes:
        kind: its class.
        headline, advice: texts.
        gain: share of the time that its repair saves, 0 to 1: of all steps, or of `steps`.
        facts: numbers behind it.
        confidence: low, medium or high.
        ranks: names of the ranks that cause it; empty if all do.
        stage: pipeline stage that causes it; "" if none does.
        steps: numbers of the first and the last step in which it happens; None for all steps.
        seconds: seconds of the whole recording that its repair saves.
    """

    kind: str
    headline: str
    advice: str
    gain: Interval
    facts: tuple[Fact, ...]
    confidence: str
    ranks: tuple[str, ...] = ()
    stage: str = ""
    steps: tuple[int, int] | None = None
    seconds: float = 0.0


@attrs.frozen
class Verdict:
    """The verdict on a ledger.

    Attributes:
        findings: causes of lost time, the one whose repair certainly gains most first.
        healthy: most of the time is known and useful, and nothing is worth repairing.
        reason: why there is no finding, in one sentence; "" if there is one.
        step_s: mean seconds of a step of the job.
        steps: number of steps judged.
        even: how many times as fast the steps would be if all ranks and microbatches took the same time.
        start: seconds of the first steps, which are left out because they are as long in every job.
    """

    findings: tuple[Finding, ...]
    healthy: bool = False
    reason: str = ""
    step_s: float = 0.0
    steps: int = 0
    even: float = 1.0
    start: float = 0.0


def diagnose(ledger: Ledger, causes: Sequence[Cause] | None = None) -> Verdict:
    """Return the verdict on a ledger.

    Args:
        ledger: the ledger.
        causes: what to look for; default: `CAUSES`, and the causes of other packages.
    """
    count = len(ledger.common_steps) if ledger.ranks else 0
    if count < limits.MIN_STEPS:
        reason = f"Too few steps to judge: all ranks have {count} in common, {limits.MIN_STEPS} are needed."
        return Verdict((), reason=reason, steps=count)
    if ledger.totals.duration <= 0:
        return Verdict((), reason="No step takes any time: all seconds are 0.", steps=count)
    whole = Steps.of(ledger)
    left = list((*CAUSES, *more_causes()) if causes is None else causes)
    found = []
    for best in repaired_in_turn(whole, lambda steps: _tried(left, steps, ledger)):
        left[:] = [cause for cause in left if cause.kind != best.repaired[0].kind]
        found.append(best)
    findings = [_finding(one, ledger) for one in found]
    if any(one.worth >= limits.CLOSE * found[0].worth for one in found[1:]) and findings[0].confidence == "high":
        findings[0] = attrs.evolve(findings[0], confidence=Confidence("medium", RIVALLED))
    even, waits = whole.saved(whole.even()), max(whole.saved(whole.level()) - whole.jitter, 0.0)
    seen = ledger.totals.coverage >= limits.SEEN and ledger.totals.useful >= limits.SEEN
    healthy = not findings and seen and waits < limits.FLOOR
    reason = "" if findings else _reason(ledger, whole, waits, healthy=healthy)
    length = whole.length
    return Verdict(
        tuple(findings), healthy, reason, float(length.mean()), len(length), 1 / (1 - min(even, limits.MOST_SAVED)),
        whole.start,
    )  # fmt: skip


def _tried(causes: Sequence[Cause], steps: Steps, ledger: Ledger) -> Iterator[Trial[tuple[Cause, Repair], Steps]]:
    for cause in causes:
        repair = cause.repair(steps, ledger)
        if repair is not None:
            saved, certain = _gain(steps, repair)
            part = steps.seconds_of(repair.steps) / steps.seconds_of()
            yield Trial((cause, repair), steps, repair.after, saved, certain, _confidence(certain, ledger), part)


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
    return saving.share(saved, blocks, length)


def _confidence(certain: float, ledger: Ledger) -> Confidence:
    """Return how sure a finding is: by its distance from the floor, and by what is known of the steps."""
    if certain < limits.SURELY * limits.FLOOR:
        return Confidence("low", CLOSE_TO_FLOOR)
    if ledger.totals.coverage < limits.SEEN:
        return Confidence("medium", "what the steps spend their time on was not recorded")
    return Confidence("high")


def _finding(found: Trial[tuple[Cause, Repair], Steps], ledger: Ledger) -> Finding:
    cause, repair = found.repaired
    words = {**_about_ranks(repair, len(ledger.ranks)), **repair.words}
    numbers = found.before.graph.steps[repair.steps].tolist() if repair.steps is not None else []
    return Finding(
        cause.kind, cause.headline.format_map(words), cause.advice.format_map(words), found.saved, repair.facts,
        found.confidence, repair.ranks, repair.stage, (numbers[0], numbers[-1]) if numbers else None,
        found.saved.value * found.before.seconds_of(repair.steps),
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


def _reason(ledger: Ledger, whole: Steps, waits: float, *, healthy: bool) -> str:
    if healthy:
        return (
            f"{ledger.totals.useful:.0%} of the time is computation, and no repair would save {limits.FLOOR:.0%} of it."
        )
    if waits >= limits.FLOOR:
        last = np.bincount(whole.local.argmax(axis=0)) / len(whole.length)
        most = int(last.argmax())
        return (
            f"With equal work in each step, the ranks would save {waits:.0%} of the time, which they wait for each other; what makes "
            f"them late is unknown. Rank {whole.ranks[most]} is the last most often, in {last[most]:.0%} of the steps."
        )
    if ledger.totals.coverage < limits.SEEN:
        return (
            f"Nothing slows some steps or ranks more than others. Where a step's time goes is known for {ledger.totals.coverage:.0%} "
            "of it, too little to call the training healthy."
        )
    rest = next(key for key in ledger.totals.activities if key not in USEFUL)
    return (
        f"No single cause is worth repairing, but only {ledger.totals.useful:.0%} of the time is computation; most of the rest "
        f"is {rest}."
    )
