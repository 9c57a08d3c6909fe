"""The longest step of a rank: what its host and its streams did, column by column.

A step has thousands of kernels and a picture some hundred columns, so kernels are not drawn. Each column is a stretch of time,
and its value the share of that time in which a stream ran kernels of a kind: nothing is left out, however short.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from sm_profiler.formats.columns import Floats
from sm_profiler.formats.kineto_reader import ANNOTATION, OPERATOR, RUNTIME, KinetoColumns, KinetoTrace
from sm_profiler.gpu_traces import callers, device_time, intervals, kernels, roofline
from sm_profiler.gpu_traces.callers import Callers, frame_of, launch_rows, names_of, step_rows, wait_rows
from sm_profiler.gpu_traces.kernels import KINDS, kinds
from sm_profiler.gpu_traces.measure import LOADING, TOP, RankTime
from sm_profiler.gpu_traces.table import Groups, TraceTable, array_of
from sm_profiler.gpu_traces.traces import GpuTraces

COLUMNS = 240
MAX_STREAMS = 6  # drawn; the others are counted
LOADING_KIND, WAITING_KIND, WORKING_KIND = "loading data", "waiting for the GPU", "working"
_ROUNDS_TO_NOTHING = 0.5  # percent


def describe(gpu: GpuTraces, time: RankTime) -> dict[str, Any]:
    """Return the object of one rank: its time by cause, and the most expensive rows of each table."""
    trace = gpu.ranks[time.rank]
    events, calling = trace.events, gpu.callers(time.rank)
    path = device_time.critical_path(events)
    kinds = path.category("kind")
    spent = np.bincount(kinds.codes, path["duration_us"], len(kinds.values))
    found = time.as_dict()
    found["critical_path_us"] = {kind: round(float(us), 3) for kind, us in zip(kinds.values, spent, strict=True)}
    tables = {
        "idle": device_time.idle(events),
        "kernels": device_time.kernels(events).head(TOP),
        "operators": callers.operators(events, calling).head(TOP),
        "synchronizations": callers.synchronizations(events, calling).head(TOP),
        "communication": device_time.communication(trace).head(TOP),
        "copies": kernels.memory_bandwidth(events),
        "queues": callers.queue_summary(events),
        "flops": roofline.flops(trace),
        "roofline": roofline.roofline(trace, calling).head(TOP),
    }
    longest = longest_step(trace, calling)
    found["longest_step"] = _plain_object(longest) if longest else None
    found |= {key: _plain(value) for key, value in device_time.overlap(events).items()}
    found["phases"] = _phases(events, calling)
    return found | {name: _rows(table) for name, table in tables.items()}


def _phases(events: KinetoColumns, calling: callers.Callers) -> list[dict[str, Any]]:
    """Return the device's time by the phase of the hook that launched it; none without a recording of phases."""
    device = events.device_events
    phase = calling.phases(callers.launch_rows(events, device))
    if not (phase >= 0).any():
        return []
    codes = np.where(phase >= 0, events.name.codes[phase], -1)
    groups = Groups(codes)
    names = [(*events.name.values, "outside")[code] for code in groups.first(codes).tolist()]
    total = groups.sum(device.duration_us)
    table = TraceTable(
        {"phase": array_of(names), "kernels": groups.count, "device_us": total, "share": total / total.sum()}
    )
    return _rows(table.largest_first("device_us"))


def _rows(table: TraceTable) -> list[dict[str, Any]]:
    return [{key: _plain(value) for key, value in row.items()} for row in table.rows()]


def _plain_object(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value if value is None or isinstance(value, list) else _plain(value) for key, value in found.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, str | bool):
        return value
    number = float(value)
    return int(number) if number.is_integer() else float(f"{number:.6g}")


def longest_step(trace: KinetoTrace, callers: Callers) -> dict[str, Any] | None:
    """Return the longest marked step of a trace, or the whole recording if none is marked; None without kernels.

    Returns:
        `step` (None: the whole recording), `start_us`, `length_us`, `usual_us` (median of the marked steps), `steps`, `busy_us` (of the
        device), `kernels` (that ran in it), `gap_us`, `gap_at_us` and `gap_before` (the longest time without kernels, and what was launched
        after it), `streams_left_out`, and `lanes`: each a `name` and, by kind, a percentage per column.
    """
    events = trace.events
    device = events[events.on_device]
    if not len(device):
        return None
    rows = step_rows(events)
    length = events.duration_us[rows]
    if len(rows):
        row = int(rows[np.argmax(length)])
        number = re.search(r"#\s*([0-9]{1,18})", events.name.values[events.name.codes[row]])
        step, start, end = int(number[1]) if number else -1, float(events.start_us[row]), float(events.end_us[row])
    else:
        step, start, end = None, float(device.start_us.min()), float(device.end_us.max())
    if end <= start:
        return None
    inside = device[(device.end_us > start) & (device.start_us < end)]
    lanes, left_out = _streams(inside, start, end)
    busy = intervals.union(np.clip(inside.start_us, start, end), np.clip(inside.end_us, start, end))
    return {
        "step": step, "start_us": start, "length_us": end - start, "usual_us": float(np.median(length)) if len(rows) else end - start,
        "steps": len(rows), "busy_us": float((busy[1] - busy[0]).sum()), "kernels": len(inside), "streams_left_out": left_out,
        **_gap(events, callers, busy, (start, end)), "columns": COLUMNS, "lanes": [_host(events, start, end), *lanes],
    }  # fmt: skip


