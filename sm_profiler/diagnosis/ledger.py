"""The ledger of a training: every second of every step of every rank, in exactly one activity."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import attrs
import numpy as np

from sm_profiler.diagnosis.table.operations import Operations
from sm_profiler.formats.columns import Floats, Ints

UNSEEN = "unseen"  # time that nothing recorded explains
STEP = "step"  # a step of which only the length is known
TRANSFER = "communication"
MEETING = "waiting for other ranks"
START = "start"  # before the first step
UNKNOWN = frozenset({UNSEEN, STEP})
USEFUL = frozenset({"forward", "backward", "optimizer", "compute", "compiled", "waiting for results"})


@attrs.frozen(eq=False)
class RankLedger:
    """The ledger of one rank. Make it with `of`, which keeps the sums right.

    Attributes:
        name: the rank's name, such as `3` or `algo-1-3`.
        steps: number of each step, ascending.
        length: seconds of each step, from its end to the end of the step before.
        seconds: activity → seconds of each step; over all activities they add up to `length`.
        stage: pipeline stage of the rank; "" if it has none.
    """

    name: str
    steps: Ints
    length: Floats
    seconds: Mapping[str, Floats]
    stage: str = ""

    @classmethod
    def of(
        cls, name: str, steps: Ints, length: Floats, seconds: Mapping[str, Floats], *, stage: str = ""
    ) -> RankLedger:
        """Return a ledger in which each second is counted once.

        Activities that together exceed a step's length are scaled down to it, because they overlapped; what they leave of
        it is `unseen`. Negative and infinite values count as nothing.
        """
        length = _amounts(length)
        known = {key: _amounts(values) for key, values in seconds.items() if key != UNSEEN}
        total = np.sum(list(known.values()), axis=0) if known else np.zeros(len(length))
        fits = np.where(total > length, length / np.maximum(total, np.where(length > 0, length, 1.0)), 1.0)
        known = {key: values * fits for key, values in known.items() if values.any()}
        total = np.sum(list(known.values()), axis=0) if known else np.zeros(len(length))
        unseen = np.maximum(length - total, 0.0)
        if unseen.sum() > 0:
            known[UNSEEN] = unseen
        return cls(name, np.asarray(steps, np.int64), length, known, stage)


def _amounts(values: Floats) -> Floats:
    return np.nan_to_num(np.maximum(np.asarray(values, np.float64), 0.0), posinf=0.0)


@attrs.frozen
class RankTotals:
    """The sums of one rank: its name, its number of steps, and seconds by activity."""

    name: str
    steps: int
    seconds: Mapping[str, float]


@attrs.frozen
class Totals:
    """The sums of a ledger, as reports show them."""

    ranks: tuple[RankTotals, ...]

    @cached_property
    def duration(self) -> float:
        """Seconds of all ranks."""
        return sum(sum(rank.seconds.values()) for rank in self.ranks)

    @cached_property
    def activities(self) -> tuple[str, ...]:
        """All activities, the most expensive first, what is unseen last."""
        sums: dict[str, float] = {}
        for rank in self.ranks:
            for key, spent in rank.seconds.items():
                sums[key] = sums.get(key, 0.0) + spent
        return tuple(sorted(sums, key=lambda key: (key in UNKNOWN, -sums[key], key)))

    def share(self, *activities: str) -> float:
        """Return the share of the time that some activities have together, 0 to 1."""
        spent = sum(rank.seconds.get(key, 0.0) for rank in self.ranks for key in activities)
        return spent / self.duration if self.duration > 0 else 0.0

    @property
    def coverage(self) -> float:
        """Share of the time that belongs to a known activity, 0 to 1; 0 without any time."""
        return 1 - self.share(*UNKNOWN) if self.duration > 0 else 0.0

    @property
    def useful(self) -> float:
        """Share of the time that the ranks spend computing, 0 to 1."""
        return self.share(*USEFUL)


@attrs.frozen(eq=False)
class Ledger:
    """The ledgers of all ranks of a job, and what else was recorded about its steps.

    Attributes:
        ranks: one ledger for each rank.
        operations: the operations of each rank in time, if they were recorded: what-if questions are answered by replaying
            them.
        before: seconds before the first step.
        facts: further columns of a table, name → (value for each rank and common step); they serve as evidence.
        source: what was read, for messages.
        columns: what the columns of a table were read as, and which were not used.
        parts_only: how long whole steps take was not recorded: what is no part that was counts as nothing.
    """

    ranks: tuple[RankLedger, ...]
    operations: Operations | None = None
    before: float = 0.0
    facts: Mapping[str, Floats] = attrs.field(factory=dict)
    source: str = ""
    columns: str = ""
    parts_only: bool = False

    @cached_property
    def totals(self) -> Totals:
        """Sums over all steps."""
        return Totals(
            tuple(
                RankTotals(
                    rank.name, len(rank.steps), {key: float(values.sum()) for key, values in rank.seconds.items()}
                )
                for rank in self.ranks
            )
        )

    @cached_property
    def common_steps(self) -> Ints:
        """Numbers of the steps that every rank has."""
        steps = [rank.steps for rank in self.ranks]
        common = steps[0] if steps else np.zeros(0, np.int64)
        for each in steps[1:]:
            common = common if np.array_equal(common, each) else np.intersect1d(common, each)
        return np.unique(common)

    def table(self, activity: str = "") -> Floats:
        """Return seconds by rank and common step, shape (ranks, steps): of an activity, or of the whole steps."""
        rows = []
        for rank in self.ranks:
            at = np.searchsorted(rank.steps, self.common_steps)
            values = rank.seconds.get(activity, np.zeros(len(rank.steps))) if activity else rank.length
            rows.append(values[at])
        return np.asarray(rows) if rows else np.zeros((0, 0))
