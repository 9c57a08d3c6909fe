"""Fold what each training process used so far: CPU time and page faults, which the hook samples once a second."""

from __future__ import annotations

import json

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats
from sm_profiler.formats.event_names import MEMORY
from sm_profiler.report.step_fold import EventWindow

MAX_SAMPLES = 20_000  # per process; beyond it, every second sample is dropped


@attrs.frozen(eq=False)
class Usage:
    """Samples of one process in time order.

    Attributes:
        seconds: time of each sample since the epoch.
        cpu: CPU seconds so far; they start over if the process was restarted.
        faults: page faults from disk so far.
    """

    seconds: Floats
    cpu: Floats
    faults: Floats

    def cores(self, start: float, end: float) -> float | None:
        """Return the cores that the process occupied in a time span; None with fewer than two samples."""
        return self._rate(self.cpu, start, end)

    def fault_rate(self, start: float, end: float) -> float | None:
        """Return the page faults from disk a second in a time span; None with fewer than two samples."""
        return self._rate(self.faults, start, end)

    def _rate(self, counter: Floats, start: float, end: float) -> float | None:
        inside = (self.seconds >= start) & (self.seconds <= end)
        if np.count_nonzero(inside) <= 1:
            return None
        seconds, counts = self.seconds[inside], counter[inside]
        spent = float(np.clip(np.diff(counts), 0.0, None).sum())
        return spent / float(seconds[-1] - seconds[0]) if seconds[-1] > seconds[0] else None


class UsageFold:
    """Collects the samples by process; memory is bounded by processes and MAX_SAMPLES."""

    def __init__(self) -> None:
        self._samples: dict[str, list[tuple[float, float, float]]] = {}
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
            values = json.loads(args)
            sample = seconds, float(values["cpu_s"]), float(values["major_faults"])
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
            return
        if not all(np.isfinite(sample)):
            return
        samples = self._samples.setdefault(name, [])
        samples.append(sample)
        if len(samples) > MAX_SAMPLES:
            del samples[1::2]
            self._every[name] = 2 * self._every.get(name, 1)

    def merge(self, other: UsageFold) -> None:
        """Add the samples of a fold of other minutes or nodes."""
        for name, samples in other._samples.items():
            self._samples.setdefault(name, []).extend(samples)

    def result(self) -> dict[str, Usage]:
        """Return process → its samples."""
        tables = {name: np.asarray(sorted(samples)) for name, samples in self._samples.items()}
        return {name: Usage(table[:, 0], table[:, 1], table[:, 2]) for name, table in tables.items()}
