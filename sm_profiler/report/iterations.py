"""Turns of the training loop, and what each spent its time on."""

from __future__ import annotations

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats, Ints, Mask
from sm_profiler.report.attempts import follows
from sm_profiler.report.step_fold import BACKWARD, FORWARD, GC, OPTIMIZER, TRAIN, StepRows


@attrs.frozen(eq=False)
class Turns:
    """Turns of the training loop: from the end of one training step to the end of the next.

    The hook may record the phases of every n-th step only; steps themselves are always there.

    Attributes:
        index: number of the step that ends the turn, counted over training steps of the process.
        start: seconds since the epoch.
        length: seconds.
        wait, forward, backward, optimizer, outside, gc: seconds; parts of the length, 0 where `known` is False.
        known: whether the step's phases were recorded.
    """

    index: Ints
    start: Floats
    length: Floats
    wait: Floats
    forward: Floats
    backward: Floats
    optimizer: Floats
    outside: Floats
    gc: Floats
    known: Mask

    def __len__(self) -> int:
        return len(self.length)


def turns_of(steps: StepRows, waits: Floats, breaks: tuple[int, ...] = (), *, on_device: bool = False) -> Turns:
    """Turn a process's steps into turns of the loop; turns that begin in evaluation, or in an attempt before, are left out.

    `waits`: seconds, for each step.  `on_device`: phases are a GPU's, which runs on while the host is behind its step.
    """
    train = steps.mode == TRAIN
    rows = np.flatnonzero(train[:-1] & train[1:] & follows(steps, breaks)) + 1
    ends = steps.end / 1e6
    length = np.maximum(ends[rows] - ends[rows - 1], 0.0)
    seconds = steps.parts[rows] / 1e6
    phases = seconds[:, [FORWARD, BACKWARD, OPTIMIZER]].sum(axis=1)
    step = steps.duration[rows] / 1e6
    known = (phases > 0) | ((waits[rows] > 0) & (not on_device))
    if not known.any():  # steps and nothing else: all of a step counts as work
        known = np.ones(len(rows), np.bool_)
    used = np.where(phases > 0, np.minimum(phases, length if on_device else step), step)
    outside = np.where(known, np.maximum(length - waits[rows] - used, 0.0), 0.0)
    index = np.cumsum(train) - 1
    return Turns(
        index[rows].astype(np.int64), ends[rows - 1], length, waits[rows], seconds[:, FORWARD], seconds[:, BACKWARD],
        seconds[:, OPTIMIZER], outside, seconds[:, GC], known,
    )  # fmt: skip
