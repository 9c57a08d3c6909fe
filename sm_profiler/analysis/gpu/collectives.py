"""Collectives: their cost and bandwidth, what of them is exposed, and which rank comes late."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from sm_profiler.analysis.gpu import nesting
from sm_profiler.analysis.gpu.breakdown import of_kind
from sm_profiler.analysis.gpu.kernels import COMMUNICATION, COMPUTATION, KINDS, kinds
from sm_profiler.formats.kineto_reader import Collective, KinetoTrace

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


def collectives(trace: KinetoTrace) -> pd.DataFrame:
    """Return one row per collective on the device, in time order.

    Returns:
        Columns operation, group, group_size, stream, start_us, duration_us, exposed_us (not hidden by computation), bytes and
        bus_gbps (NaN if the size was not recorded).
    """
    events = trace.events
    rows = np.flatnonzero(events.on_device)
    rows = rows[kinds(events[rows]) == KINDS.index(COMMUNICATION)]
    chosen = events[rows]
    hidden = nesting.covered(chosen.start_us, chosen.end_us, of_kind(events[events.on_device], COMPUTATION))
    described = [trace.collectives.get(int(row)) for row in rows]
    names = [chosen.name.values[code] for code in chosen.name.codes]
    operations = [operation_of(one.name if one else name) for one, name in zip(described, names, strict=True)]
    size = np.array([float(_size(one)) for one in described])
    count = np.array([float(one.group_size) if one else -1.0 for one in described])
    factor = np.array([_bus_factor(name, int(n)) for name, n in zip(operations, count, strict=True)])
    with np.errstate(divide="ignore", invalid="ignore"):
        bus = np.where((size > 0) & (chosen.duration_us > 0), size * factor / chosen.duration_us / 1e3, np.nan)
    return pd.DataFrame({
        "operation": operations,
        "group": [one.group if one else "" for one in described],
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


def communication(trace: KinetoTrace) -> pd.DataFrame:
    """Return the collectives by operation and group, the most exposed first.

    Returns:
        Columns operation, group, group_size, count, sum_us, exposed_us, share_hidden, bytes, bus_gbps (median).
    """
    frame = collectives(trace)
    grouped = frame.groupby(["operation", "group", "group_size"], sort=False)
    result = grouped.agg(
        count=("duration_us", "count"), sum_us=("duration_us", "sum"), exposed_us=("exposed_us", "sum"),
        bytes=("bytes", "sum"), bus_gbps=("bus_gbps", "median"),
    ).reset_index()  # fmt: skip
    with np.errstate(divide="ignore", invalid="ignore"):
        hidden = np.where(result["sum_us"] > 0, 1 - result["exposed_us"] / result["sum_us"], np.nan)
    result.insert(6, "share_hidden", hidden)
    return result.sort_values("exposed_us", ascending=False, ignore_index=True)


def stragglers(traces: dict[int, KinetoTrace]) -> pd.DataFrame:
    """Return how long each rank keeps the others waiting in collectives.

    All ranks leave a collective together, so the one that spends the least time in it came last. The n-th collective of an
    operation and group is the same one on every rank that has as many of them.

    Returns:
        Columns rank, collectives (compared), last (how often it came last), late_us (sum of the differences to the mean
        time of the others), share_last.
    """
    tables = {rank: collectives(trace) for rank, trace in traces.items()}
    keys = ["operation", "group", "group_size"]
    parts = []
    for rank, table in tables.items():
        numbered = table[[*keys, "duration_us"]].copy()
        numbered["number"] = numbered.groupby(keys).cumcount()
        numbered["count"] = numbered.groupby(keys)["number"].transform("size")
        numbered["rank"] = rank
        parts.append(numbered)
    if len(parts) < 2:  # noqa: PLR2004 - nothing to compare
        return pd.DataFrame(columns=["rank", "collectives", "last", "late_us", "share_last"])
    together = pd.concat(parts).pivot_table(index=[*keys, "count", "number"], columns="rank", values="duration_us")
    together = together.dropna()
    rows = []
    least = together.idxmin(axis=1)
    for each in tables:
        late = (together.drop(columns=each).mean(axis=1) - together[each]).clip(lower=0).sum()
        last = int((least == each).sum())
        rows.append((each, len(together), last, float(late), last / len(together) if len(together) else 0.0))
    return pd.DataFrame(rows, columns=["rank", "collectives", "last", "late_us", "share_last"])
