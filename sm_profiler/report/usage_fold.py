"""Fold what each training process used so far: CPU time and page faults, which the hook samples once a second."""

from __future__ import annotations

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats
from sm_profiler.report.memory_fold import SampleFold


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


class UsageFold(SampleFold):
    """Collects the CPU time and the page faults."""

    values = ("cpu_s", "major_faults")

    def result(self) -> dict[str, Usage]:
        """Return process → its samples."""
        return {name: Usage(table[:, 0], table[:, 1], table[:, 2]) for name, table in self.tables().items()}
