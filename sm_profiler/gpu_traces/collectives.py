"""Collectives: their cost and bandwidth, what of them is exposed, and which rank comes late."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from sm_profiler.formats.columns import Category
from sm_profiler.formats.kineto_reader import Collective, KinetoTrace
from sm_profiler.gpu_traces import intervals
from sm_profiler.gpu_traces.critical_path import of_kind
from sm_profiler.gpu_traces.kernels import COMMUNICATION, COMPUTATION, KINDS, kinds
from sm_profiler.gpu_traces.table import Groups, Table

_OPERATION = re.compile(
    r"all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|broadcast|send_?recv|reduce|gather|scatter|send|recv",
    re.IGNORECASE,
)
_BYTES = {
    "Double": 8, "Long": 8, "ComplexFloat": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2, "Byte": 1, "Char": 1,
    "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip
# Bus bandwidth of n ranks as a multiple of (n - 1) / n of the algorithm's bandwidth, as NCCL's tests define it.
_BUS = {"allreduce": 2.0, "reducescatter": 1.0, "allgather": 1.0, "alltoall": 1.0}


def operation_of(name: str) -> str:
    """Return the operation of a collective, such as `allreduce`."""
    found = _OPERATION.search(name)
    return found[0].lower().replace("_", "") if found else "other"


def collectives(trace: KinetoTrace) -> Table:
    """Return one row per collective on the device, in time order.

    Returns:
        Columns operation, group, group_size, stream, start_us, duration_us, exposed_us (not hidden by computation), bytes and
        bus_gbps (NaN if the size was not recorded).
    """
    events = trace.events
    rows = np.flatnonzero(events.on_device)
    rows = rows[kinds(events[rows]) == KINDS.index(COMMUNICATION)]
    chosen = events[rows]
    hidden = intervals.covered(chosen.start_us, chosen.end_us, of_kind(events.device_events, COMPUTATION))
    described = [trace.collectives[number] if number >= 0 else None for number in chosen.collective.tolist()]
    names = [chosen.name.values[code] for code in chosen.name.codes]
    operations = [
        operation_of(collective.name if collective else name) for collective, name in zip(described, names, strict=True)
    ]
    size = np.array([float(_size(collective)) for collective in described])
    count = np.array([float(collective.group_size) if collective else -1.0 for collective in described])
    factor = np.array([_bus_factor(name, int(n)) for name, n in zip(operations, count, strict=True)])
    with np.errstate(divide="ignore", invalid="ignore"):
        bus = np.where((size > 0) & (chosen.duration_us > 0), size * factor / chosen.duration_us / 1e3, np.nan)
    return Table({
        "operation": Category.of(operations),
        "group": Category.of(collective.group if collective else "" for collective in described),
        "group_size": count.astype(int),
        "stream": chosen.stream,
        "start_us": chosen.start_us,
        "duration_us": chosen.duration_us,
        "exposed_us": chosen.duration_us - hidden,
        "bytes": np.where(size > 0, size, np.nan),
        "bus_gbps": bus,
    })  # fmt: skip


def _size(collective: Collective | None) -> int:
    """Return the bytes that a collective moves; 0 if unknown."""
    if collective is None:
        return 0
    elements = max(collective.in_elements, collective.out_elements, 0)
    return elements * _BYTES.get(collective.element_type, 0)


def _bus_factor(operation: str, ranks: int) -> float:
    return _BUS[operation] * (ranks - 1) / ranks if operation in _BUS and ranks > 1 else 1.0


def communication(trace: KinetoTrace) -> Table:
    """Return the collectives by operation and group, the most exposed first.

    Returns:
        Columns operation, group, group_size, count, sum_us, exposed_us, share_hidden, bytes, bus_gbps (median).
    """
    table = collectives(trace)
    operation, group, size = table.category("operation"), table.category("group"), table["group_size"]
    groups = Groups(operation.codes, group.codes, size)
    total, exposed = groups.sum(table["duration_us"]), groups.sum(table["exposed_us"])
    with np.errstate(divide="ignore", invalid="ignore"):
        hidden = np.where(total > 0, 1 - exposed / total, np.nan)
    return Table({
        "operation": operation[groups.rows].decode(), "group": group[groups.rows].decode(), "group_size": size[groups.rows],
        "count": groups.count, "sum_us": total, "exposed_us": exposed, "share_hidden": hidden,
        "bytes": groups.sum(table["bytes"]), "bus_gbps": groups.median(table["bus_gbps"]),
    }).largest_first("exposed_us")  # fmt: skip


def stragglers(traces: Mapping[int, KinetoTrace]) -> Table:
    """Return how long each rank keeps the others waiting in collectives.

    All ranks leave a collective together, so the one that spends the least time in it came last. The n-th collective of an
    operation and group is the same one on every rank that has as many of them.

    Returns:
        Columns rank, collectives (compared), last (how often it came last), late_us (sum of the differences to the mean
        time of the others), share_last.
    """
    columns = ("rank", "collectives", "last", "late_us", "share_last")
    spent = {rank: _numbered(collectives(trace)) for rank, trace in traces.items()}
    if len(spent) < 2:  # nothing to compare
        return Table.of(columns, ())
    common = set.intersection(*(set(of_rank) for of_rank in spent.values()))
    time = np.array([[of_rank[key] for of_rank in spent.values()] for key in common]).reshape(-1, len(spent))
    least = time.argmin(axis=1)
    others = (time.sum(axis=1, keepdims=True) - time) / (len(spent) - 1)
    late = np.maximum(others - time, 0.0).sum(axis=0)
    rows = []
    for at, rank in enumerate(spent):
        last = int((least == at).sum())
        rows.append((rank, len(common), last, float(late[at]), last / len(common) if common else 0.0))
    return Table.of(columns, rows)


def _numbered(table: Table) -> dict[tuple[Any, ...], float]:
    """Return the times of collectives by operation, group, size, how many of them there are, and their number."""
    keys = list(zip(table["operation"].tolist(), table["group"].tolist(), table["group_size"].tolist(), strict=True))
    counts, seen, found = Counter(keys), Counter[Any](), {}
    for key, time in zip(keys, table["duration_us"].tolist(), strict=True):
        found[(*key, counts[key], seen[key])] = time
        seen[key] += 1
    return found
