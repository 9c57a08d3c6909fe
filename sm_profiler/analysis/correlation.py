"""How much time which events took at certain moments or in certain intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sm_profiler.analysis.selection import intervals_touched, times_inside
from sm_profiler.analysis.times import all_microseconds
from sm_profiler.formats.columns import Category, EventColumns, Floats, Ints


def spent_at(
    events: EventColumns, moments: Sequence[Any]
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Durations of events, once for each moment inside them; see `PandasFrame.get_framework_metrics_by_timesteps`."""
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
    """Durations of events, once for each interval that they touch; see the method of `PandasFrame`."""
    begins_us, ends_us = all_microseconds(begins), all_microseconds(ends)
    last = ends_us.max() if len(ends_us) else 0
    taken = (begins_us < last) & (begins_us <= ends_us)
    events = events[~events.instants & ~events.name.mask(lambda name: "Step" in name)]
    if len(begins_us):
        events = events[(events.end_us >= begins_us.min()) & (events.start_us <= last)]
    counted = intervals_touched(events, begins_us[taken], ends_us[taken])
    by_phase = total(events.phase, events.duration_us, counted)
    return shares(by_phase), shares(total(events.name, events.duration_us, counted))


def total(texts: Category, durations: Floats, counted: Ints) -> dict[str, float]:
    """The durations by text, each times its count; texts that count nowhere are left out."""
    size = len(texts.values)
    sums = np.bincount(texts.codes, durations * counted, size)
    present = np.bincount(texts.codes, counted > 0, size)
    return {
        text: int(spent) if spent == int(spent) else float(spent)
        for text, spent, here in zip(texts.values, sums.tolist(), present.tolist(), strict=True)
        if here
    }


def shares(spent: dict[str, float]) -> dict[str, float]:
    """Each as a share of the greatest."""
    greatest = max(spent.values(), default=0)
    return {text: value / greatest for text, value in spent.items()} if greatest else spent
