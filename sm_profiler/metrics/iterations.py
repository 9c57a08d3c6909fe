"""Iterations of the training loop and the time of their parts, as the host or the GPU spent it."""

from __future__ import annotations

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats, Ints, Mask
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.attempts import same_attempt
from sm_profiler.metrics.part_table import PartTable
from sm_profiler.metrics.step_fold import GC, OWN, OWN_IN_STEP, QUEUED, RESULTS, TRAIN, StepRows, column

_ANY = 1e-7  # seconds; less is rounding


@attrs.frozen(eq=False)
class Iterations:
    """Iterations of one process, each from the end of a training step to the end of the next: a step and its wait.

    The hook may record the phases of every nth step only; steps themselves are always recorded.

    Attributes:
        index: number of the step that ends the iteration, counted over the training steps of the process.
        start: seconds since the epoch.
        length: seconds.
        seconds: part of the iteration → seconds, 0 where `known` is False.
        gc: seconds of garbage collection.
        known: whether the phases of the step were recorded.
        place: number of the step among the training steps that `Rank.steps` holds; `index` if it holds all.
    """

    index: Ints
    start: Floats
    length: Floats
    seconds: dict[str, Floats]
    gc: Floats
    known: Mask
    place: Ints = attrs.field()

    @place.default
    def _all_are_held(self) -> Ints:
        return self.index

    def __len__(self) -> int:
        return len(self.length)

    def of(self, key: str) -> Floats:
        """Return the seconds of a part, or the length for `parts.WHOLE`."""
        return self.length if key == parts.WHOLE else self.seconds[key]


def iterations_of(
    steps: StepRows,
    waits: Floats,
    breaks: tuple[int, ...] = (),
    *,
    on_device: bool = False,
    index: Ints | None = None,
) -> Iterations:
    """Turn the steps of a process into iterations, without those that start in evaluation or in an earlier attempt.

    In a loop that evaluates before most of its training steps, as one that acts and learns in turns, they start with the
    end of the evaluation.

    Args:
        steps: the steps.
        waits: seconds each step waited for data.
        breaks: rows that start a new attempt.
        index: number of each step, counted over all training steps; default: as the rows count them.
        on_device: the phases are those of a GPU, which may still run when the host has finished its step.
    """
    train = steps.mode == TRAIN
    after_any = train[1:] & same_attempt(steps, breaks)
    after_train = after_any & train[:-1]
    in_turns = np.count_nonzero(after_train) < thresholds.IN_TURNS * np.count_nonzero(train)
    rows = np.flatnonzero(after_any if in_turns else after_train) + 1
    ends = np.maximum.accumulate(steps.end / 1e6) if len(steps) else steps.end  # steps of several threads may overlap
    length = np.maximum(ends[rows] - ends[rows - 1] - steps.seconds(OWN)[rows], 0.0)
    seconds = {part.key: steps.seconds(part.key)[rows] for part in parts.phases()}
    phases = np.sum(list(seconds.values()), axis=0)
    step = steps.duration[rows] / 1e6 - steps.seconds(OWN_IN_STEP)[rows]
    # waiting for results is recorded for every step
    called = phases - steps.seconds(RESULTS)[rows] - steps.seconds(QUEUED)[rows]
    known = (called > _ANY) | ((waits[rows] > 0) & (not on_device))
    if not known.any():
        known = phases > 0
    if not known.any():  # only steps were recorded: all of a step counts as work
        known = np.ones(len(rows), np.bool_)
    fits = np.minimum(length / np.maximum(phases + waits[rows], 1e-12), 1.0)  # overlapping parts take no more than all
    # Pages of zeros that nothing writes to take no memory: most jobs record some of the parts only.
    seconds = {
        key: spent * fits if spent.any() else np.zeros(len(fits))
        for key, spent in (*seconds.items(), ("wait", waits[rows]))
    }
    used = np.where(phases > 0, phases * fits, step)
    outside = np.where(known, np.maximum(length - seconds["wait"] - used, 0.0), 0.0)
    seconds[parts.DECLARED] = np.minimum(steps.seconds(parts.DECLARED)[rows], outside)
    seconds["outside"] = outside - seconds[parts.DECLARED]
    index = np.cumsum(train) - 1 if index is None else index
    return Iterations(
        index[rows].astype(np.int64), ends[rows - 1], length, seconds, steps.seconds(GC)[rows], known
    )  # fmt: skip


def as_run_on_device(steps: StepRows) -> StepRows | None:
    """Return the steps with the GPU's phases in place of the host's, or None if too few steps have them.

    The host only launches: it has finished a forward pass before the GPU has started it, and the GPU's time appears where
    the host next asks for a result. Waiting for data counts only while the GPU has no work. Steps whose phases on the
    GPU were not recorded have no phases.
    """
    train = steps.mode == TRAIN
    phases = parts.phases()
    device = np.sum([steps.seconds(part.key, on_device=True) for part in phases], axis=0) * 1e6
    known = device > 0
    if np.count_nonzero(known & train) < thresholds.MIN_STEPS:
        return None
    found = {column(part.key): steps.parts[:, column(part.key, on_device=True)] for part in phases}
    ends = steps.end
    length = np.diff(ends, prepend=ends[0] - steps.duration[0])
    idle = np.where(known, np.maximum(length - device, 0.0), 0.0)
    found[column("wait")] = np.minimum(steps.parts[:, column("wait")], idle)
    return attrs.evolve(steps, parts=PartTable.of(steps.parts).with_columns(found))
