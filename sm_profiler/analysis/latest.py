"""What `get_latest_data` does to its frames: one time for a sampling tick, and steps before what they contain."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import EventColumns, Floats, Ints, SystemColumns
from sm_profiler.formats.event_names import STEP, STEP_TRAIN

SECOND_US = 1_000_000
# How often a job can be sampled; anything else is taken as measured, to a millisecond.
INTERVALS_US = np.array([100_000, 200_000, 500_000, 1_000_000, 5_000_000, 60_000_000])
_TOLERANCE = 0.2


def tick_times(system: SystemColumns) -> Ints:
    """Of each measurement the time of its sampling tick, in whole microseconds since the epoch.

    The families of a tick (CPUs, GPUs, memory …) are read one after the other; what a node measured within half an
    interval of the first of them belongs to one tick.  Its time is the multiple of the interval nearest to the first,
    so that the ticks of several nodes meet.
    """
    times = np.zeros(len(system), np.int64)
    interval = sampling_interval_us(system)
    for node in np.unique(system.node.codes):
        rows = np.flatnonzero(system.node.codes == node)
        at_us = system.timestamp[rows] * SECOND_US
        distinct, place = np.unique(at_us, return_inverse=True)
        ticks = np.rint(_first_of_tick(distinct, interval) / interval).astype(np.int64) * interval
        times[rows] = ticks[place]
    return times


def sampling_interval_us(system: SystemColumns) -> int:
    """How often the job was sampled: the median time between two measurements of one device, made an interval that can be set.

    A job with fewer than two samples has none; then it is the smallest that can be set.
    """
    gaps: list[NDArray[np.float64]] = []
    device = _device_codes(system)
    order = np.lexsort((system.timestamp, device))
    if len(order):
        gap = np.diff(system.timestamp[order])
        gaps.append(gap[(device[order][1:] == device[order][:-1]) & (gap > 0)] * SECOND_US)
    found = np.concatenate(gaps) if gaps else np.empty(0)
    if not len(found):
        return int(INTERVALS_US[0])
    median = float(np.median(found))
    nearest = int(INTERVALS_US[np.argmin(abs(INTERVALS_US - median))])
    if abs(median - nearest) <= _TOLERANCE * nearest:
        return nearest
    return max(1000, round(median / 1000) * 1000)


def _device_codes(system: SystemColumns) -> Ints:
    """A number for each device and dimension of each node."""
    columns = (system.node, system.type, system.name, system.dimension)
    code = np.zeros(len(system), np.int64)
    for column in columns:
        code = code * max(1, len(column.values)) + column.codes
    return code


def _first_of_tick(distinct: Floats, interval: int) -> Floats:
    """For sorted times the first time of the tick that each belongs to."""
    if not len(distinct):
        return distinct
    starts = np.concatenate([[True], np.diff(distinct) > interval / 2])
    # A tick cannot be longer than half an interval: what a slow device drags along begins a tick of its own.
    number = np.cumsum(starts) - 1
    first = distinct[starts][number]
    late = distinct - first > interval / 2
    return np.where(late, distinct, first)


def steps_first(events: EventColumns) -> Ints:
    """The rows by start, a step before what starts with it; the first training step of each process in second place.

    Notebooks of the library's first days take the second row to be the step that the training loop begins with, so what
    else comes before that step (loaders that start) follows it, but for the very first row.
    """
    is_step = events.name.mask(lambda name: name.startswith(STEP))
    order = np.lexsort((~is_step, events.start_us)).astype(np.int64)
    first = (events.name.mask(STEP_TRAIN) & (events.step == 0))[order]
    if len(order):
        first[0] = False
    rest = order[~first]
    return np.concatenate([rest[:1], order[first], rest[1:]])
