"""Roles of recorded steps: forwards without gradients may be part of a training step, and training steps evaluation.

The hook sees calls of models, and not their purpose. A script that runs a model without gradients evaluates it, or asks a
target network, a teacher or a generator in the middle of a training step, or lets the model act. The pattern of many
steps shows which.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats, Ints, Mask
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.parts import PartTable
from sm_profiler.metrics.step_rows import EVAL, PREDICT, TRAIN, StepRows, column, columns
from sm_profiler.metrics.step_sample import Judged, Totals


@attrs.frozen
class Switches:
    """Switches of a process's models between training and eval() mode.

    Attributes:
        to_eval: when one was switched from training to eval() mode, µs since the epoch, ascending.
        to_train: when one was switched back.
        more: switches to eval() mode for each of `to_eval`, of which not all are kept.
    """

    to_eval: Sequence[float] = ()
    to_train: Sequence[float] = ()
    more: float = 1.0

    @property
    def count(self) -> float:
        """Number of switches from training to eval() mode."""
        return len(self.to_eval) * self.more


def forward_only(rows: StepRows) -> Mask:
    """Return the training steps that have a forward pass and nothing else, several in a row: an evaluation with gradients.

    None if most of the steps that learn follow one of them: then they are a part of what is learned, as those whose losses
    are added up before one backward pass.
    """
    train = rows.mode == TRAIN
    ahead = train & (rows.seconds("forward") > 0)
    learns = ahead & np.any([rows.seconds(key) > 0 for key in ("backward", "optimizer")], axis=0)
    only = ahead & ~learns
    several = only & (np.append(only[1:], False) | np.append(False, only[:-1]))
    after_another = int((learns[1:] & learns[:-1]).sum())
    return several if after_another > thresholds.IN_TURNS * learns.sum() else np.zeros(len(rows), np.bool_)


def within_steps(rows: StepRows, switches: float = 0.0, breaks: Sequence[int] = ()) -> Mask:
    """Return the steps without gradients that are part of the training step after them.

    They are if they come before each training step, or each second one (the two networks of a GAN), take no longer than what
    the step itself computes, and read no batches of their own. Evaluation comes more rarely, or switches its model to eval()
    mode once before, or in long runs of whole batches; a model that acts is given less at a time, and may be switched for
    each act. What a framework was asked to predict is compared with nothing: before each training step, the script learns
    from it, or acts.

    Args:
        rows: steps of a process.
        switches: how often a model was switched from training to eval() mode.
        breaks: rows before which steps are missing.
    """
    predicts = rows.mode == PREDICT
    without = predicts | (rows.mode == EVAL)
    goes_on = np.append(without[1:], False)
    goes_on[np.asarray(breaks, np.int64) - 1] = False
    first = np.flatnonzero(without & ~np.append(False, (without & goes_on)[:-1]))
    last = np.flatnonzero(without & ~goes_on)
    others = np.append(0, np.cumsum(~predicts))
    asked = others[last + 1] == others[first]
    short = (last - first < thresholds.FORWARDS_IN_STEP) & (not _outweighs(rows))
    few = (asked | _acts(rows) | short) & ~np.isin(last + 1, (*breaks, len(rows)))
    edges = np.zeros(len(rows) + 1, np.int64)
    edges[first[few]], edges[last[few] + 1] = 1, -1
    found: Mask = np.cumsum(edges[:-1]) > 0
    steps = np.diff(np.cumsum(rows.mode == TRAIN)[first[few]])  # of training, from one run to the next
    ran = found & (rows.seconds("forward") > 0) & ~predicts
    loads = np.count_nonzero(ran & (rows.seconds("wait") > 0)) > thresholds.IN_TURNS * np.count_nonzero(ran)
    is_part = (
        len(steps) >= thresholds.MIN_STEPS
        and float(np.mean(steps <= thresholds.STEPS_IN_TURN)) >= thresholds.NEARLY_ALL
        and not thresholds.IN_TURNS <= switches / len(steps) < thresholds.STEPS_IN_TURN
        and not loads
        and bool(((rows.seconds("forward") > 0) | predicts).any())  # of a framework whose forwards can be seen
    )
    return found if is_part else np.zeros(len(rows), np.bool_)


def _acts(rows: StepRows) -> bool:
    """Return whether forwards without gradients are given much less than those of training steps, as they take less time."""
    spent, train = rows.seconds("forward"), rows.mode == TRAIN
    known = spent > 0
    if not (known & train).any() or not (known & ~train).any():
        return False
    return bool(np.median(spent[known & ~train]) < thresholds.IN_TURNS * np.median(spent[known & train]))


def _outweighs(rows: StepRows) -> bool:
    """Return whether a forward without gradients takes longer than all phases of a training step."""
    train = rows.mode == TRAIN
    spent = sum((rows.seconds(part.key) for part in parts.phases()), np.zeros(len(rows)))
    with_gradients, without = spent[train & (spent > 0)], rows.seconds("forward")[rows.mode == EVAL]
    without = without[without > 0]
    return bool(len(without) and len(with_gradients) and np.median(without) > np.median(with_gradients))


def with_evaluations(rows: StepRows, to_eval: Sequence[float], to_train: Sequence[float]) -> StepRows:
    """Return the steps with an evaluation for each time that a model was in eval() mode between two training steps.

    If no step of evaluation is known: it may call other methods of the model than its forward.

    Args:
        rows: all steps of a process.
        to_eval: when a model was switched from training to eval() mode, µs, ascending.
        to_train: when one was switched back; a training step ends an evaluation as well.
    """
    steps = np.flatnonzero(rows.mode == TRAIN)
    if not len(to_eval) or not len(steps):
        return rows
    begins = np.asarray(to_eval, np.float64)
    following = np.searchsorted(rows.start[steps], begins, side="right")  # the training step after it
    between = (following > 0) & (following < len(steps))
    begins, following = begins[between], following[between]
    before, after = steps[following - 1], steps[following]
    back = np.append(np.asarray(to_train, np.float64), np.inf)
    ends = np.minimum(rows.start[after] - rows.parts[after, column("wait")], back[np.searchsorted(back, begins)])
    begins = np.maximum(begins, np.maximum.accumulate(rows.end)[before])
    unknown = (after - before == 1) & (ends > begins) & np.append(True, after[1:] != after[:-1])
    if not unknown.any():
        return rows
    count, width = int(unknown.sum()), len(columns())
    start, zeros = begins[unknown], np.zeros(count)
    found = StepRows(
        start, ends[unknown] - start, np.full(count, -1), np.full(count, EVAL, rows.mode.dtype),
        PartTable(count, width, {}), zeros,
    )  # fmt: skip
    joined = StepRows.joined(rows, found)
    return joined[np.argsort(joined.start, kind="stable")]


def joined_to_next(rows: StepRows, joins: Mask) -> StepRows:
    """Return the steps with some of them as the beginning of the step after them.

    The hook may record the phases of either only: those of the step at the end decide whether they are known.
    """
    ends = np.flatnonzero(~joins)
    group: Ints = np.cumsum(~joins) - ~joins
    table = PartTable.of(rows.parts)
    recorded = np.any([rows.seconds(part.key) > 0 for part in parts.phases()], axis=0)
    known = recorded[ends][group]
    guessed, ignored = joins & known & ~recorded, joins & ~known
    summed: dict[int, Floats] = {}
    for number, values in table.columns.items():
        if number in _phases():
            usual = values[joins & recorded].mean() if (joins & recorded).any() else 0.0
            values = np.where(ignored, 0.0, np.where(guessed, usual, values))
        summed[number] = np.bincount(group, values, len(ends)).astype(np.float64)
    start = rows.start[np.append(0, ends[:-1] + 1)]
    return attrs.evolve(
        rows[ends], start=start, duration=rows.end[ends] - start, parts=PartTable(len(ends), table.width, summed),
        gc_in_wait=np.bincount(group, rows.gc_in_wait, len(ends)).astype(np.float64),
    )  # fmt: skip


def judged_by_role(found: Judged, switches: float) -> Judged:
    """Return the judged steps of a long job with forwards that are part of a step; sums change as those of the sample do."""
    inside = within_steps(found.rows, switches, found.breaks)
    if not inside.any():
        return found
    rows, ends = joined_to_next(found.rows, inside), np.flatnonzero(~inside)
    left = (found.rows.mode[ends] != TRAIN).sum() / (found.rows.mode != TRAIN).sum()
    before, after, totals = Totals.of(found.rows), Totals.of(rows), found.totals
    grown = {
        name: getattr(totals, name) + (getattr(after, name) - getattr(before, name)) * found.scale
        for name in ("parts", "duration", "between")
    }
    ended = {name: getattr(totals, name) * left for name in ("evaluation", "own_in_evaluation")}
    totals = attrs.evolve(totals, **grown, **ended, evaluations=round(totals.evaluations * left))
    place: Ints = np.cumsum(~inside) - ~inside
    breaks = tuple(place[list(found.breaks)].tolist())
    return attrs.evolve(
        found, rows=rows, index=found.index[ends], breaks=breaks, evaluated=totals.evaluations, totals=totals,
        steps=found.steps - found.evaluated + totals.evaluations,
    )  # fmt: skip


@cache
def _phases() -> frozenset[int]:
    return frozenset(column(part.key, on_device=device) for part in parts.phases() for device in (False, True))
