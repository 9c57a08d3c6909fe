"""Assignment of events to steps, and of moments to training phases."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sm_profiler.formats.event_names import STEP
from sm_profiler.printable import logger_for

_log = logger_for(__name__)


def steps_around(framework: pd.DataFrame) -> NDArray[np.int64]:
    """Return the step of each event: its own, else the step of the same process that contains it, else -1."""
    steps = framework["step"].to_numpy(np.int64).copy()
    is_step = framework["framework_metric"].str.contains(STEP, regex=False).to_numpy(bool) & (steps != -1)
    unknown = steps == -1
    if not unknown.any() or not is_step.any():
        return steps
    start, end = framework["start_time_us"].to_numpy(float), framework["end_time_us"].to_numpy(float)
    node = pd.factorize(framework["nodeID"])[0]
    for each in np.unique(node[unknown]):
        around = np.flatnonzero(is_step & (node == each))
        rows = np.flatnonzero(unknown & (node == each))
        if not len(around):
            continue
        around = around[np.argsort(start[around], kind="stable")]
        before = np.searchsorted(start[around], start[rows], "left") - 1
        inside = around[np.maximum(before, 0)]
        fits = (before >= 0) & (end[inside] > end[rows])
        steps[rows[fits]] = steps[inside[fits]]
    return steps


def modes_around(framework: pd.DataFrame) -> NDArray[np.int64]:
    """Return a number for the mode of each event: that of the last step of the same process that started before it."""
    modes = np.zeros(len(framework), np.int64)
    is_step = framework["framework_metric"].str.contains(STEP, regex=False).to_numpy(bool)
    if not is_step.any():
        return modes
    names = pd.factorize(framework["framework_metric"])[0]
    start = framework["start_time_us"].to_numpy(float)
    node = pd.factorize(framework["nodeID"])[0]
    for each in np.unique(node[is_step]):
        steps, rows = np.flatnonzero(is_step & (node == each)), np.flatnonzero(node == each)
        steps = steps[np.argsort(start[steps], kind="stable")]
        begun = np.searchsorted(start[steps], start[rows], "right") - 1
        modes[rows] = names[steps[np.maximum(begun, 0)]]
    return modes


def phase_intervals(
    system: pd.DataFrame, framework: pd.DataFrame, phase: str | Sequence[str] | None
) -> pd.DataFrame | None:
    """Return the intervals of training phases; see `PandasFrameAnalysis.get_training_phase_intervals`."""
    processes = framework["process"].unique().tolist()
    if isinstance(phase, str):
        phase = [phase]
    if not (phase is None or isinstance(phase, list)):
        _log.warning("phase must be a list of strings, not %r", phase)
        return None
    phases = [each for each in (processes if phase is None else phase) if each in processes]
    phases = [each for each in phases if STEP in each] if phase is None else phases
    rows = framework[framework["framework_metric"].isin(phases)]
    if rows.empty:
        _log.warning("no event has one of the phases %r", phase)
        return None
    start, end = rows["start_time_us"].to_numpy(), rows["end_time_us"].to_numpy()
    names = rows["framework_metric"].to_numpy(object)
    if len(phases) > 1:
        first = np.flatnonzero(np.concatenate([[True], names[1:] != names[:-1]]))
        start, end, names = np.minimum.reduceat(start, first), np.maximum.reduceat(end, first), names[first]
    at = system["timestamp_us"]
    begin, finish = (start.min(), end.max()) if at.empty else (at.min(), at.max())
    return _with_gaps(start, end, names, begin, finish)


def label_times(times_us: Any, intervals: pd.DataFrame) -> pd.Categorical:
    """Return the phase that contains each time, both ends included; of several the last one, missing if none does."""
    times = np.asarray(times_us)
    order = np.argsort(times, kind="stable")
    ordered = times[order]
    names = pd.Categorical(intervals["phase"])
    codes = np.full(len(times), -1)
    first = np.searchsorted(ordered, intervals["start_time_us"].to_numpy(), "left")
    last = np.searchsorted(ordered, intervals["end_time_us"].to_numpy(), "right")
    for code, begin, end in zip(names.codes.tolist(), first.tolist(), last.tolist(), strict=True):
        codes[begin:end] = code
    labels = np.empty_like(codes)
    labels[order] = codes
    return pd.Categorical.from_codes(labels, categories=names.categories)


def _with_gaps(
    start: NDArray[Any], end: NDArray[Any], names: NDArray[np.object_], begin: Any, finish: Any
) -> pd.DataFrame:
    """Add intervals before, between and after the given ones."""
    count = len(start)
    starts, ends = np.empty(2 * count + 1, start.dtype), np.empty(2 * count + 1, end.dtype)
    labels = np.empty(2 * count + 1, object)
    starts[1::2], ends[1::2], labels[1::2] = start, end, names
    starts[2::2], ends[:-1:2] = end + 1, start - 1
    starts[0], ends[-1] = begin, finish
    labels[0], labels[-1] = f"Before {names[0]}", f"After {names[-1]}"
    labels[2:-1:2] = ["Between " + " and ".join(sorted(pair)) for pair in pairwise(names)]
    return pd.DataFrame({"start_time_us": starts, "end_time_us": ends, "phase": pd.Series(labels, dtype="str")})
