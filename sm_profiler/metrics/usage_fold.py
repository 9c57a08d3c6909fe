"""Fold what each training process used so far, which the hook samples once a second: CPU time, page faults, waits."""

from __future__ import annotations

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats
from sm_profiler.metrics.memory_fold import SampleFold


@attrs.frozen(eq=False)
class Usage:
    """Samples of one process in time order.

    Attributes:
        seconds: time of each sample since the epoch.
        cpu: CPU seconds so far; they start over if the process was restarted.
        faults: page faults from disk so far.
        waited: seconds so far in which the main thread was ready to run and had no core; empty if not recorded.
    """

    seconds: Floats
    cpu: Floats
    faults: Floats
    waited: Floats = attrs.field(factory=lambda: np.zeros(0))

    def cores(self, start: float, end: float) -> float | None:
        """Return the cores that the process occupied in a time span; None with fewer than two samples."""
        return self._rate(self.cpu, start, end)

    def covered(self, start: float, end: float) -> float:
        """Return the share of a time span between the first and the last sample in it: what its rates speak of."""
        inside = self.seconds[(self.seconds >= start) & (self.seconds <= end)]
        return float(inside[-1] - inside[0]) / (end - start) if len(inside) and end > start else 0.0

    def fault_rate(self, start: float, end: float) -> float | None:
        """Return the page faults from disk a second in a time span; None with fewer than two samples."""
        return self._rate(self.faults, start, end)

    def core_wait(self, start: float, end: float) -> float:
        """Return the share of a time span in which the main thread waited for a core; 0 if it was not recorded."""
        return (self._rate(self.waited, start, end) or 0.0) if len(self.waited) else 0.0

    def _rate(self, counter: Floats, start: float, end: float) -> float | None:
        inside = (self.seconds >= start) & (self.seconds <= end)
        if np.count_nonzero(inside) <= 1:
            return None
        seconds, counts = self.seconds[inside], counter[inside]
        spent = float(np.clip(np.diff(counts), 0.0, None).sum())
        return spent / float(seconds[-1] - seconds[0]) if seconds[-1] > seconds[0] else None


class UsageFold(SampleFold):
    """Collects the CPU time, the page faults and the waits for a core."""

    values = ("cpu_s", "major_faults")
    added = ("waited_s",)

    def result(self) -> dict[str, Usage]:
        """Return process → its samples."""
        return {
            name: Usage(table[:, 0], table[:, 1], table[:, 2], table[:, 3]) for name, table in self.tables().items()
        }
