"""Fold the resident memory of each training process, which the hook samples once a second."""

from __future__ import annotations

import json

import numpy as np

from sm_profiler.formats.columns import Floats
from sm_profiler.formats.event_names import MEMORY
from sm_profiler.report.step_fold import EventWindow

MAX_SAMPLES = 20_000  # per process; beyond it, every second sample is dropped


class MemoryFold:
    """Collects (seconds, bytes) by process; memory is bounded by processes and MAX_SAMPLES."""

    def __init__(self) -> None:
        self._samples: dict[str, list[tuple[float, float]]] = {}
        self._every: dict[str, int] = {}
        self._count: dict[str, int] = {}

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
        self._count[name] = self._count.get(name, -1) + 1
        if self._count[name] % self._every.get(name, 1):
            return
        try:
            resident = float(json.loads(args)["resident_bytes"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return
        samples = self._samples.setdefault(name, [])
        samples.append((seconds, resident))
        if len(samples) > MAX_SAMPLES:
            del samples[1::2]
            self._every[name] = 2 * self._every.get(name, 1)

    def merge(self, other: MemoryFold) -> None:
        """Add the samples of a fold of other minutes or nodes."""
        for name, samples in other._samples.items():
            self._samples.setdefault(name, []).extend(samples)

    def result(self) -> dict[str, tuple[Floats, Floats]]:
        """Return process → (seconds since the epoch, bytes), in time order."""
        found = {}
        for name, samples in self._samples.items():
            table = np.asarray(sorted(samples))
            found[name] = table[:, 0], table[:, 1]
        return found
