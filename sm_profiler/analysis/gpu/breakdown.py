"""Division of a GPU's time: computing, communicating, copying, and idle by reason."""

from __future__ import annotations

import numpy as np

from sm_profiler.analysis.gpu import nesting
from sm_profiler.analysis.gpu.kernels import COMMUNICATION, COMPUTATION, KINDS, kinds
from sm_profiler.analysis.gpu.launches import launch_starts
from sm_profiler.analysis.gpu.table import Groups, Table, array_of
from sm_profiler.formats.columns import Floats
from sm_profiler.formats.kineto_reader import KinetoColumns

HOST_WAIT, KERNEL_WAIT, OTHER = "host_wait", "kernel_wait", "other"
CONSECUTIVE_US = 30.0  # a queued kernel that starts later than this waited for something besides the previous kernel


def of_kind(device: KinetoColumns, kind: str) -> tuple[Floats, Floats]:
    """Return the union of the kernels of one kind."""
    rows = kinds(device) == KINDS.index(kind)
    return nesting.union(device.start_us[rows], device.end_us[rows])


def temporal(events: KinetoColumns) -> dict[str, float]:
    """Return idle_us, compute_us, non_compute_us and total_us from the first to the last kernel.

    `non_compute_us` is the time in which the device only communicated or copied.
    """
    device = events.device_events
    if not len(device):
        return dict.fromkeys(("idle_us", "compute_us", "non_compute_us", "total_us"), 0.0)
    busy = nesting.total(device.start_us, device.end_us)
    whole = float(device.end_us.max() - device.start_us.min())
    starts, ends = of_kind(device, COMPUTATION)
    compute = float((ends - starts).sum())
    return {"idle_us": whole - busy, "compute_us": compute, "non_compute_us": busy - compute, "total_us": whole}


def idle(events: KinetoColumns, delay_us: float = CONSECUTIVE_US) -> Table:
    """Return the idle time of each stream by reason.

    `host_wait`: the host launched the next kernel after the previous one had ended. `kernel_wait`: it was queued, and
    started within `delay_us`. `other`: it was queued and started later: it waited for another stream or an event.

    Returns:
        Columns stream, category, idle_us, share.
    """
    device = events.device_events
    launched = launch_starts(events, device)
    rows = []
    for stream in np.unique(device.stream):
        of_stream = device.stream == stream
        start, end, launch = device.start_us[of_stream], device.end_us[of_stream], launched[of_stream]
        before = np.maximum.accumulate(end)[:-1]
        gap = np.maximum(start[1:] - before, 0.0)
        late = launch[1:] > before
        near = ~late & (gap < delay_us)
        sums = {HOST_WAIT: gap[late].sum(), KERNEL_WAIT: gap[near].sum(), OTHER: gap[~late & ~near].sum()}
        whole = sum(sums.values())
        rows += [
            (int(stream), name, float(value), float(value / whole) if whole else 0.0) for name, value in sums.items()
        ]
    return Table.of(("stream", "category", "idle_us", "share"), rows)


def overlap(events: KinetoColumns) -> dict[str, float]:
    """Return `share_hidden`, the share of communication that computation hides, and `exposed_us`, the rest."""
    device = events.device_events
    communication, computation = of_kind(device, COMMUNICATION), of_kind(device, COMPUTATION)
    length = float((communication[1] - communication[0]).sum())
    hidden = nesting.intersection(communication, computation) if length else 0.0
    return {"share_hidden": hidden / length if length else float("nan"), "exposed_us": length - hidden}


def by_kind(events: KinetoColumns) -> Table:
    """Return the time in each kind of kernel, and in each combination of kinds that ran at the same time.

    Returns:
        Columns kind (`computation`, `communication and memory`, …), sum_us, share of the busy time.
    """
    device = events.device_events
    edges, changes = [], []
    for bit, kind in enumerate(KINDS):
        starts, ends = of_kind(device, kind)
        edges += [starts, ends]
        changes += [np.full(len(starts), 1 << bit), np.full(len(ends), -(1 << bit))]
    at, change = np.concatenate(edges), np.concatenate(changes)
    order = np.argsort(at, kind="stable")
    state = np.cumsum(change[order])[:-1] if len(order) else np.empty(0, int)
    length = np.diff(at[order])
    sums = {
        " and ".join(kind for bit, kind in enumerate(KINDS) if value >> bit & 1): float(length[state == value].sum())
        for value in range(1, 1 << len(KINDS))
        if (state == value).any()
    }
    busy = sum(sums.values())
    rows = [(kind, value, value / busy) for kind, value in sums.items() if value > 0]
    return Table.of(("kind", "sum_us", "share"), sorted(rows, key=lambda row: -row[1]))


def kernels(events: KinetoColumns) -> Table:
    """Return one row per kernel, the most expensive first.

    Returns:
        Columns kind, name, count, sum_us, mean_us, min_us, max_us, std_us, share of the time in all kernels.
    """
    device = events.device_events
    kind, us = kinds(device), device.duration_us
    groups = Groups(device.name.codes, kind)
    total = groups.sum(us)
    names = [device.name.values[code] for code in groups.first(device.name.codes).tolist()]
    whole = float(total.sum())
    table = Table({
        "kind": array_of([KINDS[one] for one in groups.first(kind).tolist()]), "name": array_of(names),
        "count": groups.count, "sum_us": total, "mean_us": groups.mean(us), "min_us": groups.min(us),
        "max_us": groups.max(us), "std_us": groups.std(us), "share": total / whole if whole else np.zeros(len(groups)),
    })  # fmt: skip
    return table.take(np.array(sorted(range(len(names)), key=lambda row: (-total[row], names[row])), np.intp))
