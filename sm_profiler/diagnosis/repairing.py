"""The loop of every verdict: repair the best cause, ask the others again, until none is worth it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

import attrs

from sm_profiler.diagnosis.model import Interval

Repaired = TypeVar("Repaired")
State = TypeVar("State")


@attrs.frozen(eq=False)
class Trial(Generic[Repaired, State]):
    """A repair that was tried, and is worth it.

    Attributes:
        repaired: the cause.
        before, after: what there is to judge, without the repair and with it.
        saved: share of the time that the repair saves.
        certain: share that it certainly saves.
        worth: what decides which repair leads.
    """

    repaired: Repaired
    before: State
    after: State
    saved: Interval
    certain: float
    worth: float


def repaired_in_turn(
    state: State, worth_it: Callable[[State], Iterable[Trial[Repaired, State]]]
) -> Iterator[list[Trial[Repaired, State]]]:
    """Yield the repairs that are worth it, the best first, and go on with what is left after that one.

    Symptoms vanish with their cause, and no second is saved twice.

    Args:
        state: what there is to judge.
        worth_it: returns the repairs that are worth it, of causes that have not been repaired yet.
    """
    while tried := sorted(worth_it(state), key=lambda trial: -trial.worth):
        yield tried
        state = tried[0].after
