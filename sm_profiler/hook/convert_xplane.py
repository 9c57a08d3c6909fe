"""The operators in a trace of TensorFlow's or JAX's profiler, for `convert`.  Neither framework is imported."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from sm_profiler.formats.columns import Floats, Ints, Mask, Numbering
from sm_profiler.formats.event_names import CPU_OPERATORS, gpu_operators
from sm_profiler.formats.recorded import CompiledStack, CompiledWork, Frame
from sm_profiler.formats.trace_writer import TraceEvent
from sm_profiler.formats.xplane_reader import HOST, Origin, XplaneEvents, XplaneTrace, read_xplane
from sm_profiler.hook.frames import is_library
from sm_profiler.hook.stacks import shown_file, source_line

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"

_BACKWARD = re.compile(r"(?:^|/)gradient_tape/|transpose\(jvp\(|transpose\(")
_FORWARD = re.compile(r"(?:^|[/(])jvp\(")
# Keras puts the optimizer's name in front of what it computes.
_OPTIMIZERS = frozenset(
    (
        "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "ftrl", "lamb", "lion", "loss_scale_optimizer",
        "muon", "nadam", "rmsprop", "sgd", "schedulefreeadamw",
    )
)  # fmt: skip
_SCOPES = 3  # at the start of a name, one of which may be the optimizer: `StatefulPartitionedCall/adam/Sub`, `jit(train_step)/adam/mul`


_UPDATES = re.compile(
    r"/(optax|keras/src/optimizers|flax/nnx/training|jax/example_libraries)/[^<]*$|/flax/training/train_state\.py$"
)


def phase_of(origin: Origin, *, tensorflow: bool) -> str:
    """Return the phase of an operation; "" if neither its name nor the code that it comes from shows it.

    Args:
        origin: with a name such as `gradient_tape/dense/MatMul` or `jit(step)/transpose(jvp(Net))/dot_general`.
        tensorflow: the name is TensorFlow's, where what is neither gradient nor optimizer is the model.
    """
    name = origin.name
    if _BACKWARD.search(name):
        return BACKWARD
    if any(re.sub(r"_\d+$", "", scope) in _OPTIMIZERS for scope in name.split("/")[:_SCOPES]):
        return OPTIMIZER
    if any(_UPDATES.search(file) for file, _, _ in origin.calls) and not _FORWARD.search(name):  # optax has losses, too
        return OPTIMIZER
    if _FORWARD.search(name) or (tensorflow and "/" in name.removeprefix("StatefulPartitionedCall/")):
        return FORWARD
    return ""


_TENSORFLOW_OPERATOR = re.compile(r"[\w./<>-]+:_?[A-Z]\w*")  # name:Type, as TensorFlow's executor names its work
_WORK = ("Stream", "XLA Ops")  # starts of the names of a device's rows that show what ran; without any, all rows do
_CALL = "StatefulPartitionedCall/"  # starts the names of all that a tf.function runs
_INNER = "<locals>."  # ends what qualifies the name of a function in a function
MAX_STACKS = 100  # of compiled functions
_EDGE_US = 60_000_000  # before the first step and after the last: a profiler starts and stops there, and clocks differ
_JIT = "jit_"  # starts JAX's names of modules, before that of the compiled function


def is_operator(trace: XplaneTrace) -> Mask:
    """Return which events are operators of the host or work of a device, one event for each."""
    events, lines = trace.events, trace.lines
    by_compiler = events.hlo_op.mask(lambda text: text != "")
    by_executor = events.name.mask(lambda text: _TENSORFLOW_OPERATOR.fullmatch(text) is not None)
    on_host = np.array([line.device == HOST for line in lines] or [False])
    wanted = _is_work(trace)
    found: Mask = np.where(on_host[events.line], by_compiler | by_executor, wanted[events.line])
    return found


def _is_work(trace: XplaneTrace) -> Mask:
    """Return which rows of devices show what ran: the streams of a GPU, the operations of a TPU."""
    best: dict[str, int] = {}  # of each plane, the kind of its rows to take
    kinds = [
        next((at for at, kind in enumerate(_WORK) if line.name.startswith(kind)), len(_WORK)) for line in trace.lines
    ]
    for line, kind in zip(trace.lines, kinds, strict=True):
        best[line.plane] = min(best.get(line.plane, kind), kind)
    return np.array([kind == best[line.plane] for line, kind in zip(trace.lines, kinds, strict=True)] or [False])


def is_of_the_steps(trace: XplaneTrace, steps: list[tuple[int, int]]) -> Mask:
    """Return for each event whether it can be of the steps."""
    first_us, end_us, base_us = steps[0][1], steps[-1][1], _base_us(trace, steps)
    start = trace.events.start_ns / 1000
    end = (trace.events.start_ns + trace.events.duration_ns) / 1000
    return np.asarray((start >= first_us - base_us - _EDGE_US) & (end <= end_us - base_us + _EDGE_US))


def _base_us(trace: XplaneTrace, steps: list[tuple[int, int]]) -> int:
    return trace.base_ns // 1000 or steps[0][1]  # without a time in it, the trace began with the first step


def operators(trace: XplaneTrace, steps: list[tuple[int, int]], pid: int, framework: str = "") -> Iterator[TraceEvent]:
    """Yield the operators and kernels of a trace as events, without those that cannot be of its steps: they are damaged.

    Args:
        trace: the trace.
        steps: number and start (microseconds since the epoch) of each step, in order; the number of the last is -1 and marks the end.
        pid: the profiled process.
        framework: whose profiler recorded it.
    """
    base_us = _base_us(trace, steps)
    chosen = _rows(trace, steps)
    origins, calls = trace.origins, _script_calls(trace)
    events = trace.events[chosen]
    start_us = base_us + np.floor(events.start_ns / 1000).astype(np.int64)
    place = np.searchsorted(np.array([start for _, start in steps]), start_us, side="right") - 1
    step = np.array([*(number for number, _ in steps), -1])[place]
    compiled = (events.hlo_op.decode(), events.hlo_module.decode())
    columns = (events.name.decode(), start_us, np.round(events.duration_ns / 1000).astype(np.int64), events.line, step)
    for row, (name, start, duration, line, number, op, module) in enumerate(zip(*columns, *compiled, strict=True)):
        device = trace.lines[line].device
        args: dict[str, Any] = {
            "pid": pid,
            "tid": trace.lines[line].number,
            "device": "cpu" if device == HOST else device,
        }
        origin = origins.of(chosen[row])
        if origin.name:
            args["op_name"] = origin.name
        if part := _phase_of(origin, str(name), framework):
            args["phase"] = part
        if traced := calls[origins.codes[chosen[row]]]:
            args["line"] = f"{traced[-1][0]}:{traced[-1][1]}"
        if number >= 0:
            args["step_num"] = int(number)
        if op:
            args["hlo_op"] = str(op)
        phase, shown = gpu_operators(device), str(name)
        if device == HOST:
            phase, shown = CPU_OPERATORS, _operator_name(shown, origin.name, str(op), str(module))
        yield TraceEvent(phase, shown, int(start), int(duration), json.dumps(args))


def _operator_name(name: str, origin: str, op: str, module: str) -> str:
    """Return the framework's name of what the host ran: the compiler's own (`fusion.3`) means nothing to the script's author."""
    if not op:
        return name.removeprefix(_CALL)
    if not origin and module.startswith(_JIT):
        return f"jit({module.removeprefix(_JIT)})/{op}"
    return origin or name


