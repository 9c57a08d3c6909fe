"""Time that events took at given moments, or in given intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sm_profiler.analysis.times import all_microseconds
from sm_profiler.formats.columns import Category, EventColumns, Floats, Ints


def spent_at(
    events: EventColumns, moments: Sequence[Any]
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Sum durations, each event once per moment inside it; see `PandasFrame.get_framework_metrics_by_timesteps`."""
    times = all_microseconds(moments)
    times = times[times < times.max()] if len(times) else times
    events = events[~events.instants]
    counted = times_inside(events, times)
    by_phase = total(events.phase, events.duration_us, counted)
    by_name = {
        name: spent for name, spent in total(events.name, events.duration_us, counted).items() if "Step" not in name
    }
    steps = {phase: spent for phase, spent in by_phase.items() if "Step" in phase}
    return shares({phase: spent for phase, spent in by_phase.items() if "Step" not in phase}), by_name, steps


def spent_between(
    events: EventColumns, begins: Sequence[Any], ends: Sequence[Any]
) -> tuple[dict[str, float], dict[str, float]]:
    """Sum durations, each event once per interval that it overlaps.

    See `PandasFrame.get_framework_metrics_by_begin_and_end_timesteps`.
    """
    begins_us, ends_us = all_microseconds(begins), all_microseconds(ends)
    last = ends_us.max() if len(ends_us) else 0
    taken = (begins_us < last) & (begins_us <= ends_us)
    events = events[~events.instants & ~events.name.mask(lambda name: "Step" in name)]
    if len(begins_us):
        events = events[(events.end_us >= begins_us.min()) & (events.start_us <= last)]
    counted = intervals_overlapped(events, begins_us[taken], ends_us[taken])
    by_phase = total(events.phase, events.duration_us, counted)
    return shares(by_phase), shares(total(events.name, events.duration_us, counted))


def times_inside(events: EventColumns, times_us: Ints) -> Ints:
    """Count the times inside each event, its ends excluded."""
    ordered = np.sort(times_us)
    return np.searchsorted(ordered, events.end_us, "left") - np.searchsorted(ordered, events.start_us, "right")


def intervals_overlapped(events: EventColumns, begins_us: Ints, ends_us: Ints) -> Ints:
    """Count the intervals that each event overlaps, ends included; no interval may end before it begins."""
    begun = np.searchsorted(np.sort(begins_us), events.end_us, "right")
    return begun - np.searchsorted(np.sort(ends_us), events.start_us, "left")


def total(texts: Category, durations: Floats, counted: Ints) -> dict[str, float]:
    """Sum durations, times their counts, by text; leave out texts whose counts are all zero."""
    size = len(texts.values)
    sums = np.bincount(texts.codes, durations * counted, size)
    present = np.bincount(texts.codes, counted > 0, size)
    return {
        text: int(spent) if spent == int(spent) else float(spent)
        for text, spent, here in zip(texts.values, sums.tolist(), present.tolist(), strict=True)
        if here
    }


def shares(spent: dict[str, float]) -> dict[str, float]:
    """Divide each value by the greatest."""
    greatest = max(spent.values(), default=0)
    return {text: value / greatest for text, value in spent.items()} if greatest else spent
