"""Time of the training loop by step and part: the seconds that repairs can save."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats
from sm_profiler.report import parts, policy
from sm_profiler.report.job_metrics import Rank

BETWEEN, EVALUATION, OUTSIDE = "between", "evaluation", "outside"  # keys of derived parts


def row_keys() -> tuple[str, ...]:
    """Return the parts of a row: those of an iteration, what is left of its step, and evaluation before it."""
    return (*parts.iteration_keys(), BETWEEN, EVALUATION)


@attrs.frozen(eq=False)
class LoopTable:
    """The loop after its warm-up, averaged over ranks.

    A row lasts from the end of a training step to the end of the next, with any evaluation between them. A last row
    holds what follows the last training step.

    Attributes:
        seconds: shape (parts, rows), in the order of `row_keys()`; never negative.
        steps: training steps among the rows.
        loop: seconds of the whole loop with its warm-up.
    """

    seconds: Floats
    steps: int
    loop: float

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


def loop_table(ranks: Sequence[Rank]) -> LoopTable | None:
    """Return the table of some ranks; None with too few training steps."""
    tables = [_of_rank(rank) for rank in ranks if len(rank.iterations) >= policy.MIN_STEPS and rank.loop > 0]
    if not tables:
        return None
    count = min(table.shape[1] for table in tables)
    whole = np.zeros((len(row_keys()), count))
    for table in tables:
        whole += table[:, :count] / len(tables)
    if whole.sum() <= 0 or count < policy.MIN_STEPS:
        return None
    loops = [rank.loop for rank in ranks if rank.loop > 0]
    return LoopTable(whole, count - 1, float(np.mean(loops)))


def _of_rank(rank: Rank) -> Floats:
    """Return the rows of one rank, shape (parts, rows)."""
    keys = row_keys()
    rows = np.flatnonzero(rank.train)
    ends = rank.steps.end / 1e6
    length = np.maximum(np.nan_to_num(np.diff(ends[rows])), 0.0)
    table = np.zeros((len(keys), len(length)))
    iterations = rank.iterations
    measured = np.zeros(len(length), np.bool_)
    place = iterations.index[iterations.known] - 1
    for number, key in enumerate(parts.iteration_keys()):
        table[number, place] = np.maximum(np.nan_to_num(iterations.of(key)[iterations.known]), 0.0)
    measured[place] = True
    spent = table.sum(axis=0)
    table *= np.where(spent > length, length / np.maximum(spent, 1e-12), 1.0)
    table[keys.index(BETWEEN)] = np.where(measured, np.maximum(length - table.sum(axis=0), 0.0), 0.0)
    whole = float(table.sum())
    usual = table.sum(axis=1) / whole if whole > 0 else np.eye(len(keys))[keys.index(BETWEEN)]
    training = length.copy()
    interrupted = np.ones(len(length), np.bool_)  # by evaluation
    interrupted[iterations.index - 1] = False
    training[interrupted] = np.minimum(length[interrupted], float(np.median(iterations.length)))
    table[:, ~measured] = usual[:, None] * training[~measured]
    beside = length - training  # evaluation, and what surrounds it
    after = max(rank.end - ends[rows[-1]], 0.0) if rank.slices[EVALUATION] > 0 else 0.0
    share = min(rank.slices[EVALUATION] / max(float(beside.sum()) + after, 1e-12), 1.0)
    table[keys.index(EVALUATION)] += beside * share
    table[keys.index(OUTSIDE)] += beside * (1 - share)
    attempt = np.searchsorted(np.asarray(rank.attempts.breaks, np.int64), rows, side="right")
    keep = (attempt[1:] == attempt[:-1]) & (np.arange(1, len(rows)) >= policy.WARM_UP_STEPS)
    last = np.zeros((len(keys), 1))
    last[keys.index(EVALUATION)] = after * share
    return np.concatenate([table[:, keep], last], axis=1)
