"""The verdict on a ledger: repair the cause with the largest certain gain, ask again, until nothing is worth it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.extensions import more_causes
from sm_profiler.diagnosis.ledger import USEFUL, Ledger
from sm_profiler.diagnosis.model import Interval
from sm_profiler.diagnosis.table.causes import CAUSES, Cause, Fact, Repair
from sm_profiler.diagnosis.table.whatif import Steps, gain

MOST_FINDINGS = 6


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
    """

    findings: tuple[Finding, ...]
    healthy: bool = False
    reason: str = ""
    step_s: float = 0.0
    steps: int = 0
    even: float = 1.0


def diagnose(ledger: Ledger, causes: Sequence[Cause] | None = None) -> Verdict:
    """Return the verdict on a ledger.

    Args:
        ledger: the ledger.
        causes: what to look for; default: `CAUSES`, and the causes of other packages.
    """
    if causes is None:
        causes = (*CAUSES, *more_causes())
    if not ledger.ranks or len(ledger.common_steps) < limits.MIN_STEPS:
        count = len(ledger.common_steps) if ledger.ranks else 0
        return Verdict(
            (),
            reason=f"Too few steps to judge: all ranks have {count} in common, {limits.MIN_STEPS} are needed.",
            steps=count,
        )
    if ledger.totals.duration <= 0:
        return Verdict((), reason="No step takes any time: all seconds are 0.", steps=len(ledger.common_steps))
    steps = whole = Steps.of(ledger)
    findings: list[Finding] = []
    while len(findings) < MOST_FINDINGS:
        found = [
            (gain(steps, repair.after, least=repair.least, steps=repair.steps), cause, repair)
            for cause in causes
            if all(one.kind != cause.kind for one in findings) and (repair := cause.repair(steps, ledger)) is not None
        ]
        found = [one for one in found if one[0].low >= limits.FLOOR]
        if not found:
            break
        found.sort(key=lambda one: -one[0].low)
        saved, cause, repair = found[0]
        rival = next((other.high for other, another, _ in found if another.kind != cause.kind), 0.0)
        seconds = float((steps.length - repair.after.length).sum())
        findings.append(_finding(cause, repair, saved, seconds, _confidence(saved, rival, ledger), ledger))
        steps = repair.after
    length, even = whole.length, whole.even().length
    waits = max(float(1 - whole.level().length.sum() / max(length.sum(), 1e-12)), 0.0)
    seen = ledger.totals.coverage >= limits.SEEN and ledger.totals.useful >= limits.SEEN
    healthy = not findings and seen and waits < limits.FLOOR
    reason = "" if findings else _reason(ledger, whole, waits, healthy=healthy)
    return Verdict(
        tuple(findings),
        healthy,
        reason,
        float(length.mean()),
        len(length),
        float(length.sum() / max(even.sum(), 1e-12)),
    )


def _confidence(saved: Interval, rival: float, ledger: Ledger) -> str:
    """Return how sure it is that this cause leads: by its distance from the floor, from the next cause, and by what is known."""
    if saved.low >= limits.SURELY * limits.FLOOR and rival < saved.low and ledger.totals.coverage >= limits.SEEN:
        return "high"
    return "medium" if saved.low >= limits.SURELY * limits.FLOOR else "low"


def _finding(cause: Cause, repair: Repair, saved: Interval, seconds: float, confidence: str, ledger: Ledger) -> Finding:
    words = {**_about_ranks(repair, len(ledger.ranks)), **repair.words}
    span = None
    if repair.steps is not None:
        numbers = repair.after.graph.steps[repair.steps]
        span = int(numbers[0]), int(numbers[-1])
    return Finding(
        cause.kind, cause.headline.format_map(words), cause.advice.format_map(words), saved, repair.facts, confidence,
        repair.ranks, repair.stage, span, seconds,
    )  # fmt: skip


def _about_ranks(repair: Repair, count: int) -> Mapping[str, object]:
    """Return the words of texts that name ranks and steps."""
    names = repair.ranks
    many = len(names) != 1
    listed = ", ".join(names[:-1]) + f" and {names[-1]}" if many and names else "".join(names)
    ranks = f"rank{'s' if many else ''} {listed}" if names else "all ranks" if count > 1 else "the job"
    given, when = repair.words, ""
    if "first" in given:
        when = f"Since step {given['first']}" if given["since"] else f"From step {given['first']} to {given['last']}"
    return {
        "ranks": ranks, "Ranks": f"{ranks[0].upper()}{ranks[1:]}", "When": when, "take": "take" if many else "takes",
        "their": "their" if many else "its", "wait": ", and the others waited" if names else "",
    }  # fmt: skip


def _reason(ledger: Ledger, whole: Steps, waits: float, *, healthy: bool) -> str:
    if healthy:
        return (
            f"{ledger.totals.useful:.0%} of the time is computation, and no repair would save {limits.FLOOR:.0%} of it."
        )
    if waits >= limits.FLOOR:
        last = np.bincount(whole.local.argmax(axis=0), minlength=len(whole.ranks)) / len(whole.length)
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