def _columns(union: tuple[Floats, Floats], start: float, end: float) -> Floats:
    """Return the percentage of each column that a union covers."""
    edges = np.linspace(start, end, COLUMNS + 1)
    return 100 * intervals.covered(edges[:-1], edges[1:], union) / (end - start) * COLUMNS


def _percents(values: Floats) -> list[int]:
    # what is there must not round to nothing
    shown = np.where((values > 0) & (values < _ROUNDS_TO_NOTHING), 1, np.round(values))
    return [int(value) for value in np.clip(shown, 0, 100)]


def _lane(name: str, by_kind: dict[str, Floats]) -> dict[str, Any]:
    return {"name": name, "kinds": {kind: _percents(values) for kind, values in by_kind.items() if (values > 0).any()}}


def _host(events: KinetoColumns, start: float, end: float) -> dict[str, Any]:
    """Return what the threads that launch did: load data, wait for the device, or anything else that was recorded."""
    near = (events.end_us > start) & (events.start_us < end)
    steps = np.zeros(len(events), np.bool_)
    steps[step_rows(events)] = True
    on_host = np.isin(events.category, (OPERATOR, RUNTIME, ANNOTATION)) & near & ~steps
    loading = on_host & events.name.mask(lambda name: LOADING.search(name) is not None)
    waits = wait_rows(events)
    waiting = np.zeros(len(events), np.bool_)
    waiting[waits] = on_host[waits]
    first, second, whole = (
        _columns(intervals.union(events.start_us[chosen], events.end_us[chosen]), start, end)
        for chosen in (loading, waiting, on_host & (events.category != ANNOTATION))
    )
    second = np.minimum(second, 100 - first)
    working = np.clip(np.minimum(whole, 100) - first - second, 0, None)
    return _lane("Host", {LOADING_KIND: first, WAITING_KIND: second, WORKING_KIND: working})


def _streams(inside: KinetoColumns, start: float, end: float) -> tuple[list[dict[str, Any]], int]:
    (names, of), kind = np.unique(inside.stream, return_inverse=True), kinds(inside)
    spent = np.bincount(of, inside.duration_us, len(names))
    shown = sorted(names[np.argsort(spent)[::-1][:MAX_STREAMS]].tolist())
    lanes = []
    for stream in shown:
        by_kind = {}
        left = np.full(COLUMNS, 100.0)
        for number, name in enumerate(KINDS):
            rows = (inside.stream == stream) & (kind == number)
            values = np.minimum(_columns(intervals.union(inside.start_us[rows], inside.end_us[rows]), start, end), left)
            by_kind[name] = values
            left = left - values
        lanes.append(_lane(f"Stream {stream}", by_kind))
    return lanes, len(names) - len(shown)


def _gap(
    events: KinetoColumns, callers: Callers, busy: tuple[Floats, Floats], span: tuple[float, float]
) -> dict[str, Any]:
    """Return the longest time without kernels, and the operator and line that ended it."""
    edges = np.concatenate([[span[0]], busy[1]]), np.concatenate([busy[0], [span[1]]])
    lengths = edges[1] - edges[0]
    at = int(np.argmax(lengths))
    found = {
        "gap_us": float(lengths[at]),
        "gap_at_us": float(edges[0][at] - span[0]),
        "gap_before": "",
        "gap_file": "",
        "gap_line": 0,
    }
    device = events[events.on_device]
    following = int(np.searchsorted(device.start_us, edges[1][at] - 1e-6, "left"))
    if following < len(device) and at < len(busy[0]):
        next_event = device[np.array([following])]
        launch = launch_rows(events, next_event)
        (name,) = names_of(events, callers.operators(launch))
        (frame,) = names_of(events, callers.frames(launch))
        line = frame_of(frame)
        found["gap_before"] = name or next_event.name.values[int(next_event.name.codes[0])]
        if line:
            found |= {"gap_file": line.file, "gap_line": line.line}
    return found
