"""Two recordings of one program side by side: kernels and operators that appeared, vanished, or cost more or less."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sm_profiler.gpu_traces.callers import launch_rows, operators_alone, step_rows
from sm_profiler.gpu_traces.kernels import (
    COMMUNICATION,
    COMPUTATION,
    KINDS,
    MEMORY,
    avoids_tensor_cores,
    copy_direction,
    is_elementwise,
    is_matmul,
    is_pageable,
    kind_of,
    kinds,
    uses_tensor_cores,
)

if TYPE_CHECKING:
    from sm_profiler.formats.kineto_reader import KinetoTrace
    from sm_profiler.gpu_traces.traces import GpuTraces

APPEARED, VANISHED, SLOWER, FASTER, MORE, FEWER, SAME = (
    "appeared", "vanished", "slower", "faster", "more often", "less often", "unchanged",
)  # fmt: skip
MARGIN = 0.05  # smaller relative changes of a count or of a mean time count as none
DEVIATIONS = 2.0  # standard errors that a difference of means has to exceed
_BASE = re.compile(r"^(?:void )?([^<(]+)")


def per(before: GpuTraces, after: GpuTraces) -> str:
    """Return what counts and times of a comparison refer to: `step` if all traces mark steps, else `recording`."""
    marked = all(len(step_rows(trace.events)) for gpu in (before, after) for trace in gpu.ranks.values())
    return "step" if marked else "recording"


def kernel_differences(before: GpuTraces, after: GpuTraces) -> pd.DataFrame:
    """Return the kernels and copies of two recordings, the largest difference first.

    Counts and times are those of a step, or of the whole recording if a trace marks no steps; averaged over ranks. If one
    kernel vanished and one of the same function with other template arguments appeared, they share a row.

    Returns:
        Columns kind, name, name_before (another one, else empty), change (`appeared`, `vanished`, `slower`, `faster`, `more often`,
        `less often`, `unchanged`), count_before, count_after, us_before, us_after, mean_us_before, mean_us_after, difference_us.
    """
    unit = per(before, after)
    old, new = (_kernels(gpu, unit) for gpu in (before, after))
    renamed = _renamed(old.index.difference(new.index), new.index.difference(old.index))
    old = old.rename(index=dict(renamed))
    old = old[~old.index.duplicated()]
    table = _joined(old, new)
    former = {now: name for name, now in renamed}
    table.insert(1, "name_before", [former.get(name, "") for name in table["name"]])
    table.insert(0, "kind", [_kind(old, new, name) for name in table["name"]])
    return table


def operator_differences(before: GpuTraces, after: GpuTraces) -> pd.DataFrame:
    """Return the operators of two recordings, the largest difference first.

    Counts and times are those of a step, or of the whole recording if a trace marks no steps; averaged over ranks. Time on the
    device is that of the kernels which the operator launches itself. If nothing ran on a device, changes are those of the host.

    Returns:
        Columns name, change, count_before, count_after (calls), us_before, us_after (on the device), mean_us_before, mean_us_after,
        difference_us, host_us_before, host_us_after (on the host, without inner operators).
    """
    unit = per(before, after)
    on_host = not any(trace.events.on_device.any() for gpu in (before, after) for trace in gpu.ranks.values())
    old, new = (_operators(gpu, unit, on_host=on_host) for gpu in (before, after))
    table = _joined(old, new)
    for label, frame in (("before", old), ("after", new)):
        table[f"host_us_{label}"] = frame["host_us"].reindex(table["name"]).fillna(0.0).to_numpy()
    if on_host:
        table[["us_before", "us_after"]] = 0.0
    return table


def group_differences(before: GpuTraces, after: GpuTraces) -> pd.DataFrame:
    """Return the time on the device by what a kernel is for, which compares devices whose kernels have other names, too.

    Returns:
        Columns group (`matrix products, tensor cores`, `elementwise`, `Memcpy HtoD`, …), count_before, count_after, us_before,
        us_after, difference_us; the largest difference first.
    """
    unit = per(before, after)
    frames = []
    for gpu in (before, after):
        frame = _kernels(gpu, unit).reset_index()
        frame["group"] = [
            group_of(str(name), str(kind)) for name, kind in zip(frame["name"], frame["kind"], strict=True)
        ]
        frames.append(frame.groupby("group")[["count", "us"]].sum())
    table = _beside(*frames).reset_index()
    return _ordered(table[["group", "count_before", "count_after", "us_before", "us_after"]])


def group_of(name: str, kind: str | None = None) -> str:
    """Return what a kernel is for."""
    kind = kind or kind_of(name)
    if kind == MEMORY:
        return copy_direction(name) + (" (pageable)" if is_pageable(name) else "")
    if kind == COMMUNICATION:
        return "communication"
    if is_matmul(name):
        if uses_tensor_cores(name):
            return "matrix products, tensor cores"
        return "matrix products, no tensor cores" if avoids_tensor_cores(name) else "matrix products"
    return "elementwise" if is_elementwise(name) else "other computation"


def _parts(gpu: GpuTraces, unit: str) -> float:
    """Return by what sums over all ranks are divided."""
    if unit == "step":
        return float(sum(len(step_rows(trace.events)) for trace in gpu.ranks.values()))
    return float(len(gpu.ranks))


def _kernels(gpu: GpuTraces, unit: str) -> pd.DataFrame:
    parts = []
    for trace in gpu.ranks.values():
        device = trace.events[trace.events.on_device]
        frame = pd.DataFrame({"code": device.name.codes, "us": device.duration_us, "kind": kinds(device)})
        frame["square"] = frame["us"] ** 2
        sums = frame.groupby("code").agg(
            calls=("us", "size"), us=("us", "sum"), square=("square", "sum"), kind=("kind", "first")
        )
        sums["name"] = [device.name.values[int(code)] for code in sums.index]
        parts.append(sums)
    whole = pd.concat(parts).groupby("name").agg({"calls": "sum", "us": "sum", "square": "sum", "kind": "first"})
    whole["kind"] = [KINDS[int(kind)] for kind in whole["kind"]]
    return _per_part(whole, _parts(gpu, unit))


def _operators(gpu: GpuTraces, unit: str, *, on_host: bool) -> pd.DataFrame:
    parts = [_operators_of(gpu, rank, trace, on_host=on_host) for rank, trace in gpu.ranks.items()]
    return _per_part(pd.concat(parts).groupby("name").sum(), _parts(gpu, unit))


def _operators_of(gpu: GpuTraces, rank: int, trace: KinetoTrace, *, on_host: bool) -> pd.DataFrame:
    events = trace.events
    on_device = np.zeros(len(events))
    device = events.device_events
    around = gpu.callers(rank).operators(launch_rows(events, device))
    known = around >= 0
    np.add.at(on_device, around[known], device.duration_us[known])
    rows, alone = operators_alone(events)
    time = (alone if on_host else on_device)[rows]
    frame = pd.DataFrame({
        "code": events.name.codes[rows], "us": time, "square": time ** 2, "host_us": alone[rows],
    })  # fmt: skip
    sums = frame.groupby("code").agg(
        calls=("us", "size"), us=("us", "sum"), square=("square", "sum"), host_us=("host_us", "sum")
    )
    sums["name"] = [events.name.values[int(code)] for code in sums.index]
    return sums


def _per_part(sums: pd.DataFrame, parts: float) -> pd.DataFrame:
    """Return counts and times of a part, and the mean and its standard error of a single call."""
    sums["mean"] = sums["us"] / sums["calls"]
    spread = (sums["square"] / sums["calls"] - sums["mean"] ** 2).clip(lower=0) ** 0.5
    sums["error"] = spread / sums["calls"] ** 0.5
    sums["count"] = sums["calls"] / parts
    for column in ("us", "host_us"):
        if column in sums:
            sums[column] /= parts
    return sums


def _renamed(gone: pd.Index[str], new: pd.Index[str]) -> list[tuple[str, str]]:
    """Pair kernels of the same function if only one of each side has it."""
    sides = []
    for names in (gone, new):
        by_base: dict[str, list[str]] = {}
        for name in names:
            found = _BASE.match(name)
            by_base.setdefault(found[1].strip() if found else name, []).append(name)
        sides.append({base: same[0] for base, same in by_base.items() if len(same) == 1})
    return [(name, sides[1][base]) for base, name in sides[0].items() if base in sides[1]]


def _kind(old: pd.DataFrame, new: pd.DataFrame, name: str) -> str:
    return str((new if name in new.index else old).loc[name, "kind"] or COMPUTATION)


def _joined(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    columns = ["count", "us", "mean", "error"]
    both = _beside(old[columns], new[columns])
    both["change"] = _changes(both)
    both = both.rename(columns={"mean_before": "mean_us_before", "mean_after": "mean_us_after"})
    both.index.name = "name"
    order = ["change", "count_before", "count_after", "us_before", "us_after", "mean_us_before", "mean_us_after"]
    return _ordered(both[order].reset_index())


def _beside(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    both = old.merge(new, how="outer", left_index=True, right_index=True, suffixes=("_before", "_after"))
    return both.fillna(0.0)


def _changes(both: pd.DataFrame) -> list[str]:
    first, second = both["count_before"].to_numpy(), both["count_after"].to_numpy()
    mean, later = both["mean_before"].to_numpy(), both["mean_after"].to_numpy()
    error = np.hypot(both["error_before"].to_numpy(), both["error_after"].to_numpy())
    clear = (np.abs(later - mean) > MARGIN * mean) & (np.abs(later - mean) > DEVIATIONS * error)
    often = np.abs(second - first) > MARGIN * first
    by_count, by_time = np.abs(second - first) * mean, np.abs(later - mean) * second
    chosen = np.select(
        [first == 0, second == 0, clear & (~often | (by_time >= by_count)), often],
        [0, 1, np.where(later > mean, 2, 3), np.where(second > first, 4, 5)],
        6,
    )
    names = (APPEARED, VANISHED, SLOWER, FASTER, MORE, FEWER, SAME)
    return [names[int(each)] for each in chosen]


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    table["difference_us"] = table["us_after"] - table["us_before"]
    order = table["difference_us"].abs().sort_values(ascending=False, kind="stable").index
    return table.loc[order].reset_index(drop=True)
