"""Content of report.json's `gpu_traces`: one object a rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from sm_profiler.analysis.gpu import breakdown, callers, collectives, copies, flops, launches, roofline
from sm_profiler.analysis.gpu.critical_path import critical_path
from sm_profiler.analysis.gpu.gpu_traces import GpuTraces
from sm_profiler.analysis.gpu.table import Groups, Table, array_of
from sm_profiler.formats.kineto_reader import KinetoColumns
from sm_profiler.metrics.gpu.measure import TOP, RankTime
from sm_profiler.metrics.gpu.step_view import longest_step


def describe(gpu: GpuTraces, time: RankTime) -> dict[str, Any]:
    """Return the object of one rank: its time by cause, and the most expensive rows of each table."""
    trace = gpu.ranks[time.rank]
    events, calling = trace.events, gpu.callers(time.rank)
    path = critical_path(events)
    kinds = path.category("kind")
    spent = np.bincount(kinds.codes, path["duration_us"], len(kinds.values))
    found = time.as_dict()
    found["critical_path_us"] = {kind: round(float(us), 3) for kind, us in zip(kinds.values, spent, strict=True)}
    tables = {
        "idle": breakdown.idle(events),
        "kernels": breakdown.kernels(events).head(TOP),
        "operators": callers.operators(events, calling).head(TOP),
        "synchronizations": callers.synchronizations(events, calling).head(TOP),
        "communication": collectives.communication(trace).head(TOP),
        "copies": copies.memory_bandwidth(events),
        "queues": launches.queue_summary(events),
        "flops": flops.flops(trace),
        "roofline": roofline.roofline(trace, calling).head(TOP),
    }
    longest = longest_step(trace, calling)
    found["longest_step"] = _plain_object(longest) if longest else None
    found |= {key: _plain(value) for key, value in breakdown.overlap(events).items()}
    found["phases"] = _phases(events, calling)
    return found | {name: _rows(table) for name, table in tables.items()}


def _phases(events: KinetoColumns, calling: callers.Callers) -> list[dict[str, Any]]:
    """Return the device's time by the phase of the hook that launched it; none without a recording of phases."""
    device = events.device_events
    phase = calling.phases(launches.launch_rows(events, device))
    if not (phase >= 0).any():
        return []
    codes = np.where(phase >= 0, events.name.codes[phase], -1)
    groups = Groups(codes)
    names = [(*events.name.values, "outside")[code] for code in groups.first(codes).tolist()]
    total = groups.sum(device.duration_us)
    table = Table({"phase": array_of(names), "kernels": groups.count, "device_us": total, "share": total / total.sum()})
    return _rows(table.largest_first("device_us"))


def _rows(table: Table) -> list[dict[str, Any]]:
    return [{key: _plain(value) for key, value in row.items()} for row in table.rows()]


def _plain_object(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value if value is None or isinstance(value, list) else _plain(value) for key, value in found.items()}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, floats rounded to six digits."""
    if isinstance(value, str | bool):
        return value
    number = float(value)
    return int(number) if number.is_integer() else float(f"{number:.6g}")
