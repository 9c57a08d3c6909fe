"""Steps of a trace: the spans that `torch.profiler.profile.step()` marks."""

from __future__ import annotations

import re

import numpy as np

from sm_profiler.analysis.gpu.launches import launch_rows
from sm_profiler.analysis.gpu.nesting import Numbers
from sm_profiler.analysis.gpu.table import Table
from sm_profiler.formats.columns import Mask
from sm_profiler.formats.kineto_reader import ANNOTATION, GPU_ANNOTATION, OPERATOR, KinetoColumns, KinetoTrace

_STEP = re.compile(r"ProfilerStep\s*#\s*([0-9]{1,12})")


def step_rows(events: KinetoColumns) -> Numbers:
    """Return the rows of the steps on the host, in order."""
    marked = events.name.mask(lambda name: _STEP.search(name) is not None)
    return np.flatnonzero(marked & np.isin(events.category, (ANNOTATION, OPERATOR)))


def steps(events: KinetoColumns) -> Table:
    """Return the steps that the trace marks.

    Returns:
        Columns step, start_us, end_us.
    """
    rows = step_rows(events)
    numbers = [_STEP.search(events.name.values[code]) for code in events.name.codes[rows]]
    return Table({
        "step": np.array([int(found[1]) if found else -1 for found in numbers], np.int64),
        "start_us": events.start_us[rows],
        "end_us": events.end_us[rows],
    })  # fmt: skip


def without_last_step(trace: KinetoTrace) -> KinetoTrace:
    """Return a trace without its last step, whose kernels may still run when the recording ends.

    Kernels that were not launched in the other steps are left out, too. A trace with fewer than two steps stays whole.
    """
    events = trace.events
    rows = step_rows(events)
    if len(np.unique(events.name.codes[rows])) < 2:  # nothing would be left
        return trace
    keep: Mask = events.start_us < events.start_us[rows].max()
    device = np.flatnonzero(events.on_device)
    launch = launch_rows(events, events[device])
    keep[device] = (launch >= 0) & keep[launch]
    keep[events.category == GPU_ANNOTATION] = False
    return trace.select(keep)
