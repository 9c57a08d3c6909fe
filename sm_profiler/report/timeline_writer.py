"""Write a timeline for Perfetto and chrome://tracing piece by piece.

Each process of the job is a process of the trace, and its lanes are threads: the loop with its steps and phases, modules,
data loading, each worker, operators by thread and device, communication. Each node has counters. Slices of a thread
nest; those that would cross are moved to another lane.
"""

from __future__ import annotations

import contextlib
import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import attrs
import numpy as np

from sm_profiler.errors import SourceError
from sm_profiler.formats import event_names
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.formats.perfetto_writer import PerfettoSink
from sm_profiler.report.svg import clean, shorten
from sm_profiler.report.trace_sinks import Arguments, JsonSink, TraceSink

JSON, PERFETTO = "json", "perfetto"
PERFETTO_ENDINGS = (".pftrace", ".perfetto-trace")

LOOP, FORWARD_MODULES, BACKWARD_MODULES, LOADER, COMMUNICATION, OWN = (
    "loop",
    "modules, forward",
    "modules, backward",
    "data loading",
    "communication",
    "profiler",
)
COUNTERS = {
    "CPUUtilization": "CPU use, %", "I/OWaitPercentage": "I/O wait, %", "GPUUtilization": "GPU use, %",
    "GPUMemoryUtilization": "GPU memory, %", "MemoryUsedPercent": "memory, %", "ReceiveBytesPerSecond": "network, bytes/s",
    "TransmitBytesPerSecond": "network, bytes/s", "ReadThroughputInBytesPerSecond": "disk, bytes/s",
    "WriteThroughputInBytesPerSecond": "disk, bytes/s", "IOPS": "disk operations/s",
}  # fmt: skip
SERIES = {
    "ReceiveBytesPerSecond": "received",
    "TransmitBytesPerSecond": "sent",
    "ReadThroughputInBytesPerSecond": "read",
    "WriteThroughputInBytesPerSecond": "written",
}


MAX_LANES = 64  # of one name; more overlapping events than this are counted, not written


@attrs.define
class _Lane:
    """Slices of one thread; `stack` contains the ends of the open ones."""

    thread: int
    stack: list[float] = attrs.field(factory=list)
    last_start: float = -np.inf
    last_end: float = -np.inf

    def takes(self, start: float, end: float) -> bool:
        """Add a slice if it nests here; return whether it does."""
        if start < self.last_start:  # arrived late: it may cross slices that are already closed
            return False
        while self.stack and self.stack[-1] <= start:
            self.stack.pop()
        if self.stack and end > self.stack[-1]:
            return False
        self.stack.append(end)
        self.last_start, self.last_end = start, max(end, self.last_end)
        return True


@attrs.define
class _Process:
    number: int
    name: str
    lanes: dict[str, list[_Lane]] = attrs.field(factory=dict)
    threads: int = 0


@attrs.define
class Export:
    """Summary of a written trace.

    Attributes:
        events: slices, instants and counters.
        processes: processes of the job.
        left_out: slices that overlap with MAX_LANES others, which are not written.
        clock_error_us: process → possible error of its clock, if the hook measured it.
        shift_us: process → what was added to its times, where clocks disagree.
    """

    events: int = 0
    processes: int = 0
    left_out: int = 0
    clock_error_us: dict[str, float] = attrs.field(factory=dict)
    shift_us: dict[str, float] = attrs.field(factory=dict)


