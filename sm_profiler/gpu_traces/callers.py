"""The host's side of each kernel: the call that launched it, and the operator, module, annotation and line of Python around that."""

from __future__ import annotations

import re
from collections.abc import Callable

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats, Mask
from sm_profiler.formats.kineto_reader import (
    ANNOTATION,
    GPU_ANNOTATION,
    OPERATOR,
    PHASE,
    PYTHON,
    RUNTIME,
    KinetoColumns,
    KinetoTrace,
)
from sm_profiler.formatting import is_library
from sm_profiler.gpu_traces import intervals
from sm_profiler.gpu_traces.intervals import Nest, Numbers
from sm_profiler.gpu_traces.table import Groups, TraceTable, array_of

_STEP = re.compile(r"ProfilerStep\s*#\s*([0-9]{1,12})")

BLOCKING_US = 5.0  # a call that returns sooner found its work done
_SYNCHRONIZE, _COPY = re.compile(r"Synchronize$"), re.compile(r"Synchronize$|^(cuda|hip)Memcpy$")

FULL_QUEUE = 1024  # operations that CUDA queues per stream before a launch blocks

_FRAME = re.compile(r"^(?P<file>[^<].*\.py)\((?P<line>[0-9]{1,9})\): (?P<function>.*)$", re.DOTALL)
_MODULE = "nn.Module: "


def step_rows(events: KinetoColumns) -> Numbers:
    marked = events.name.mask(lambda name: _STEP.search(name) is not None)
    return np.flatnonzero(marked & np.isin(events.category, (ANNOTATION, OPERATOR)))


