"""Fold the numbers that the hook samples once a second in each training process: first of all its resident memory."""

from __future__ import annotations

import json
from typing import ClassVar

import numpy as np

from sm_profiler.formats.columns import Floats
from sm_profiler.formats.event_names import MEMORY
from sm_profiler.metrics.step_fold import EventWindow

MAX_SAMPLES = 20_000  # per process; of more, the first of each second is kept, or of each two, four, …


class ProcessFold:
    """Collects (seconds, values…) by process; memory is bounded by processes and MAX_SAMPLES.

    Attributes:
        values: names of the values in the event's arguments.
        added: names of further values, which older records lack; 0 there.
    """

    values: ClassVar[tuple[str, ...]]
    added: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._samples: dict[str, list[tuple[float, ...]]] = {}
        self._width: dict[str, int] = {}  # seconds of which one sample is kept; absent: all are

    def update(self, window: EventWindow) -> None:
        """Add the samples of one window."""
        events = window.new_events
        found = events.phase.mask(MEMORY) if len(events) else np.zeros(0, np.bool_)
        if not found.any():
            return
        rows = events[found]
        for node, at_us, code in zip(rows.node.codes, rows.start_us, rows.args.codes, strict=True):
            self._add(rows.node.values[node], float(at_us) / 1e6, rows.args.values[code])

    def _add(self, name: str, seconds: float, args: str) -> None:
        try:
            found = json.loads(args)
            later = (float(found.get(value, 0.0)) for value in self.added)
            sample = (seconds, *(float(found[value]) for value in self.values), *later)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return
        if not np.isfinite(sample).all():
            return
        self._extend(name, [sample])

    def _extend(self, name: str, samples: list[tuple[float, ...]]) -> None:
        mine = self._samples.setdefault(name, [])
        mine.extend(samples)
        if len(mine) > 2 * MAX_SAMPLES:
            self._thin(name)

    def _thin(self, name: str) -> None:
        """Keep MAX_SAMPLES at most: which ones depends neither on the order of arrival nor on the parts of a job."""
        samples, width = sorted(self._samples[name]), self._width.get(name, 0)
        while True:
            if width:
                first: dict[int, tuple[float, ...]] = {}
                for sample in samples:
                    first.setdefault(int(sample[0] // width), sample)
                samples = list(first.values())
            if len(samples) <= MAX_SAMPLES:
                break
            width = max(2 * width, 1)
        self._samples[name] = samples
        if width:
            self._width[name] = width

    def merge(self, other: ProcessFold) -> None:
        """Add the samples of a fold of other minutes or nodes."""
        for name, width in other._width.items():
            self._width[name] = max(width, self._width.get(name, 0))
        for name, samples in other._samples.items():
            self._extend(name, samples)

    def tables(self) -> dict[str, Floats]:
        """Return process → samples in time order, shape (samples, 1 + values)."""
        for name in self._samples:
            self._thin(name)
        return {name: np.asarray(samples) for name, samples in sorted(self._samples.items())}


class MemoryFold(ProcessFold):
    """Collects the resident memory."""

    values = ("resident_bytes",)

    def result(self) -> dict[str, tuple[Floats, Floats]]:
        """Return process → (seconds since the epoch, bytes), in time order."""
        return {name: (table[:, 0], table[:, 1]) for name, table in self.tables().items()}