class TimelineWriter:
    """Writes a trace with times relative to `origin_us`."""

    def __init__(self, sink: TraceSink, origin_us: float) -> None:
        self._sink = sink
        self.origin_us = origin_us
        self._processes: dict[str, _Process] = {}
        self.export = Export()

    def _process(self, name: str, *, order: int = 0) -> _Process:
        found = self._processes.get(name)
        if found is None:
            found = self._processes[name] = _Process(len(self._processes) + 1, name)
            self._sink.name_process(found.number, shorten(name, 200), order or found.number)
        return found

    def _lane(self, process: _Process, lane: str, start: float, end: float) -> int | None:
        """Return the thread for a slice; None if too many others overlap with it."""
        lanes = process.lanes.setdefault(lane, [])
        for one in lanes:
            if one.takes(start, end):
                return one.thread
        if len(lanes) >= MAX_LANES:
            return None
        process.threads += 1
        fresh = _Lane(process.threads)
        fresh.takes(start, end)
        lanes.append(fresh)
        label = lane if len(lanes) == 1 else f"{lane} ({len(lanes)})"
        self._sink.name_thread(process.number, fresh.thread, shorten(label, 200), _order(lane) * 1000 + len(lanes))
        return fresh.thread

    def add_slice(  # noqa: PLR0913, PLR0917 - one argument a field
        self, process: str, lane: str, name: str, category: str, start: int, length: int, args: Arguments, flow: int = 0
    ) -> None:
        """Write a slice to a lane of a process, times in nanoseconds since the origin; those of a lane in their order."""
        found = self._process(process)
        thread = self._lane(found, lane, start, start + length)
        if thread is None:
            self.export.left_out += 1
            return
        self._sink.slice(found.number, thread, name, category, start, length, args, flow)
        self.export.events += 1

    def add_counter(self, process: str, name: str, at: int, values: Arguments) -> None:
        """Write values of a counter from a moment on."""
        self._sink.counter(self._process(process).number, name, at, values)
        self.export.events += 1

    def add_events(self, events: EventColumns) -> None:
        """Write trace events, sorted by start, longer ones first."""
        if not len(events):
            return
        order = np.lexsort((-events.duration_us, events.start_us))
        phases = [shorten(text, 100) for text in events.phase.values]
        names = [shorten(text, 300) or "?" for text in events.name.values]
        lanes = [clean(text) for text in events.phase.values]
        processes: dict[int, str] = dict(enumerate(events.node.values))
        columns = (
            events.start_us,
            events.duration_us,
            events.name.codes,
            events.phase.codes,
            events.node.codes,
            events.step,
            events.tid,
            events.worker_id,
        )
        lane_names: dict[tuple[int, int, int], str] = {}
        good = np.isfinite(events.start_us) & np.isfinite(events.duration_us)
        order = order[good[order]]
        for start_us, duration_us, name, phase, node, step, tid, worker in zip(
            *(column[order].tolist() for column in columns), strict=True
        ):
            start, length = round((start_us - self.origin_us) * 1e3), max(round(duration_us * 1e3), 0)
            lane = lane_names.get((phase, tid, worker))
            if lane is None:
                lane = lane_names[phase, tid, worker] = _lane_name(lanes[phase], tid, worker)
            args = {"step": step} if step >= 0 else {}
            self.add_slice(processes[node], lane, names[name], phases[phase] or "event", start, length, args)

    def add_system(self, system: SystemColumns) -> None:
        """Write system metrics as counters of their node."""
        if not len(system):
            return
        titles = [COUNTERS.get(text, "") for text in system.dimension.values]
        by_name = [COUNTERS.get(text, "") for text in system.name.values]
        platform = {code for code, text in enumerate(system.dimension.values) if text == "Platform"}
        pending: dict[tuple[int, str, float], dict[str, float]] = {}
        columns = (system.timestamp, system.value, system.node.codes, system.dimension.codes, system.name.codes)
        for seconds, value, node, dimension, name in zip(*(column.tolist() for column in columns), strict=True):
            title = titles[dimension] or by_name[name]
            if not title or dimension in platform or not np.isfinite(value) or not np.isfinite(seconds):
                continue
            series = system.name.values[name]
            pending.setdefault((node, title, seconds), {})[SERIES.get(series, shorten(series, 60) or "value")] = value
        for (node, title, seconds), values in sorted(pending.items(), key=lambda item: item[0][2]):
            process = self._process(f"{system.node.values[node]} system", order=100_000)
            self._sink.counter(process.number, title, round((seconds * 1e6 - self.origin_us) * 1e3), values)
        self.export.events += len(pending)

    def finish(self, metadata: list[dict[str, Any]], source: str) -> Export:
        """End the trace with the errors of its clocks."""
        for one in metadata:
            args = one.get("args")
            if (
                isinstance(args, dict)
                and one.get("name") == event_names.PROCESS
                and args.get("clock_error_us") is not None
            ):
                self.export.clock_error_us[str(one.get("node", args.get("rank")))] = float(args["clock_error_us"])
        for name, error in self.export.clock_error_us.items():
            if name in self._processes:
                self._sink.label_process(self._processes[name].number, f"clock within {error / 1e3:.3g} ms")
        for name, shift in self.export.shift_us.items():
            self._sink.label_process(self._processes[name].number, f"shifted by {shift / 1e3:+.3g} ms")
        self.export.processes = len(self._processes)
        self._sink.close({
            "source": clean(source),
            "start_time_since_epoch_in_micros": round(self.origin_us),
            "clock_error_us": self.export.clock_error_us,
            "clock_shift_us": self.export.shift_us,
            "events_left_out": self.export.left_out,
        })  # fmt: skip
        return self.export