def steps(events: KinetoColumns) -> TraceTable:
    """Return the steps that the trace marks.

    Returns:
        Columns step, start_us, end_us.
    """
    rows = step_rows(events)
    numbers = [_STEP.search(events.name.values[code]) for code in events.name.codes[rows]]
    return TraceTable({
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


def wait_rows(events: KinetoColumns, *, copies: bool = False) -> Numbers:
    """Return the rows of the calls in which the host waited for the device.

    Args:
        copies: include copies that return when they are done.
    """
    pattern = _COPY if copies else _SYNCHRONIZE
    calls = (events.category == RUNTIME) & (events.duration_us >= BLOCKING_US)
    return np.flatnonzero(calls & events.name.mask(lambda name: pattern.search(name) is not None))


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


def launch_statistics(events: KinetoColumns) -> TraceTable:
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
    return TraceTable({
        "correlation": device.correlation,
        "name": device.name,
        "call": calls.name,
        "stream": device.stream,
        "cpu_us": calls.duration_us,
        "gpu_us": device.duration_us,
        "delay_us": delay,
        "shorter_than_launch": device.duration_us < calls.duration_us,
    })  # fmt: skip


def queue_lengths(events: KinetoColumns) -> TraceTable:
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
    return TraceTable({"stream": stream, "time_us": at[order], "queue_length": Groups(stream).cumsum(change[order])})


def queue_summary(events: KinetoColumns, full: int = FULL_QUEUE) -> TraceTable:
    """Return the queue length of each stream.

    Returns:
        Columns stream, count (of changes), mean, std, min, median, max, full_us (time with at least `full` waiting).
    """
    table = queue_lengths(events)
    stream, at, length = table["stream"], table["time_us"], table["queue_length"].astype(float)
    groups = Groups(stream)
    lasts = np.append(np.where(stream[1:] == stream[:-1], np.diff(at), 0.0), 0.0)[: len(at)]
    return TraceTable({
        "stream": groups.first(stream), "count": groups.count, "mean": groups.mean(length), "std": groups.std(length),
        "min": groups.min(length), "median": groups.median(length), "max": groups.max(length),
        "full_us": groups.sum(np.where(length >= full, lasts, 0.0)),
    })  # fmt: skip


@attrs.frozen
class PythonFrame:
    """A line of Python in a trace recorded with `with_stack=True`."""

    file: str
    line: int
    function: str


def frame_of(name: str) -> PythonFrame | None:
    """Return the frame of a Python function's event; None for a built-in one."""
    found = _FRAME.match(name)
    return PythonFrame(found["file"], int(found["line"]), found["function"]) if found else None


def is_module(name: str) -> bool:
    """Return whether an event is the forward pass of an nn.Module."""
    return name.startswith(_MODULE)


def is_user_code(name: str) -> bool:
    """Return whether an event is a Python function of the user's, not of a library."""
    found = _FRAME.match(name)
    return found is not None and not is_library(found["file"])


class Callers:
    """Finds the events on the host that enclose a moment on a thread."""

    def __init__(self, events: KinetoColumns) -> None:
        self.events = events
        annotations = events.category == ANNOTATION
        annotations[step_rows(events)] = False
        self._operators = Layer(events, events.category == OPERATOR)
        self._backward = Layer(events, events.is_backward & (events.sequence >= 0))
        self._forward = _forward_rows(events, self._operators)
        self._annotations = Layer(events, annotations)
        self._python: Mask = events.category == PYTHON
        self._layers: dict[str, Layer] = {}
        phases = np.flatnonzero(events.category == PHASE)
        self._phases = phases, Nest(np.zeros(len(phases), np.intp), events.start_us[phases], events.end_us[phases])

    def operators(self, rows: Numbers) -> Numbers:
        """Return the row of the innermost operator around each event, -1 if there is none."""
        return self._operators.around(rows)

    def outermost(self, rows: Numbers) -> Numbers:
        """Return the row of the outermost operator around each event, -1 if there is none."""
        return self._operators.around(rows, outermost=True)

    def annotations(self, rows: Numbers) -> Numbers:
        """Return the row of the innermost `record_function` around each event, -1 if there is none."""
        return self._annotations.around(rows)

    def phases(self, rows: Numbers) -> Numbers:
        """Return the row of the hook's phase at the start of each event, on any thread; -1 if there is none."""
        return np.where(rows >= 0, self.phases_at(self.events.start_us[rows]), -1) if len(self.events) else rows

    def phases_at(self, moments: Floats) -> Numbers:
        """Return the row of the hook's phase at each moment, -1 if there is none."""
        phases, nest = self._phases
        at = nest.around(np.zeros(len(moments), np.intp), moments)
        return np.where(at >= 0, phases[at], -1) if len(phases) else at

    def modules(self, rows: Numbers) -> Numbers:
        """Return the row of the innermost nn.Module around each event, or its forward operator; -1 if there is none."""
        return self._of_python(is_module, rows)

    def frames(self, rows: Numbers) -> Numbers:
        """Return the row of the user's innermost Python function around each event, or its forward operator; else -1."""
        return self._of_python(is_user_code, rows)

    def forward(self, rows: Numbers) -> Numbers:
        """Return the row of the forward operator whose gradient each event computes, -1 if there is none.

        Autograd runs on its threads without modules and lines; sequence numbers lead back to the forward pass.
        """
        backward = self._backward.around(rows)
        return np.where(backward >= 0, self._forward[backward], -1) if len(self._forward) else backward

    def among(self, chosen: Mask) -> Layer:
        """Return what finds the innermost of some events around others."""
        return Layer(self.events, chosen)

    def _of_python(self, wanted: Callable[[str], bool], rows: Numbers) -> Numbers:
        layer = self._layers.get(wanted.__name__)
        if layer is None:
            layer = Layer(self.events, self._python & self.events.name.mask(wanted))
            self._layers[wanted.__name__] = layer
        own = layer.around(rows)
        return np.where(own >= 0, own, layer.around(self.forward(rows)))


def _forward_rows(events: KinetoColumns, operators: Layer) -> Numbers:
    """Return for each backward operator the row of its forward one; -1 for the others.

    Several operators carry the number that the next node of the graph will get; the last of them makes the node. If the
    node is not named after it, it is a part of a library's operator, which carries no number and is the forward one.
    """
    found = np.full(len(events), -1, np.intp)
    known = (events.category == OPERATOR) & (events.sequence >= 0)
    forward, backward = np.flatnonzero(known & ~events.is_backward), np.flatnonzero(known & events.is_backward)
    if not len(forward) or not len(backward):
        return found
    order = forward[np.argsort(events.sequence[forward], kind="stable")]  # rows are in time order
    last = order[np.maximum(np.searchsorted(events.sequence[order], events.sequence[backward], "right") - 1, 0)]
    fits = (events.sequence[last] == events.sequence[backward]) & (events.start_us[last] <= events.start_us[backward])
    backward, last = backward[fits], last[fits]
    names = events.name.values
    pairs, of = np.unique(np.stack([events.name.codes[last], events.name.codes[backward]]), axis=1, return_inverse=True)
    named = np.array([_is_named_after(names[node], names[operator]) for operator, node in pairs.T.tolist()], np.bool_)
    found[backward] = np.where(named[of.reshape(-1)], last, operators.outermost()[last])
    return found


def _is_named_after(node: str, operator: str) -> bool:
    """Return whether a node such as `AddmmBackward0` is that of an operator such as `aten::addmm`."""
    name = operator.rpartition("::")[2].replace("_", "").lower()
    return name in node.replace("_", "").lower()


class Layer:
    """Events that nest on each thread."""

    def __init__(self, events: KinetoColumns, chosen: Mask) -> None:
        self._events = events
        rows = np.flatnonzero(chosen)
        self._rows = rows[np.argsort(events.thread[rows], kind="stable")]
        self._nest = Nest(events.thread[self._rows], events.start_us[self._rows], events.end_us[self._rows])

    def outermost(self) -> Numbers:
        """Return for each event of this layer the row of the outermost one around it, or its own; -1 for all others."""
        found = np.full(len(self._events), -1, np.intp)
        found[self._rows] = self._rows[self._nest.outermost]
        return found

    def alone(self) -> Floats:
        """Return for each event of this layer its duration without those of the events directly in it; 0 for all others."""
        spent, inner = np.zeros(len(self._events)), self._nest.parent >= 0
        spent[self._rows] = self._events.duration_us[self._rows]
        np.subtract.at(spent, self._rows[self._nest.parent[inner]], self._events.duration_us[self._rows[inner]])
        return spent

    def around(self, rows: Numbers, *, outermost: bool = False) -> Numbers:
        """Return the row of the innermost (or outermost) event of this layer around each event, -1 if there is none."""
        found = np.full(len(rows), -1, np.intp)
        if not len(self._rows):
            return found
        known = np.flatnonzero(rows >= 0)
        at = self._nest.around(self._events.thread[rows[known]], self._events.start_us[rows[known]])
        around = self._rows[self._nest.outermost[at] if outermost else at]
        found[known] = np.where(at >= 0, around, -1)
        return found


def names_of(events: KinetoColumns, rows: Numbers) -> list[str]:
    """Return the name of each row; "" for -1."""
    values, codes = events.name.values, events.name.codes
    return [values[codes[row]] if row >= 0 else "" for row in rows.tolist()]


def operators_alone(events: KinetoColumns) -> tuple[Numbers, Floats]:
    """Return the rows of the operators, and for each row of a trace its time on the host without inner operators."""
    steps = np.zeros(len(events), np.bool_)
    steps[step_rows(events)] = True
    rows = np.flatnonzero((events.category == OPERATOR) & ~steps)
    chosen = np.zeros(len(events), np.bool_)
    chosen[rows] = True
    return rows, Layer(events, chosen).alone()


def operators(events: KinetoColumns, callers: Callers | None = None) -> TraceTable:
    """Return the time on the device by the operator that launched it, the most expensive first.

    Returns:
        Columns operator (innermost), caller (outermost operator, such as `autograd::engine::evaluate_function: …`),
        module, annotation, phase (of the hook, in its own windows), forward (the operator whose
        gradient this is), file, line, kernels, device_us, mean_us, share of the time in all kernels.
    """
    callers = callers or Callers(events)
    device = events.device_events
    launch = launch_rows(events, device)
    rows = {
        "operator": callers.operators(launch), "caller": callers.outermost(launch), "module": callers.modules(launch),
        "annotation": callers.annotations(launch), "phase": callers.phases(launch), "forward": callers.forward(launch), "frame": callers.frames(launch),
    }  # fmt: skip
    codes = {column: np.where(found >= 0, events.name.codes[found], -1) for column, found in rows.items()}
    groups = Groups(*codes.values())
    names = (*events.name.values, "")  # the last one is that of -1
    first = {column: [names[code] for code in groups.first(found).tolist()] for column, found in codes.items()}
    frames = [frame_of(name) for name in first["frame"]]
    total = groups.sum(device.duration_us)
    whole = float(total.sum())
    return TraceTable(
        {
            "operator": array_of(first["operator"]),
            "caller": array_of(first["caller"]),
            "module": array_of([name.removeprefix(_MODULE) for name in first["module"]]),
            "annotation": array_of(first["annotation"]),
            "phase": array_of(first["phase"]),
            "forward": array_of(first["forward"]),
            "file": array_of([frame.file if frame else "" for frame in frames]),
            "line": np.array([frame.line if frame else 0 for frame in frames], np.int64),
            "kernels": groups.count,
            "device_us": total,
            "mean_us": groups.mean(device.duration_us),
            "share": total / whole if whole else np.zeros(len(groups)),
        }
    ).largest_first("device_us")


def synchronizations(events: KinetoColumns, callers: Callers | None = None) -> TraceTable:
    """Return the calls in which the host waited for the device, the most harmful first.

    Returns:
        Columns call, operator, file, line, count, host_us (waiting), idle_after_us (from the end of the wait to the next
        kernel: what the device idles because the host could not launch ahead).
    """
    callers = callers or Callers(events)
    rows = wait_rows(events, copies=True)
    device = events.device_events
    busy_start, busy_end = intervals.union(device.start_us, device.end_us)
    if not len(rows) or not len(busy_start):
        return TraceTable.of(("call", "operator", "file", "line", "count", "host_us", "idle_after_us"), ())
    at = events.end_us[rows]
    before = np.searchsorted(busy_start, at, "right") - 1
    is_idle = (before >= 0) & (busy_end[before] <= at) & (before + 1 < len(busy_start))
    following = busy_start[np.minimum(before + 1, len(busy_start) - 1)]
    # of several waits in one gap only the first is charged with it
    first = np.concatenate([[True], before[1:] != before[:-1]])
    idle_after = np.where(is_idle & first, following - busy_end[np.maximum(before, 0)], 0.0)
    codes = [
        np.where(found >= 0, events.name.codes[found], -1)
        for found in (rows, callers.outermost(rows), callers.frames(rows))
    ]
    groups = Groups(*codes)
    names = (*events.name.values, "")  # the last one is that of -1
    call, operator, frame = ([names[code] for code in groups.first(found).tolist()] for found in codes)
    frames = [frame_of(name) for name in frame]
    return TraceTable(
        {
            "call": array_of(call),
            "operator": array_of(operator),
            "file": array_of([frame.file if frame else "" for frame in frames]),
            "line": np.array([frame.line if frame else 0 for frame in frames], np.int64),
            "count": groups.count,
            "host_us": groups.sum(events.duration_us[rows]),
            "idle_after_us": groups.sum(idle_after),
        }
    ).largest_first("idle_after_us", "host_us")