def _phase_of(origin: Origin, name: str, framework: str) -> str:
    known = origin if origin.name else origin._replace(name=name.partition(":")[0])
    return phase_of(known, tensorflow=framework == "tensorflow")


def _script_calls(trace: XplaneTrace) -> list[tuple[Frame, ...]]:
    """Return the script's calls that each of the trace's origins comes from, the outermost first.

    XLA repeats those of a function that it has inlined.
    """
    return [
        tuple(
            dict.fromkeys(
                (shown_file(file), line, name.rpartition(_INNER)[2])
                for file, line, name in reversed(origin.calls)
                if file and not is_library(file)
            )
        )
        for origin in trace.origins.values
    ]


def _rows(trace: XplaneTrace, steps: list[tuple[int, int]]) -> Ints:
    """Return the numbers of the events that are operators of the steps."""
    return np.flatnonzero(is_operator(trace) & is_of_the_steps(trace, steps))


def compiled_work(trace: XplaneTrace, steps: list[tuple[int, int]], framework: str = "") -> CompiledWork | None:
    """Return what the compiled functions that compute gradients spent their time on; None without any. Args: see `operators`.

    Every thread counts: an operation that several of them compute takes so many times as long.
    """
    chosen = _rows(trace, steps)
    if not len(chosen):
        return None
    events, origins, calls = trace.events[chosen], trace.origins, _script_calls(trace)
    kinds = Numbering()
    names = events.name.decode()
    phases = np.array([kinds[_phase_of(origins.of(row), names[at], framework)] for at, row in enumerate(chosen)])
    own, module = _own_ns(events), events.hlo_module.codes
    learns = np.isin(module, np.unique(module[phases == kinds[BACKWARD]]))
    updates = learns & (phases == kinds[OPTIMIZER])
    whole = float(own[learns].sum())
    if whole <= 0:
        return None
    spent = Counter[tuple[tuple[Frame, ...], str, bool]]()
    for at in np.flatnonzero(learns):
        origin = origins.of(chosen[at])
        if frames := calls[origins.codes[chosen[at]]]:
            spent[frames, origin.name.rpartition("/")[2], bool(updates[at])] += own[at]
    stacks = tuple(
        CompiledStack(
            frames=frames, operation=operation, us=round(float(taken) / 1000, 1), updates=is_update or None,
            source=source_line(*frames[-1][:2]),
        )
        for (frames, operation, is_update), taken in spent.most_common(MAX_STACKS)
    )  # fmt: skip
    return CompiledWork(optimizer=round(float(own[updates].sum()) / whole, 4), stacks=stacks)


def _own_ns(events: XplaneEvents) -> Floats:
    """Return the time of each event without that of the events in it, on the same thread or row."""
    own = events.duration_ns.copy()
    end = events.start_ns + events.duration_ns
    order, around, line = np.lexsort((-events.duration_ns, events.start_ns, events.line)), list[int](), -1
    for at in order.tolist():
        if events.line[at] != line:
            around, line = [], events.line[at]
        while around and end[around[-1]] <= events.start_ns[at]:
            around.pop()
        if around:
            own[around[-1]] -= events.duration_ns[at]
        around.append(at)
    return np.maximum(own, 0.0)


def read_operators(
    data: bytes, steps: list[tuple[int, int]], pid: int, framework: str
) -> tuple[list[TraceEvent], Iterator[TraceEvent], int]:
    """Return the record of `compiled_work`, `operators`, and how many events of a trace are damaged or of no step."""
    trace, outcome = read_xplane(data)
    outside = int(np.count_nonzero(is_operator(trace) & ~is_of_the_steps(trace, steps)))
    records, work = [], compiled_work(trace, steps, framework)
    if work is not None:
        start_us, end_us = steps[0][1], steps[-1][1]
        args = json.dumps({"pid": pid, **work.args()})
        records.append(TraceEvent(work.phase, "compiled functions", start_us, end_us - start_us, args))
    return records, operators(trace, steps, pid, framework), outcome.lost + outside
