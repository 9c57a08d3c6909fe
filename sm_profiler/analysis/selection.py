"""Row masks: the measurements and events of a time range, or with given names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from sm_profiler.errors import SourceError
from sm_profiler.formats.columns import EventColumns, Floats, Ints, Mask, SystemColumns
from sm_profiler.formats.event_names import OF_TRAINING, OWN

SECOND_US = 1_000_000
# Intervals that a profile can set; a job with any other is measured, to a millisecond.
INTERVALS_US = np.array([100_000, 200_000, 500_000, 1_000_000, 5_000_000, 60_000_000])
_TOLERANCE = 0.2


def tick_times(system: SystemColumns) -> Ints:
    """Return the time of the sampling tick of each measurement, whole microseconds since the epoch.

    The monitor reads the metrics of a tick (CPUs, GPUs, memory …) one after the other. Measurements of a node within
    half an interval of the first one belong to the same tick. Its time is the first measurement's, rounded to a
    multiple of the interval, so that the ticks of several nodes coincide.
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
    """Return the sampling interval of a job: the median gap between two measurements of a device, in microseconds.

    A gap within 20 percent of an interval that a profile can set counts as that interval. With fewer than two samples
    per device, the result is the smallest such interval.
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
    """Number each combination of node, device and dimension."""
    columns = (system.node, system.type, system.name, system.dimension)
    code = np.zeros(len(system), np.int64)
    for column in columns:
        code = code * max(1, len(column.values)) + column.codes
    return code


def _first_of_tick(distinct: Floats, interval: int) -> Floats:
    """Return, for sorted times, the first time of the tick that each belongs to."""
    if not len(distinct):
        return distinct
    starts = np.concatenate([[True], np.diff(distinct) > interval / 2])
    # A tick spans at most half an interval, so a measurement that a slow device delays further starts its own.
    number = np.cumsum(starts) - 1
    first = distinct[starts][number]
    late = distinct - first > interval / 2
    return np.where(late, distinct, first)


def system_rows(system: SystemColumns, start_us: float, end_us: float) -> Mask:
    """Select the measurements in a time range, both ends included; microseconds since the epoch."""
    return (system.timestamp * 1e6 >= start_us) & (system.timestamp * 1e6 <= end_us)


def event_rows(events: EventColumns, start_us: float, end_us: float) -> Mask:
    """Select the events that overlap a time range, both ends included; microseconds since the epoch."""
    return (events.end_us >= start_us) & (events.start_us <= end_us)


def of_training(phase: str) -> bool:
    """Return whether events of a phase are events of the training, and no records of the profiler (threads, samples …)."""
    return not phase.startswith(OWN) or phase in OF_TRAINING


def training_events(events: EventColumns) -> Mask:
    """Select the events of the training."""
    return events.phase.mask(of_training)


def named_metrics(system: SystemColumns, names: Collection[str]) -> Mask:
    """Select the measurements of the named devices; all of them if `names` is empty."""
    return system.name.mask(lambda name: name in names) if names else np.ones(len(system), np.bool_)


def named_events(events: EventColumns, names: Collection[str]) -> Mask:
    """Select the events with one of the names, or in one of the phases; all of them if `names` is empty."""
    if not names:
        return np.ones(len(events), np.bool_)
    return events.name.mask(lambda name: name in names) | events.phase.mask(lambda phase: phase in names)


def similar(name: str, present: Collection[str]) -> str:
    """Return a hint at the names that resemble one that is not present; "" if there are none."""
    near = difflib.get_close_matches(name, sorted(present), n=3)
    return f"; did you mean {', '.join(near)}?" if near else ""


def matching_events(events: EventColumns, patterns: Sequence[str]) -> Mask:
    """Select the events whose name or phase matches a regular expression anywhere; all of them without patterns.

    Raises:
        SourceError: a pattern is not a valid regular expression.
    """
    if not patterns:
        return np.ones(len(events), np.bool_)
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise SourceError(f"{error.pattern!r} is not a valid regular expression: {error.msg}") from error

    def found(text: str) -> bool:
        return any(pattern.search(text) for pattern in compiled)

    return events.name.mask(found) | events.phase.mask(found)
