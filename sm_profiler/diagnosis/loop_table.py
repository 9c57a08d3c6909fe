"""Time of the training loop by step and part: the seconds that repairs can save."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats, Ints, Mask
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.job_metrics import Rank

BETWEEN, EVALUATION, OUTSIDE = "between", "evaluation", "outside"  # keys of derived parts


def row_keys() -> tuple[str, ...]:
    """Return the parts of a row: those of an iteration, what is left of its step, and evaluation before it."""
    return (*parts.iteration_keys(), BETWEEN, EVALUATION)


AFTER = np.iinfo(np.int64).max  # in place of the number of a step: the row after the last one


@attrs.frozen(eq=False)
class LoopTable:
    """The loop after its warm-up, averaged over ranks.

    A row lasts from the end of a training step to the end of the next, with any evaluation between them. A last row
    holds what follows the last training step.

    Attributes:
        index: number of the training step that ends each row, ascending; AFTER for the last row.
        seconds: shape (parts, rows), in the order of `row_keys()`; never negative.
        loop: seconds of the whole loop with its warm-up.
    """

    index: Ints
    seconds: Floats
    loop: float

    @property
    def steps(self) -> int:
        """Training steps among the rows."""
        return len(self.index) - 1

    def of(self, key: str) -> Floats:
        """Return the seconds of one part."""
        return np.asarray(self.seconds[row_keys().index(key)])

    @property
    def length(self) -> Floats:
        """Seconds of each row."""
        return np.asarray(self.seconds.sum(axis=0))

    @property
    def training(self) -> Floats:
        """Seconds of each row without evaluation."""
        return self.length - self.of(EVALUATION)

    @property
    def total(self) -> float:
        """Seconds of all rows."""
        return float(self.seconds.sum())


@attrs.frozen(eq=False)
class RankRows:
    """The rows of one rank.

    Attributes:
        index: number of the training step that ends each row, ascending; AFTER for the last row.
        start: seconds since the epoch.
        seconds: shape (parts, rows), in the order of `row_keys()`.
    """

    index: Ints
    start: Floats
    seconds: Floats


def loop_table(ranks: Sequence[Rank]) -> LoopTable | None:
    """Return the table of some ranks; None with too few training steps."""
    found = [rows_of_rank(rank) for rank in ranks if len(rank.iterations) >= thresholds.MIN_STEPS and rank.loop > 0]
    if not found:
        return None
    common = reduce(np.intersect1d, [rows.index for rows in found])
    if len(common) <= thresholds.MIN_STEPS:
        return None
    whole = np.zeros((len(row_keys()), len(common)))
    for rows in found:
        whole += rows.seconds[:, np.searchsorted(rows.index, common)] / len(found)
    if whole.sum() <= 0:
        return None
    return LoopTable(common, whole, float(np.mean([rank.loop for rank in ranks if rank.loop > 0])))


def rows_of_rank(rank: Rank, *, warm: bool = True) -> RankRows:
    """Return the rows of one rank, by default without those of the warm-up."""
    keys, iterations = row_keys(), rank.iterations
    rows = np.flatnonzero(rank.train)
    ends = np.nan_to_num(rank.steps.end / 1e6)
    length = np.maximum(np.diff(ends[rows]), 0.0)
    length[iterations.place - 1] = np.maximum(np.nan_to_num(iterations.length), 0.0)
    whole_step = np.zeros(len(length), np.bool_)
    whole_step[iterations.place - 1] = True
    evaluated = ~whole_step & (np.diff(rows) > 1)
    table, measured = _recorded(rank, length)
    total = float(table.sum())
    usual = table.sum(axis=1) / total if total > 0 else np.eye(len(keys))[keys.index(BETWEEN)]
    training = np.where(evaluated, np.minimum(length, float(np.median(iterations.length))), length)
    table[:, ~measured] = usual[:, None] * training[~measured]
    attempt = np.searchsorted(np.asarray(rank.attempts.breaks, np.int64), rows, side="right")
    # rows that are neither are steps that are not judged
    keep = (
        (whole_step | evaluated)
        & (attempt[1:] == attempt[:-1])
        & (np.arange(1, len(rows)) >= (thresholds.WARM_UP_STEPS if warm else 0))
    )
    beside = np.where(evaluated, length - training, 0.0)  # evaluation, and what surrounds it
    after = max(rank.end - float(ends[rows[-1]]), 0.0) if rank.slices[EVALUATION] > 0 else 0.0
    share = min(rank.slices[EVALUATION] / rank.scale / max(float(beside.sum()) + after, 1e-12), 1.0)
    table[keys.index(EVALUATION)] += beside * share
    table[keys.index(OUTSIDE)] += beside * (1 - share)
    waited = np.where(evaluated, rank.steps.seconds("wait")[rows[1:]] - table[keys.index("wait")], 0.0)
    waited = np.clip(np.nan_to_num(waited), 0.0, table[keys.index(OUTSIDE)])  # for the first batch after an evaluation
    table[keys.index("wait")] += waited
    table[keys.index(OUTSIDE)] -= waited
    last = np.zeros((len(keys), 1))
    last[keys.index(EVALUATION)] = after * share
    index = np.flatnonzero(keep) + 1
    index = np.append(index if rank.judged is None else rank.judged.index[rows][index], AFTER)
    return RankRows(index, ends[rows][np.append(keep, True)], np.concatenate([table[:, keep], last], axis=1))


def _recorded(rank: Rank, length: Floats) -> tuple[Floats, Mask]:
    """Return the recorded parts of each row, cut to its length, and which rows have any."""
    iterations, keys = rank.iterations, row_keys()
    table, measured = np.zeros((len(keys), len(length))), np.zeros(len(length), np.bool_)
    place = iterations.place[iterations.known] - 1
    for number, key in enumerate(parts.iteration_keys()):
        table[number, place] = np.maximum(np.nan_to_num(iterations.of(key)[iterations.known]), 0.0)
    measured[place] = True
    spent = table.sum(axis=0)
    table *= np.where(spent > length, length / np.maximum(spent, 1e-12), 1.0)
    table[keys.index(BETWEEN)] = np.where(measured, np.maximum(length - table.sum(axis=0), 0.0), 0.0)
    return table, measured