_LANES = {
    event_names.FORWARD_MODULE: FORWARD_MODULES,
    event_names.BACKWARD_MODULE: BACKWARD_MODULES,
    event_names.DATALOADER_ITER: LOADER,
    event_names.DATALOADER_INITIALIZE: LOADER,
    event_names.TENSORFLOW_DATA_ITERATOR: LOADER,
    event_names.NCCL_MANAGER: COMMUNICATION,
}


def _lane_name(phase: str, tid: int, worker: int) -> str:
    if phase.startswith(event_names.DATALOADER_WORKER):
        return f"loader worker {worker}" if worker >= 0 else "loader workers"
    if phase == event_names.CPU_OPERATORS:
        return f"operators, thread {tid}" if tid >= 0 else "operators"
    if phase.startswith(event_names.GPU_OPERATORS):
        return f"GPU {phase.rpartition(':')[2]}"
    if phase.startswith(event_names.OWN):
        return OWN
    return _LANES.get(phase, LOOP)


def _order(lane: str) -> int:
    known = (
        LOOP,
        LOADER,
        FORWARD_MODULES,
        BACKWARD_MODULES,
        "operators",
        "host thread",
        "GPU",
        COMMUNICATION,
        "loader worker",
        OWN,
    )
    return next((place for place, name in enumerate(known) if lane.startswith(name)), len(known))


@contextlib.contextmanager
def timeline_file(
    where: str | Path, origin_us: float, identity: str, *, kind: str | None = None
) -> Iterator[TimelineWriter]:
    """Open a file for a timeline.

    Args:
        where: the file; compressed if its name ends in .gz.
        origin_us: origin of the times, microseconds since the epoch.
        identity: where the data comes from.
        kind: `json` or `perfetto`; default: by the file's name.

    Raises:
        SourceError: the file cannot be written.
    """
    path = Path(where)
    is_packed = path.suffix == ".gz"
    ending = path.with_suffix("").suffix if is_packed else path.suffix
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            path.open("wb") as file,
            gzip.GzipFile(fileobj=file, mode="wb", compresslevel=4) if is_packed else file as out,
        ):
            if (kind or PERFETTO) == PERFETTO and (kind or ending in PERFETTO_ENDINGS):
                yield TimelineWriter(PerfettoSink(cast("BinaryIO", out), round(origin_us) * 1000, identity), origin_us)
            else:
                with io.TextIOWrapper(out, encoding="utf-8", write_through=False) as text:
                    yield TimelineWriter(JsonSink(text), origin_us)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from None
