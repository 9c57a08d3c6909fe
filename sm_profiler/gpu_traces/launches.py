"""Launches: the host's calls that start kernels and copies, and the queue between them and the device."""

from __future__ import annotations

import re

import numpy as np

from sm_profiler.formats.columns import Floats, Mask
from sm_profiler.formats.kineto_reader import ANNOTATION, GPU_ANNOTATION, OPERATOR, RUNTIME, KinetoColumns, KinetoTrace
from sm_profiler.gpu_traces.intervals import Numbers
from sm_profiler.gpu_traces.table import Groups, Table

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


BLOCKING_US = 5.0  # a call that returns sooner found its work done
_SYNCHRONIZE, _COPY = re.compile(r"Synchronize$"), re.compile(r"Synchronize$|^(cuda|hip)Memcpy$")


def wait_rows(events: KinetoColumns, *, copies: bool = False) -> Numbers:
    """Return the rows of the calls in which the host waited for the device.

    Args:
        events: the events of a trace.
        copies: include copies that return when they are done.
    """
    pattern = _COPY if copies else _SYNCHRONIZE
    calls = (events.category == RUNTIME) & (events.duration_us >= BLOCKING_US)
    return np.flatnonzero(calls & events.name.mask(lambda name: pattern.search(name) is not None))


FULL_QUEUE = 1024  # operations that CUDA queues per stream before a launch blocks


def launch_rows(events: KinetoColumns, device: KinetoColumns) -> Numbers:
    """Return for each event on the device the row of its launch in `events`, -1 if the trace does not hold it."""
    calls = np.flatnonzero((events.category == RUNTIME) & (events.correlation >= 0))
    if not len(calls):
        return np.full(len(device), -1, np.intp)
    order = calls[np.argsort(events.correlation[calls], kind="stable")]
    known = events.correlation[order]
    at = np.searchsorted(known, device.correlation)
    row = order[np.minimum(at, len(order) - 1)]
    return np.where((device.correlation >= 0) & (events.correlation[row] == device.correlation), row, -1)


def launch_starts(events: KinetoColumns, device: KinetoColumns) -> Floats:
    """Return when each event on the device was launched; minus infinity if the trace does not hold the launch."""
    rows = launch_rows(events, device)
    return np.where(rows >= 0, events.start_us[rows], -np.inf)


def launch_statistics(events: KinetoColumns) -> Table:
    """Return one row per launch whose call and kernel are in the trace.

    Returns:
        Columns correlation, name (of the kernel), call, stream, cpu_us (the call), gpu_us (the kernel), delay_us (from the
        end of the call to the start of the kernel, at least 0), shorter_than_launch.
    """
    device = events.device_events
    rows = launch_rows(events, device)
    device, rows = device[rows >= 0], rows[rows >= 0]
    calls = events[rows]
    delay = np.maximum(device.start_us - calls.end_us, 0.0)
    return Table({
        "correlation": device.correlation,
        "name": device.name,
        "call": calls.name,
        "stream": device.stream,
        "cpu_us": calls.duration_us,
        "gpu_us": device.duration_us,
        "delay_us": delay,
        "shorter_than_launch": device.duration_us < calls.duration_us,
    })  # fmt: skip


def queue_lengths(events: KinetoColumns) -> Table:
    """Return the queue of each stream over time: operations launched that the device has not begun.

    Returns:
        Columns stream, time_us, queue_length; one row per change.
    """
    device = events.device_events
    rows = launch_rows(events, device)
    device, rows = device[rows >= 0], rows[rows >= 0]
    at = np.concatenate([events.start_us[rows], device.start_us])
    change = np.repeat([1, -1], len(device))
    stream = np.concatenate([device.stream, device.stream])
    order = np.lexsort((-change, at, stream))
    stream = stream[order]
    return Table({"stream": stream, "time_us": at[order], "queue_length": Groups(stream).cumsum(change[order])})


def queue_summary(events: KinetoColumns, full: int = FULL_QUEUE) -> Table:
    """Return the queue length of each stream.

    Returns:
        Columns stream, count (of changes), mean, std, min, median, max, full_us (time with at least `full` waiting).
    """
    table = queue_lengths(events)
    stream, at, length = table["stream"], table["time_us"], table["queue_length"].astype(float)
    groups = Groups(stream)
    lasts = np.append(np.where(stream[1:] == stream[:-1], np.diff(at), 0.0), 0.0)[: len(at)]
    return Table({
        "stream": groups.first(stream), "count": groups.count, "mean": groups.mean(length), "std": groups.std(length),
        "min": groups.min(length), "median": groups.median(length), "max": groups.max(length),
        "full_us": groups.sum(np.where(length >= full, lasts, 0.0)),
    })  # fmt: skip
