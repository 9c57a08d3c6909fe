"""Steps of each verdict: compute what repairs save, repair the best cause, ask the others again, until none is worth it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import NormalDist
from typing import Generic, TypeVar

import attrs
import numpy as np
from msgspec.structs import replace

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.blocks import Blocks
from sm_profiler.diagnosis.confidence import Confidence
from sm_profiler.diagnosis.model import Finding, Interval
from sm_profiler.formats.columns import Floats

Repaired = TypeVar("Repaired")
State = TypeVar("State")
_SIGMAS = NormalDist().inv_cdf((1 + limits.INTERVAL) / 2)


@attrs.frozen(eq=False)
class Saving:
    """Seconds that a repair saves.

    Attributes:
        seconds: of each row of the loop.
        low, high: factors of the saving if the repair works less well, or better, than usual; low <= 1 <= high.
        taken: activities that the seconds are taken from, in this order; none: from all in proportion.
        strict: take them from these activities only.
        certain: factor of what is saved in any case; default: `low`.
        error: standard error of the seconds, as a share of them; default: that of the finding.
        bound: seconds in which its samples lie; however few they are, no more of them can be saved.
        evicts: other code runs between the parts of a step, which find their caches empty after it.
        once: seconds of what happens once, in the first steps, that it saves at least, usually and at most.
    """

    seconds: Floats
    low: float = 1.0
    high: float = 1.0
    taken: tuple[str, ...] = ()
    strict: bool = False
    certain: float | None = None
    error: float | None = None
    bound: float = math.inf
    evicts: bool = False
    once: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def at_most(self, seconds: float) -> Saving:
        """Return the saving with no more seconds in all than these, in any case."""
        total = float(self.seconds.sum())
        if total <= 0 or total * self.high <= seconds:
            return self
        part = min(max(seconds, 0.0) / total, 1.0)
        value = total * part
        low = min(self.low * total / value, 1.0) if value > 0 else 1.0
        return attrs.evolve(
            self, seconds=self.seconds * part, low=low, high=max(seconds / value, 1.0) if value > 0 else 1.0
        )

    @classmethod
    def of_scenarios(cls, scenarios: Sequence[Floats], taken: tuple[str, ...]) -> Saving:
        """Return the saving of a model's scenarios: at least, usually, and at most, from these activities only."""
        low, value, high = (np.maximum(one, 0.0) for one in scenarios)
        total = float(value.sum())
        if total <= 0:
            return cls(value, taken=taken, strict=True)
        return cls(value, min(float(low.sum()) / total, 1.0), max(float(high.sum()) / total, 1.0), taken, strict=True)

    def share(self, saved: Floats, blocks: Blocks, varying: Floats) -> tuple[Interval, float]:
        """Return the share of the steps that a repair saves, and the share that it certainly saves.

        The interval covers what another run of the training would show; the certain share is a matter of this run alone.

        Args:
            saved: the seconds that it saves of each row, of what earlier repairs left.
            blocks: blocks of the rows as they were before any repair.
            varying: seconds of each row, without what does not vary from run to run.
        """
        seconds, whole = blocks.sums(saved), blocks.seconds
        total = float(whole.sum())
        value = float(seconds.sum()) / total
        certain = value * (self.low if self.certain is None else self.certain)
        # This run is as it was; the repaired one has other draws of what is left of each step.
        above = blocks.error_of_mean(whole - seconds)[1] * float(blocks.sizes.sum()) / total
        noise = _spread(varying - saved) * (1 - value) if value > 0 else 0.0
        chance = value * (self.error or 0.0) * _SIGMAS
        low = value - math.hypot(above, noise, chance, value * (1 - self.low))
        # Another run may be slower for other reasons; what this one lost for certain, but for chance, it lost.
        low = max(low, certain - value * (self.error or 0.0))
        low = value - math.hypot(value - low, value * (1 - limits.SAVED[0]))
        # The rest differs by chance in another run, and what evicts its caches does so more often, the more of it there is.
        most = min(value * self.high, 1.0)
        faster = limits.EVICTED * most if self.evicts else _spread(varying)
        unseen = min(chance, max(self.bound / total - value, 0.0))
        high = most + math.hypot(blocks.error_of_part(seconds)[1], unseen, faster * (1 - most))
        return Interval(min(max(low, 0.0), value), value, max(min(high, limits.MOST_SAVED), value)), certain


def all_but(spent: Floats, others: float, kept: Sequence[float], taken: tuple[str, ...]) -> Saving:
    """Return what is saved of an activity that keeps a part of a step, at worst, usually and at best.

    Args:
        spent: seconds of each row.
        others: seconds of all rows without the activity.
        kept: share of the step that the activity still takes after the repair.
        taken: names of the activity.
    """
    total = max(float(spent.sum()), 1e-12)
    return Saving.of_scenarios([spent * max(1 - part / (1 - part) * others / total, 0.0) for part in kept], taken)


def _spread(rows: Floats) -> float:
    """Return the difference of the median row between stretches of a loop, as a share: drift and other load."""
    if len(rows) < limits.STRETCHES:
        return limits.REPEAT
    medians = np.asarray([np.median(one) for one in np.array_split(rows[:-1], limits.STRETCHES)])
    mean = float(medians.mean())
    found = float(medians.std()) / mean if mean > 0 else 0.0
    return min(max(found, limits.REPEAT), limits.REPEAT_MOST)


@attrs.frozen(eq=False)
class Trial(Generic[Repaired, State]):
    """A repair that was tried.

    Attributes:
        repaired: the cause.
        before, after: what there is to judge, without the repair and with it.
        saved: share of the time that the repair saves.
        certain: share that it certainly saves.
        confidence: low, medium or high, that the cause is the right one.
        part: of the whole time that `saved` is a share of, or of the saving that does not change the training.
    """

    repaired: Repaired
    before: State
    after: State
    saved: Interval
    certain: float
    confidence: str
    part: float = 1.0

    @property
    def worth(self) -> float:
        """The share of the whole time that it certainly saves, if it is right; the largest leads."""
        return self.certain * self.part * limits.PROBABILITY[self.confidence]


def not_certain(finding: Finding, reason: str) -> Finding:
    """Return a finding with no more than medium confidence."""
    return replace(finding, confidence=Confidence("medium", reason)) if finding.confidence == "high" else finding


def repaired_in_turn(
    state: State, tried: Callable[[State], Iterable[Trial[Repaired, State]]]
) -> Iterator[Trial[Repaired, State]]:
    """Yield the repair that is worth most, and go on with what is left after it, until none saves enough.

    Symptoms vanish with their cause, and no second is saved twice. Of what saves less than the floor, chance may be all.

    Args:
        state: what there is to judge.
        tried: tries the repairs of the causes that have not been repaired yet.
    """
    while enough := [one for one in tried(state) if min(one.certain, one.saved.low) >= limits.FLOOR]:
        best = max(enough, key=lambda trial: trial.worth)
        yield best
        state = best.after
