"""A training loop as seconds by activity and step, and what repairs save of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.blocks import Blocks
from sm_profiler.diagnosis.ledger import TRANSFER, UNSEEN, Ledger, RankLedger
from sm_profiler.diagnosis.model import Interval
from sm_profiler.diagnosis.profile.ledger import EVALUATION, NAMED, OTHER, row_keys, rows_of_rank
from sm_profiler.diagnosis.repairing import Saving
from sm_profiler.formats.columns import Floats, Ints, Mask
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.job_metrics import Rank

_WAITS = (
    TRANSFER,
    "backward",
    "optimizer",
    "forward",
    OTHER,
    UNSEEN,
)  # in which a rank waits for another, likeliest first


@attrs.frozen(eq=False)
class Loop:
    """The steps of a loop, averaged over ranks, as they are or after some repairs.

    If ranks wait for each other, all of them pay for what one of them saves, logs or collects.

    Attributes:
        index: number of the training step that ends each row; the last row holds what follows the last step.
        left: activity → seconds of each row.
        length: seconds of each row before any repair.
        whole: seconds of the whole loop.
        once: seconds of it that happen once, in the first steps: no repair of later ones saves them.
        idle: seconds in which the device is idle; nothing that the host does beside its work costs more.
        saved: share of the loop that the repairs so far save.
        long: rows that are rare exceptions; what they take beyond usual rows is no property of an activity.
        slow: rows since the steps became slower; the same.
        least: activity → seconds of each row on the rank that spends least on it, if ranks delay each other.
    """

    index: Ints
    left: Mapping[str, Floats]
    length: Floats
    whole: float
    once: float = 0.0
    idle: float = math.inf
    saved: float = 0.0
    long: Mask | None = None
    slow: Mask | None = None
    least: Mapping[str, Floats] = attrs.field(factory=dict)

    @classmethod
    def of(cls, ledger: Ledger, *, idle: float = 1.0, whole: float | None = None, in_step: bool = False) -> Loop | None:
        """Return the loop of a ledger; None with too few common steps.

        Args:
            ledger: the ledger.
            idle: share of the time in which the device is idle.
            whole: seconds of the whole loop, if the ledger lacks some of its steps.
            in_step: ranks wait for each other.
        """
        if len(ledger.common_steps) <= limits.SAMPLES:
            return None
        names = [name for name in ledger.totals.activities if name]
        left = {name: ledger.table(name).mean(axis=0) for name in names}
        length = np.asarray(np.sum(list(left.values()), axis=0))
        for name in (name for name in NAMED if in_step and name in left):
            waited = ledger.table(name).max(axis=0) - left[name]
            for other in (other for other in _WAITS if other in left):
                found = np.minimum(left[other], waited)
                left[name], left[other], waited = left[name] + found, left[other] - found, waited - found
        total = float(length.sum())
        if total <= 0:
            return None
        found = cls(ledger.common_steps, left, length, total if whole is None else whole)
        return attrs.evolve(found, idle=idle * total if idle < 1 else math.inf)

    @property
    def steps(self) -> int:
        """Training steps among the rows."""
        return len(self.index) - 1

    def of_activity(self, *names: str) -> Floats:
        """Return the seconds of some activities in each row."""
        rows = [self.left[name] for name in names if name in self.left]
        return np.asarray(np.sum(rows, axis=0)) if rows else np.zeros(len(self.index))

    def usual(self, *names: str) -> Floats:
        """Return the seconds of some activities as all steps and ranks have them: without what is an exception."""
        seconds = self.of_activity(*names)
        if any(name in self.least for name in names):
            seconds = np.minimum(seconds, np.sum([self.least[name] for name in names if name in self.least], axis=0))
        return self.as_usual(seconds)

    def around(self, spent: Floats) -> Floats:
        """Return by how much rows with an activity, and the next of each, are longer without it than others.

        It is what prepares an occurrence, and what that has thrown out of caches; more than itself has another cause.
        """
        rows, found = spent > 0, np.zeros(len(spent))
        near = rows | np.append(False, rows[:-1])
        if np.count_nonzero(~near) >= thresholds.MIN_STEPS and near.any():
            rest = self.of_activity(*(name for name in self.left if name not in NAMED))
            found[near] = np.clip(rest[near].mean() - rest[~near].mean(), 0.0, spent[near].mean())
        return found

    def as_usual(self, seconds: Floats) -> Floats:
        """Return seconds of each row, in rows that are exceptions no more than usual rows have."""
        for rows in (self.long, self.slow):
            if rows is not None and rows.any() and not rows.all():
                seconds = np.where(rows, np.minimum(seconds, np.median(seconds[~rows])), seconds)
        return seconds

    @cached_property
    def now(self) -> Floats:
        """Seconds of each row."""
        return np.asarray(np.sum(list(self.left.values()), axis=0))

    @property
    def training(self) -> Floats:
        """Seconds of each row without evaluation."""
        return self.now - self.of_activity(EVALUATION)

    @property
    def total(self) -> float:
        """Seconds of all rows."""
        return float(self.now.sum())

    def share(self, *names: str) -> float:
        """Return the share that some activities have of the loop as it was."""
        return float(self.of_activity(*names).sum() / self.length.sum())

    def named(self, part: str) -> tuple[str, ...]:
        """Return the activities of a part of a step."""
        if part == "declared":
            return tuple(name for name in self.left if name.startswith("phase "))
        return {
            "wait": ("waiting for data",),
            "outside": ("other code", "unseen"),
            "between": ("other code", "unseen"),
        }.get(part, (part,))

    def placed(self, index: Ints, values: Floats) -> Floats:
        """Return values of numbered steps at their rows, 0 elsewhere and for what is not finite and positive."""
        found = np.zeros(len(self.index))
        at = np.minimum(np.searchsorted(self.index, index), len(self.index) - 1)
        known = self.index[at] == index
        found[at[known]] = np.maximum(np.nan_to_num(values[known]), 0.0)
        return found

    def filled(self, index: Ints, values: Floats, share: float) -> Floats:
        """Return values of some steps at their rows, and the same share of the length of steps of which none is known."""
        known = np.isin(self.index, index)
        return np.where(known, self.placed(index, values), share * self.length * (np.arange(len(known)) < self.steps))

    def without(self, saving: Saving) -> tuple[Loop, Floats]:
        """Return the loop after a repair, and the seconds of each row that it saves: no second is saved twice."""
        left, missing = dict(self.left), np.maximum(np.nan_to_num(saving.seconds), 0.0)
        held = np.zeros(len(missing))
        for name in saving.taken:
            row = left.get(name)
            if row is not None:
                found = np.minimum(row * limits.MOST_SAVED, missing)
                left[name], missing, held = row - found, missing - found, held + found
        if not saving.strict:  # what these activities never held lies in others
            rest = np.asarray(
                np.sum([row for name, row in left.items() if name not in saving.taken] or [held * 0], axis=0)
            )
            share = np.where(rest > 0, np.minimum(missing / np.where(rest > 0, rest, 1.0), limits.MOST_SAVED), 0.0)
            left |= {name: row * (1 - share) for name, row in left.items() if name not in saving.taken}
            held = held + rest * share
        saved = float(held.sum() / self.length.sum())
        idle = max(self.idle - float(held.sum()), 0.0)
        return attrs.evolve(self, left=left, idle=idle, saved=self.saved + saved), held

    @cached_property
    def blocks(self) -> Blocks:
        """Blocks of the rows as they were."""
        return Blocks.of(self.length)

    def gain(self, saving: Saving) -> tuple[Loop, Interval, float]:
        """Return the loop after a repair, the share of the loop that it saves, and the share that it certainly saves."""
        after, rows = self.without(saving)
        share, certain = saving.share(rows, self.blocks, self.training)
        high = max(min(share.high, limits.MOST_SAVED - self.saved), share.value)
        later = 1 - min(self.once / self.whole, 1.0)
        found = (part * later + once / self.whole for part, once in zip((share.low, share.value, high), saving.once, strict=True))
        return after, Interval(*(min(part, limits.MOST_SAVED) for part in found)), certain


def loop_of_parts(ranks: Sequence[Rank]) -> Loop | None:
    """Return the loop of some ranks by the parts of `row_keys()` instead of activities; None with too few training steps."""
    found = []
    for rank in ranks:
        if len(rank.iterations) >= thresholds.MIN_STEPS and rank.loop > 0:
            rows = rows_of_rank(rank)
            seconds = dict(zip(row_keys(), rows.seconds, strict=True))
            found.append(RankLedger(rank.name, rows.index, rows.seconds.sum(axis=0), seconds))
    ledger = Ledger(tuple(found))
    return Loop.of(ledger) if len(ledger.common_steps) > thresholds.MIN_STEPS else None
