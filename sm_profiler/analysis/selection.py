"""Row masks: the measurements and events of a time range, or with given names."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np

from sm_profiler.errors import SourceError
from sm_profiler.formats.columns import EventColumns, Mask, SystemColumns


def system_rows(system: SystemColumns, start_us: float, end_us: float) -> Mask:
    """Select the measurements in a time range, both ends included; microseconds since the epoch."""
    return (system.timestamp * 1e6 >= start_us) & (system.timestamp * 1e6 <= end_us)


def event_rows(events: EventColumns, start_us: float, end_us: float) -> Mask:
    """Select the events that overlap a time range, both ends included; microseconds since the epoch."""
    return (events.end_us >= start_us) & (events.start_us <= end_us)


def named_metrics(system: SystemColumns, names: Collection[str]) -> Mask:
    """Select the measurements of the named devices; all of them if `names` is empty."""
    return system.name.mask(lambda name: name in names) if names else np.ones(len(system), np.bool_)


def named_events(events: EventColumns, names: Collection[str]) -> Mask:
    """Select the events with one of the names, or in one of the phases; all of them if `names` is empty."""
    if not names:
        return np.ones(len(events), np.bool_)
    return events.name.mask(lambda name: name in names) | events.phase.mask(lambda phase: phase in names)


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
