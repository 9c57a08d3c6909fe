"""Which rows of the columns a question is about."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np

from sm_profiler.errors import SourceError
from sm_profiler.formats.columns import EventColumns, Ints, Mask, SystemColumns


def named_metrics(system: SystemColumns, names: Collection[str]) -> Mask:
    """True for each measurement of a device of these names; of all where there are none."""
    return system.name.mask(lambda name: name in names) if names else np.ones(len(system), np.bool_)


def named_events(events: EventColumns, names: Collection[str]) -> Mask:
    """True for each event whose name or phase is one of these; for all where there are none."""
    if not names:
        return np.ones(len(events), np.bool_)
    return events.name.mask(lambda name: name in names) | events.phase.mask(lambda phase: phase in names)


def matching_events(events: EventColumns, patterns: Sequence[str]) -> Mask:
    """True for each event in whose name or phase a regular expression is found; for all where there are none.

    Raises:
        SourceError: one is no regular expression.
    """
    if not patterns:
        return np.ones(len(events), np.bool_)
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise SourceError(f"{error.pattern!r} is no regular expression: {error.msg}") from error

    def found(text: str) -> bool:
        return any(pattern.search(text) for pattern in compiled)

    return events.name.mask(found) | events.phase.mask(found)


def times_inside(events: EventColumns, times_us: Ints) -> Ints:
    """How many of the times lie inside each event, its ends excluded."""
    ordered = np.sort(times_us)
    return np.searchsorted(ordered, events.end_us, "left") - np.searchsorted(ordered, events.start_us, "right")


def intervals_touched(events: EventColumns, begins_us: Ints, ends_us: Ints) -> Ints:
    """How many of the intervals each event touches, their ends included; an interval must not end before it begins."""
    begun = np.searchsorted(np.sort(begins_us), events.end_us, "right")
    return begun - np.searchsorted(np.sort(ends_us), events.start_us, "left")
