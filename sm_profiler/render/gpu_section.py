"""The page's content about traces of torch.profiler, from report.json's `gpu_traces`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from sm_profiler.formatting import duration, percent, plural, shorten
from sm_profiler.gpu_traces.kernels import KINDS
from sm_profiler.gpu_traces.step_view import LOADING_KIND, WAITING_KIND, WORKING_KIND
from sm_profiler.render import charts
from sm_profiler.render.blocks import PageTable, Picture, Section

MAX_RANKS = 12  # with bars and tables
MAX_STEPS = 3  # drawn, each of another rank
_LONGEST = 100  # characters of a kernel's name
# Kinds of a step's lanes: label and colour.
_KINDS = {
    KINDS[0]: ("Computing", "blue"), KINDS[1]: ("Communicating", "violet"), KINDS[2]: ("Copying", "teal"),
    LOADING_KIND: ("Host loads data", "amber"), WAITING_KIND: ("Host waits for the GPU", "rose"), WORKING_KIND: ("Host works", "sky"),
}  # fmt: skip

Trace = Mapping[str, Any]

_BOUNDS = {"compute": "its arithmetic", "memory": "memory", "launch": "its launches", "": "unknown"}
_TENSOR = re.compile(r"\[([0-9, ]+)\]")


@attrs.frozen
class GpuPart:
    """A part of a GPU's time.

    Attributes:
        key: its key in `gpu_traces`.
        label: name in charts.
    """

    key: str
    label: str


PARTS = (
    GpuPart("compute_us", "Computing"),
    GpuPart("exposed_communication_us", "Only communicating"),
    GpuPart("exposed_copies_us", "Only copying"),
    GpuPart("idle_input_us", "Idle: data loading"),
    GpuPart("idle_sync_us", "Idle: after a wait for the GPU"),
    GpuPart("idle_once_us", "Idle: a few long gaps"),
    GpuPart("idle_allocation_us", "Idle: its memory is freed and allocated"),
    GpuPart("idle_launch_us", "Idle: slow launches"),
    GpuPart("idle_queued_us", "Idle: queued work"),
)


def tiles(traces: Sequence[Trace]) -> list[tuple[str, str, str]]:
    """Return the tiles of the job at a glance: label, value, note."""
    if not traces:
        return []
    total = float(np.mean([trace["total_us"] for trace in traces])) / 1e6
    devices = sorted({str(trace["device"]) for trace in traces if trace["device"]})
    computing = float(np.mean([_share(trace, "compute_us") for trace in traces]))
    found = [
        ("Recorded", duration(total), f"{plural(len(traces), 'rank')}"),
        ("Computing", percent(computing), "of the recorded time"),
        ("Launches", f"{sum(int(trace['launches']) for trace in traces):,}", ""),
    ]
    arithmetic = [row for trace in traces for row in trace["flops"]]
    known = [float(row["mfu"]) for row in arithmetic if row["mfu"] is not None and np.isfinite(row["mfu"])]
    if known:
        found.append(("FLOPs utilization", percent(float(np.mean(known))), "of the matrix products, MFU"))
    return [*found, ("GPU", shorten(", ".join(devices), 60), "")] if devices else found


def sections(traces: Sequence[Trace], *, of_windows: bool = True) -> list[Section]:
    """Return the sections: time, kernels and operators, waits, communication and copies.

    Args:
        traces: what the traces show of each rank.
        of_windows: the ledger of the page is not theirs, so that a table shows where their time went.
    """
    if not traces:
        return []
    shown = traces[:MAX_RANKS]
    note = (f"{len(traces) - MAX_RANKS} more ranks are in report.json.",) if len(traces) > MAX_RANKS else ()
    return [
        Section("gpu-time", "GPU time", (*_time_sentences(traces), *note), (_time_table(shown),) if of_windows else ()),
        _longest_steps(traces),
        Section("gpu-kernels", "Kernels and operators", _kernel_sentences(traces), _kernel_tables(shown)),
        *_phases(shown), *_limits(shown), _waits(shown), _communication(shown), _copies(shown),
    ]  # fmt: skip


def _share(trace: Trace, key: str) -> float:
    return float(trace[key]) / float(trace["total_us"]) if trace["total_us"] else 0.0


def _us(value: Any) -> str:
    return duration(float(value) / 1e6).replace(" ", "\N{NO-BREAK SPACE}")


def _time_sentences(traces: Sequence[Trace]) -> tuple[str, ...]:
    path: dict[str, float] = {}
    for trace in traces:
        for kind, us in trace["critical_path_us"].items():
            path[kind] = path.get(kind, 0.0) + float(us)
    whole = sum(path.values())
    if not whole:
        return ()
    ordered = sorted(path.items(), key=lambda item: -item[1])[:3]
    named = ", ".join(f"{percent(us / whole)} {kind}" for kind, us in ordered)
    return (f"Critical path, the chain of work that sets the length: {named}.",)


def _time_table(traces: Sequence[Trace]) -> PageTable:
    shown = [part for part in PARTS if any(trace[part.key] for trace in traces)]
    rows = tuple(
        (str(trace["rank"]), _us(trace["total_us"]), *(percent(_share(trace, part.key)) for part in shown))
        for trace in traces
    )  # fmt: skip
    return PageTable(("Rank", "Recorded", *(part.label for part in shown)), rows)


def _longest_steps(traces: Sequence[Trace]) -> Section:
    """Draw the longest steps of all ranks, each of another rank."""
    title = "Longest steps"
    found = [(trace["rank"], trace["longest_step"]) for trace in traces if trace.get("longest_step")]
    if not found:
        return Section("gpu-steps", title, missing="No kernels were recorded.")
    found.sort(key=lambda item: -float(item[1]["length_us"]))
    shown = found[:MAX_STEPS]
    sentences = [_about_step(rank, step) for rank, step in shown]
    column = max(float(step["length_us"]) / int(step["columns"]) for _, step in shown)
    sentences.append(
        f"Each of a picture's {shown[0][1]['columns']} columns is {'up to ' if len(shown) > 1 else ''}{_us(column)} wide; its coloured "
        "height is the share of that time in which the lane did this. No kernel is left out, none is drawn by itself."
    )
    if len(found) > len(shown):
        sentences.append(f"The longest steps of {plural(len(found) - len(shown), 'other rank')} are in report.json.")
    return Section(
        "gpu-steps", title, tuple(sentences), pictures=tuple(_step_picture(rank, step) for rank, step in shown)
    )


def _name_of(rank: int, step: Mapping[str, Any]) -> str:
    return f"Rank {rank}, " + ("whole recording" if step["step"] is None else f"step {step['step']}")


def _about_step(rank: int, step: Mapping[str, Any]) -> str:
    usual = f" (median of {step['steps']} steps: {_us(step['usual_us'])})" if int(step["steps"]) > 1 else ""
    busy = percent(float(step["busy_us"]) / float(step["length_us"]))
    parts = [
        f"{_name_of(rank, step)}: {_us(step['length_us'])}{usual}, {plural(int(step['kernels']), 'kernel')}, the GPU is busy {busy} of it."
    ]
    if float(step["gap_us"]) > 0:
        line = f" ({step['gap_file']}:{step['gap_line']})" if step["gap_file"] else ""
        before = f", before {shorten(str(step['gap_before']), 60)}{line}" if step["gap_before"] else ""
        parts.append(f"Longest gap: {_us(step['gap_us'])} after {_us(step['gap_at_us'])}{before}.")
    if step["streams_left_out"]:
        parts.append(f"{plural(int(step['streams_left_out']), 'stream')} with less work not drawn.")
    return " ".join(parts)


def _step_picture(rank: int, step: Mapping[str, Any]) -> Picture:
    lanes = step["lanes"]
    title = f"{_name_of(rank, step)}: {_us(step['length_us'])}"
    drawn = [
        charts.Strip(
            shorten(str(lane["name"]), 16),
            [(_KINDS[kind][1], _KINDS[kind][0], values) for kind, values in lane["kinds"].items()],
        )
        for lane in lanes
    ]
    used = {kind for lane in lanes for kind in lane["kinds"]}
    legend = tuple((label, colour, "") for kind, (label, colour) in _KINDS.items() if kind in used)
    return Picture(charts.strips(drawn, float(step["length_us"]) / 1e6, title), title, legend, "chart wide")


def _kernel_sentences(traces: Sequence[Trace]) -> tuple[str, ...]:
    short = float(np.mean([trace["short_kernels"] for trace in traces]))
    plain = float(np.mean([_share(trace, "matmul_plain_us") for trace in traces]))
    products = float(np.mean([_share(trace, "matmul_us") for trace in traces]))
    return (
        f"{percent(short)} of the kernels are shorter than the call that launches them.",
        f"Matrix products take {percent(products)} of the time, {percent(plain)} without tensor cores.",
    )


def _kernel_tables(traces: Sequence[Trace]) -> tuple[PageTable, ...]:
    kernels = tuple(
        (
            shorten(str(row["name"]), _LONGEST), str(trace["rank"]), str(row["kind"]), f"{row['count']:,}", _us(row["sum_us"]),
            _us(row["mean_us"]), percent(float(row["share"])),
        )
        for trace in traces for row in trace["kernels"]
    )  # fmt: skip
    operators = tuple(
        (
            shorten(str(row["operator"] or "unknown"), _LONGEST), str(trace["rank"]), _place(row), f"{row['kernels']:,}",
            _us(row["device_us"]), percent(float(row["share"])),
        )
        for trace in traces for row in trace["operators"]
    )  # fmt: skip
    return (
        PageTable(("Kernel", "Rank", "Kind", "Count", "Time", "Mean", "Share"), kernels),
        PageTable(("Operator that launches", "Rank", "Where", "Kernels", "GPU time", "Share"), operators),
    )


def _phases(traces: Sequence[Trace]) -> list[Section]:
    """Return the time of each phase of the hook, for traces of its windows."""
    rows = tuple(
        (str(row["phase"]), str(trace["rank"]), f"{row['kernels']:,}", _us(row["device_us"]), percent(float(row["share"])))
        for trace in traces for row in trace.get("phases", ())
    )  # fmt: skip
    head = ("Launched in", "Rank", "Kernels", "GPU time", "Share")
    return [Section("gpu-phases", "Phases on the GPU", tables=(PageTable(head, rows),))] if rows else []


def _limits(traces: Sequence[Trace]) -> list[Section]:
    """Return what limits the operators, if shapes were recorded."""
    rows = tuple(
        (
            shorten(str(row["operator"]), 40), _sizes(str(row["shapes"])), str(trace["rank"]), f"{row['calls']:,}",
            _us(row["device_us"]), _rates(row), _limit(row),
        )
        for trace in traces for row in trace.get("roofline", ())
    )  # fmt: skip
    head = ("Operator", "Inputs", "Rank", "Calls", "GPU time", "Achieves", "Limited by")
    sentence = (
        "The peak is the device's by its data sheet. An operator that reaches little of it, though nothing else limits it, "
        "has inputs that are too small, or of unfortunate sizes."
    )
    return [Section("gpu-limits", "What limits the operators", (sentence,), (PageTable(head, rows),))] if rows else []


def _sizes(shapes: str) -> str:
    """Return shapes as people write them: `1024x647x96, 1024x96x30`."""
    found = [sizes.replace(", ", "x").replace(",", "x") for sizes in _TENSOR.findall(shapes)]
    return shorten(", ".join(found), 40)


def _rates(row: Mapping[str, Any]) -> str:
    rates = ((row["tflops"], "TFLOP/s"), (row["gbps"], "GB/s"))
    return ", ".join(f"{float(rate):,.{1 if rate < 10 else 0}f} {unit}" for rate, unit in rates if rate)  # digits


def _limit(row: Mapping[str, Any]) -> str:
    share = _hidden(row["share_of_peak"])
    return _BOUNDS[str(row["bound"])] + (f", {share} of the peak" if share else "")


def _place(row: Mapping[str, Any]) -> str:
    if row["file"]:
        return shorten(f"{row['file']}:{row['line']}", 60)
    gradient = f"gradient of {row['forward']}" if row.get("forward") else ""
    known = (row.get(key) for key in ("module", "annotation", "phase"))
    return shorten(str(next(filter(None, known), "") or gradient or row.get("caller") or ""), 60)


def _waits(traces: Sequence[Trace]) -> Section:
    rows = tuple(
        (
            shorten(str(row["call"]), _LONGEST), str(trace["rank"]), shorten(str(row["operator"]), 60), _place(row),
            f"{row['count']:,}", _us(row["host_us"]), _us(row["idle_after_us"]),
        )
        for trace in traces for row in trace["synchronizations"]
    )  # fmt: skip
    title = "Waits for the GPU"
    if not rows:
        return Section("gpu-waits", title, missing="The host never waited for the GPU for more than 5 µs.")
    head = ("Call", "Rank", "Operator", "Where", "Count", "Host waits", "GPU idle afterwards")
    return Section("gpu-waits", title, tables=(PageTable(head, rows),))


def _communication(traces: Sequence[Trace]) -> Section:
    rows = tuple(
        (
            f"{row['operation']} {row['group']}".strip(), str(trace["rank"]), f"{row['count']:,}", _us(row["sum_us"]),
            _us(row["exposed_us"]), _hidden(row["share_hidden"]), _number(row["bus_gbps"], "GB/s"),
        )
        for trace in traces for row in trace["communication"]
    )  # fmt: skip
    title = "Communication"
    if not rows:
        return Section("gpu-communication", title, missing="No collectives were recorded.")
    head = ("Collective", "Rank", "Count", "Time", "Exposed", "Hidden", "Bus bandwidth")
    hidden = [
        float(trace["share_hidden"])
        for trace in traces
        if trace["share_hidden"] is not None and np.isfinite(trace["share_hidden"])
    ]
    sentence = (f"Computation hides {percent(float(np.mean(hidden)))} of the communication's time.",) if hidden else ()
    return Section("gpu-communication", title, sentence, tables=(PageTable(head, rows),))


def _hidden(share: Any) -> str:
    return percent(float(share)) if share is not None and np.isfinite(share) else ""


def _copies(traces: Sequence[Trace]) -> Section:
    rows = tuple(
        (
            str(row["direction"]) + (" (pageable)" if row["pageable"] else ""), str(trace["rank"]), f"{row['count']:,}",
            _number(float(row["bytes"]) / 1e6, "MB"), _us(row["sum_us"]), _number(row["gbps"], "GB/s"),
        )
        for trace in traces for row in trace["copies"]
    )  # fmt: skip
    title = "Copies"
    if not rows:
        return Section("gpu-copies", title, missing="No copies were recorded.")
    return Section(
        "gpu-copies", title, tables=(PageTable(("Direction", "Rank", "Count", "Size", "Time", "Bandwidth"), rows),)
    )


def _number(value: Any, unit: str) -> str:
    return f"{float(value):,.3g} {unit}" if value is not None and np.isfinite(float(value)) and value > 0 else "unknown"
