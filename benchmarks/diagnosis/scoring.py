"""Scores: what was right in a diagnosis."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import attrs

from benchmarks.diagnosis.adapters import Named, Place
from benchmarks.diagnosis.manifest import NEAR, Case
from benchmarks.diagnosis.running import Outcome

QUIET, BUSY = "quiet", "busy"
SLACK = 0.05  # of a speedup that was measured once: two runs of one script differ by as much on a quiet machine
QUIET_LOAD = 2.0  # programs that want to run at once, the script among them; with more, two runs compare nothing


@attrs.frozen
class Score:
    """One row of the result: a case, what was named, and what of it is right.

    A value is None if the case does not ask for it or the profiler does not give it. A gain is open, and neither right nor
    wrong, if its interval holds only a part of what was measured.
    """

    case: str
    script: str
    about: str
    expected: str
    got: str
    confidence: str
    headline: str
    right: bool
    confidently_wrong: bool
    also: tuple[str, ...]
    also_right: bool | None
    line_right: bool | None
    line: str
    gain_right: bool | None
    gain: tuple[float, float] | None
    measured: float | None
    spread: tuple[float, float] | None
    overhead: float | None
    planted: dict[str, float]
    share: float = 0.0
    gain_open: bool = False
    error: str = ""
    machine: str = QUIET
    run: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return an object for JSON."""
        return attrs.asdict(self)


def score(outcome: Outcome) -> Score:
    """Compare a diagnosis with what was planted."""
    case, diagnosis = outcome.case, outcome.diagnosis
    if diagnosis is None:
        return Score(
            case.name, case.script, case.about, case.expected[0], "FAILED", "", "", False, False, (), None, None, "",
            None, None, None, None, None, {}, error=outcome.error,
        )  # fmt: skip
    case = case.as_measured(outcome.planted["shares"])
    main = diagnosis.main
    right = main.kind in case.expected
    others = tuple(finding.kind for finding in diagnosis.also)
    found = next((finding for finding in (main, *diagnosis.also) if finding.kind in case.expected), None)
    wrong = main.confidence == "high" and not right and main.kind not in case.accepted
    measured = outcome.speedups if case.gains and not case.healthy else []
    gain = found.speedup if found else None
    exact = (measured * 2)[:2] if outcome.has_diary else measured
    spread = spread_of(exact, outcome.load)
    judged = spread is not None and gain is not None and not case.also
    return Score(
        case=case.name,
        script=case.script,
        about=case.about,
        expected=case.expected[0],
        got=main.kind,
        confidence=main.confidence,
        headline=main.headline,
        right=right,
        confidently_wrong=wrong,
        also=others,
        also_right=any(kind in (main.kind, *others) for kind in case.also) if case.also else None,
        line_right=_line_right(case, found),
        line=_text(found.places[0]) if found and found.places else "",
        gain_right=inside(gain, spread) if judged else None,
        gain=gain,
        measured=round(median(measured), 3) if measured else None,
        spread=spread,
        gain_open=judged and inside(gain, spread) is None,
        overhead=outcome.overhead,
        planted={what: round(share, 3) for what, share in outcome.planted["shares"].items()},
        share=round(main.share, 3),
    )


def spread_of(measured: Sequence[float], load: float) -> tuple[float, float] | None:
    """Return the range in which the true speedup lies, as it was measured; None if it was not.

    `load` is that of the machine if two runs were compared. One such comparison on a busy machine shows nothing.
    """
    if not measured:
        return None
    if len(measured) > 1:
        return min(measured), max(measured)
    return (0.0, math.inf) if load > QUIET_LOAD else (measured[0] * (1 - SLACK), measured[0] * (1 + SLACK))


def inside(gain: tuple[float, float], spread: tuple[float, float]) -> bool | None:
    """Return whether a predicted interval holds all that was measured; None if it holds a part of it."""
    if gain[0] <= spread[0] and spread[1] <= gain[1]:
        return True
    return False if spread[1] < gain[0] or gain[1] < spread[0] else None


def _text(place: Place) -> str:
    return f"{place.file.rsplit('/', 1)[-1]}:{place.line} {place.function}"


def _line_right(case: Case, found: Named | None) -> bool | None:
    """Return whether the first line that the right finding names is a guilty one, or in a guilty function."""
    lines = case.guilty()
    if not lines or case.healthy or found is None:
        return None
    if not found.places:
        return False
    place = found.places[0]
    return place.file.endswith("train.py") and any(
        abs(place.line - line.number) <= NEAR or (line.function and line.function == place.function.rsplit(".", 1)[-1])
        for line in lines
    )


def part(values: Iterable[bool | None]) -> tuple[int, int]:
    """Return how many are true, of how many that are not None."""
    known = [value for value in values if value is not None]
    return sum(known), len(known)


def reliability(scores: Iterable[Score]) -> dict[str, tuple[int, int]]:
    """Return right verdicts and all verdicts by confidence."""
    groups = defaultdict(list)
    for judged in scores:
        groups[judged.confidence or "none given"].append(judged.right)
    return {name: part(groups[name]) for name in ("high", "medium", "low", "none given") if name in groups}
