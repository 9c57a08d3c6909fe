"""The detailed windows of a profile: their raw traces, joined by time with what the hook records all the time.

The trace of a window has neither steps, phases, modules nor lines: the hook records these itself, far more cheaply. Here
they become events of the trace, and the sampler's stacks become the lines of each phase.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np
from msgspec.structs import replace

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.gpu import decide_traces
from sm_profiler.diagnosis.model import Report
from sm_profiler.errors import SourceError
from sm_profiler.formats.columns import EventColumns
from sm_profiler.formats.event_names import (
    BACKWARD,
    DATALOADER_WAIT,
    FORWARD,
    FORWARD_MODULE,
    OPTIMIZER,
    SAMPLES,
    STEP_TRAIN,
)
from sm_profiler.formats.kineto_reader import ANNOTATION, OPERATOR, PHASE, PYTHON, KinetoTrace, Span
from sm_profiler.formats.layout import TraceFile as EventFile
from sm_profiler.formats.layout import shown_node
from sm_profiler.gpu_traces.callers import PythonFrame, step_rows
from sm_profiler.gpu_traces.measure import SampledLines, measure
from sm_profiler.gpu_traces.step_view import describe
from sm_profiler.gpu_traces.traces import GpuTraces, KinetoFile, read_trace
from sm_profiler.metrics.sample_fold import decode_stacks
from sm_profiler.source.parse import ColumnBuilder

# What the profiler that records a window does not change: it slows down the host, not the kernels.
OF_KERNELS = (Class.TENSOR_CORES_UNUSED, Class.MEMORY_BANDWIDTH_BOUND, Class.DOMINANT_KERNEL)
MAX_WINDOWS = 64  # traces read; windows are short, and a job has few of them
MAX_BYTES = 2 << 30  # of these files
BETWEEN = "between"  # the sampler's name of the time in a step but in none of its phases
# Names that the sampler gives to the phases that the hook records.
PHASES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    OPTIMIZER: "optimizer",
    DATALOADER_WAIT: "wait",
    STEP_TRAIN: BETWEEN,
}
_LONG_US = 10e6  # length of the longest event of samples
_LATE_US = 90e6  # a file may hold events that ended so long before the end in its name
_MAX_LINES = 5  # lines of a phase
_NUMBER = re.compile(r"(.*?)-?([0-9]{1,9})$")


@attrs.frozen(eq=False)
class Windows:
    """The traces of a job's detailed windows.

    Attributes:
        gpu: the traces, with steps, phases and modules of the hook's recording.
        sampled: rank → phase → its lines.
    """

    gpu: GpuTraces
    sampled: Mapping[int, SampledLines]


def read_windows(source: Any) -> Windows | None:
    """Return the windows of a `ProfileSource` in which a GPU worked; None if there are none."""
    traces: dict[str, list[KinetoTrace]] = {}
    sampled: dict[str, dict[str, dict[PythonFrame, float]]] = {}
    files = []
    for item in _items(source):
        try:
            trace, outcome = read_trace(source.storage, item.info)
            process = shown_node(item.file.host)
            if not trace.events.on_device.any():
                continue
            events = _events(source, process, trace)
        except SourceError:
            continue  # listed on the page
        files.append(KinetoFile(item.info.key, outcome))
        traces.setdefault(process, []).append(join(trace, events))
        _add_samples(sampled.setdefault(process, {}), trace, events)
    if not traces:
        return None
    ranks = _ranks(traces)
    gpu = GpuTraces.of({ranks[process]: found for process, found in traces.items()}, files)
    return Windows(gpu, {ranks[process]: _shares(found) for process, found in sampled.items()})


def add_windows(report: Report, source: Any) -> Report:
    """Return a report with what the windows of a `ProfileSource` show of the GPUs, if these worked in them.

    Findings about the kernels themselves are added. If a loop is limited by its GPU, the first of them leads: it is what
    the GPU is slow at. Beside other findings they have no gain: the others' gains cover the whole loop, and these would
    claim parts of the same seconds.
    """
    windows = read_windows(source)
    if windows is None:
        return report
    ranks = measure(windows.gpu, windows.sampled)
    report = attrs.evolve(report, gpu_traces=tuple(describe(windows.gpu, rank) for rank in ranks))
    if min(int(trace.events.on_device.sum()) for trace in windows.gpu.ranks.values()) < limits.TRACE_KERNELS:
        return report
    verdict, judged = report.verdict, decide_traces(ranks, windows.gpu)
    known = {verdict.kind, *(finding.kind for finding in verdict.also)}
    found = [
        replace(finding, headline=f"In the detailed windows: {finding.headline}")
        for finding in (judged.main, *judged.also)
        if finding.kind in OF_KERNELS and finding.kind not in known
    ]
    if verdict.main.kind is Class.COMPUTE_BOUND and found and found[0].confidence != "low":
        verdict = attrs.evolve(verdict, main=found.pop(0))  # no other gain is there to claim the same seconds
    added = (replace(finding, gain=None) for finding in found)
    return attrs.evolve(report, verdict=attrs.evolve(verdict, also=(*verdict.also, *added)))


def _items(source: Any) -> list[Any]:
    found = [item for item in source.files.detailed if item.file.framework == "pytorch"]
    size, chosen = 0, []
    for item in found[:MAX_WINDOWS]:
        size += item.info.size
        if size > MAX_BYTES:
            break
        chosen.append(item)
    return chosen


def _ranks(traces: Mapping[str, list[KinetoTrace]]) -> dict[str, int]:
    """Return the rank of each process: as the traces have it, else by the order of the processes."""
    named = {process: found[0].rank for process, found in traces.items()}
    if None not in named.values() and len(set(named.values())) == len(named):
        return {process: rank for process, rank in named.items() if rank is not None}
    return {process: number for number, process in enumerate(sorted(traces, key=_natural))}


def _natural(process: str) -> tuple[str, int]:
    found = _NUMBER.match(process)
    return (found[1], int(found[2])) if found else (process, 0)


def _events(source: Any, process: str, trace: KinetoTrace) -> EventColumns:
    """Return what the hook recorded of a process while a trace ran."""
    start = trace.epoch_us - _LONG_US
    end = trace.epoch_us + float(trace.events.end_us.max()) + _LONG_US
    items = [
        item for item in source.files
        if isinstance(item.file, EventFile) and item.node == process and start <= item.file.end_us <= end + _LATE_US
    ]  # fmt: skip
    builder = ColumnBuilder(is_system=False)
    for piece in source.rows_of(items):
        builder.add(piece)
    events: EventColumns = builder.columns() if items else EventColumns.empty()
    near: EventColumns = events[(events.end_us >= start) & (events.start_us <= end)]
    return near


def join(trace: KinetoTrace, events: EventColumns) -> KinetoTrace:
    """Return a trace with the steps, phases and modules that the hook recorded while it ran.

    Args:
        trace: the trace of a window.
        events: the hook's events of the same process, times in microseconds since the epoch.
    """
    inside = (events.end_us > trace.epoch_us) & (events.start_us < trace.epoch_us + trace.events.end_us.max(initial=0))
    thread = _training_thread(trace, events)
    spans = list(_spans(trace, events[inside & events.phase.mask(lambda name: name in PHASES)], thread))
    modules = events[inside & events.phase.mask(FORWARD_MODULE)]
    spans += [
        Span(f"nn.Module: {name}", PYTHON, thread, start - trace.epoch_us, length)
        for name, start, length in zip(modules.name.decode(), modules.start_us, modules.duration_us, strict=True)
    ]
    return attrs.evolve(trace, threads=(*trace.threads, ("sm-profiler", "phases"))).with_spans(spans)


def _spans(trace: KinetoTrace, events: EventColumns, thread: int) -> Iterator[Span]:
    marked = len(step_rows(trace.events)) > 0
    rows = zip(events.phase.decode(), events.start_us, events.duration_us, events.step, strict=True)
    for phase, start, length, step in rows:
        yield Span(PHASES[phase], PHASE, len(trace.threads), start - trace.epoch_us, length)
        if phase == STEP_TRAIN and not marked and step >= 0:
            yield Span(f"ProfilerStep#{step}", ANNOTATION, thread, start - trace.epoch_us, length)
        if phase == DATALOADER_WAIT:
            yield Span("DataLoader", ANNOTATION, thread, start - trace.epoch_us, length)


def _training_thread(trace: KinetoTrace, events: EventColumns) -> int:
    """Return the number of the thread with most operators during the forward passes, or of all."""
    operators = trace.events[trace.events.category == OPERATOR]
    if not len(operators):
        return 0
    forward = events[events.phase.mask(FORWARD)]
    edges = np.sort(np.concatenate([forward.start_us, forward.end_us])) - trace.epoch_us
    inside = np.searchsorted(edges, operators.start_us, "right") % 2 == 1
    threads = operators.thread[inside] if inside.any() else operators.thread
    return int(np.bincount(threads).argmax())


def _add_samples(found: dict[str, dict[PythonFrame, float]], trace: KinetoTrace, events: EventColumns) -> None:
    """Add the time of each phase's lines, from the samples of the seconds in which a trace was recorded."""
    end = trace.epoch_us + float(trace.events.end_us.max())
    rows = events[events.phase.mask(SAMPLES) & (events.end_us >= trace.epoch_us) & (events.start_us <= end)]
    for text in rows.args.decode():
        for stack in decode_stacks(text):
            if stack.places:
                place = stack.places[-1]
                frame = PythonFrame(place.file, place.line, place.function)
                lines = found.setdefault(stack.phase, {})
                lines[frame] = lines.get(frame, 0.0) + stack.microseconds


def _shares(found: Mapping[str, Mapping[PythonFrame, float]]) -> SampledLines:
    shares = {}
    for phase, lines in found.items():
        whole = sum(lines.values())
        ordered = sorted(lines.items(), key=lambda line: (-line[1], line[0].file, line[0].line))[:_MAX_LINES]
        shares[phase] = tuple((frame, spent / whole) for frame, spent in ordered) if whole > 0 else ()
    return shares
