"""Lines of Python and the time that they cost: from the stacks in a trace, or from the hook's sampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import attrs
import numpy as np

from sm_profiler.analysis.gpu.callers import Callers, Frame, frame_of
from sm_profiler.analysis.gpu.nesting import Numbers
from sm_profiler.analysis.gpu.table import Groups
from sm_profiler.formats.columns import Floats

MAX_LINES = 5
OUTSIDE = "outside"  # the sampler's name of the time between steps
# Phase → the lines in which the host was seen in it, with their shares of its samples.
SampledLines: TypeAlias = Mapping[str, tuple[tuple[Frame, float], ...]]


@attrs.frozen
class CodeLine:
    """A line of Python and the time that it costs.

    Attributes:
        name: the operator, call or kernel.
        us: time, microseconds.
        file, line, function: the line; "" and 0 if it is unknown.
        sampled: the line is an estimate: the host was seen there in this phase while the trace was recorded.
    """

    name: str
    us: float
    file: str = ""
    line: int = 0
    function: str = ""
    sampled: bool = False


class Lines:
    """Sums up times by what the host did."""

    def __init__(self, callers: Callers, sampled: SampledLines) -> None:
        self.callers = callers
        self._sampled = sampled

    def of_launches(self, kernels: Numbers, launches: Numbers, time: Floats) -> tuple[CodeLine, ...]:
        """Sum up the times of kernels by what launched them; by their names if the trace does not hold the launches."""
        found = self.of(self.callers.operators(launches), launches, time)
        return found if any(line.name for line in found) else self.of(kernels, launches, time)

    def of(self, named: Numbers, rows: Numbers, time: Floats, moments: Floats | None = None) -> tuple[CodeLine, ...]:
        """Sum up times by name and line of Python, the most expensive first.

        Args:
            named: row of the event that gives each time its name, -1 for none.
            rows: row of the event on the host that takes or causes it, -1 for none.
            time: microseconds.
            moments: when the host spent each time; default: at the start of its row.
        """
        phases = self.callers.phases(rows) if moments is None else self.callers.phases_at(moments)
        names = (*self.callers.events.name.values, "")  # the last one is that of -1
        codes = [self._codes(found) for found in (named, self.callers.frames(rows), phases)]
        groups = Groups(*codes)
        found: dict[tuple[str, Frame | None, bool], float] = {}
        for name, at, phase, us in zip(*(groups.first(one).tolist() for one in codes), groups.sum(time), strict=True):
            frame = frame_of(names[at])
            seen = self._sampled.get(names[phase] or OUTSIDE, ()) if frame is None else ()
            rest = 1.0 - sum(share for _, share in seen)
            parts = [(line, share, True) for line, share in seen] + [(frame, rest, False)]
            for line, share, sampled in parts:
                key = names[name], line, sampled
                found[key] = found.get(key, 0.0) + us * share
        ordered = sorted(found.items(), key=lambda item: -item[1])[:MAX_LINES]
        return tuple(
            CodeLine(name, float(us), line.file, line.line, line.function, sampled)
            if line
            else CodeLine(name, float(us))
            for (name, line, sampled), us in ordered
            if us > 0
        )

    def _codes(self, rows: Numbers) -> Numbers:
        return np.where(rows >= 0, self.callers.events.name.codes[rows], -1)
