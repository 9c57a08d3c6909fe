"""Write one trace of a whole job in the trace-event format, for Perfetto and chrome://tracing, while reading it.

Each process of the job is a process of the trace, and its lanes are threads: the loop with its steps and phases, modules,
data loading, each worker, operators by thread and device, communication. Each node has counters. Slices of a thread
nest; those that would cross are moved to another lane.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, TextIO

import attrs
import numpy as np

from sm_profiler.errors import SourceError
from sm_profiler.formats import event_names
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.report.svg import clean, shorten

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
    """

    events: int = 0
    processes: int = 0
    left_out: int = 0
    clock_error_us: dict[str, float] = attrs.field(factory=dict)


class TimelineWriter:
    """Writes a trace with times relative to `origin_us`."""

    def __init__(self, out: TextIO, origin_us: float) -> None:
        self._out = out
        self._origin = origin_us
        self._processes: dict[str, _Process] = {}
        self._separator = "\n"
        self.export = Export()
        out.write('{"displayTimeUnit":"ms","traceEvents":[')

    def _write(self, text: str) -> None:
        self._out.write(self._separator + text)
        self._separator = ",\n"

    def _meta(self, name: str, pid: int, tid: int, args: dict[str, Any]) -> None:
        self._write(json.dumps({"name": name, "ph": "M", "pid": pid, "tid": tid, "ts": 0, "args": args}))

    def _process(self, name: str, *, order: int = 0) -> _Process:
        found = self._processes.get(name)
        if found is None:
            found = self._processes[name] = _Process(len(self._processes) + 1, name)
            self._meta("process_name", found.number, 0, {"name": shorten(name, 200)})
            self._meta("process_sort_index", found.number, 0, {"sort_index": order or found.number})
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
        self._meta("thread_name", process.number, fresh.thread, {"name": shorten(label, 200)})
        self._meta("thread_sort_index", process.number, fresh.thread, {"sort_index": _order(lane) * 1000 + len(lanes)})
        return fresh.thread

    def add_events(self, events: EventColumns) -> None:
        """Write trace events, sorted by start, longer ones first."""
        if not len(events):
            return
        order = np.lexsort((-events.duration_us, events.start_us))
        phases = [clean(text) for text in events.phase.values]
        names = [json.dumps(shorten(text, 300) or "?") for text in events.name.values]
        categories = [json.dumps(shorten(text, 100) or "event") for text in phases]
        processes: dict[int, _Process] = {}
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
        good = np.isfinite(events.start_us) & np.isfinite(events.duration_us)
        order = order[good[order]]
        for start_us, duration_us, name, phase, node, step, tid, worker in zip(
            *(column[order].tolist() for column in columns), strict=True
        ):
            process = processes.get(node) or processes.setdefault(node, self._process(events.node.values[node]))
            start, length = round(start_us - self._origin, 3), max(round(duration_us, 3), 0.0)
            thread = self._lane(process, _lane_name(phases[phase], tid, worker), start, round(start + length, 3))
            if thread is None:
                self.export.left_out += 1
                continue
            args = f',"args":{{"step":{step}}}' if step >= 0 else ""
            self._write(
                f'{{"name":{names[name]},"cat":{categories[phase]},"ph":"X","pid":{process.number},"tid":{thread},"ts":{start:.15g},"dur":{length:.15g}{args}}}'
            )
            self.export.events += 1

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
            at = round(seconds * 1e6 - self._origin, 3)
            self._write(
                f'{{"name":{json.dumps(title)},"ph":"C","pid":{process.number},"tid":0,"ts":{at:.15g},"args":{json.dumps(values)}}}'
            )
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
                label = f"clock within {error / 1e3:.3g} ms"
                self._meta("process_labels", self._processes[name].number, 0, {"labels": label})
        self.export.processes = len(self._processes)
        about = {
            "source": clean(source),
            "start_time_since_epoch_in_micros": round(self._origin),
            "clock_error_us": self.export.clock_error_us,
            "events_left_out": self.export.left_out,
        }
        self._out.write(f'\n],"otherData":{json.dumps(about)}}}\n')
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
    known = (LOOP, LOADER, FORWARD_MODULES, BACKWARD_MODULES, "operators", "GPU", COMMUNICATION, "loader worker", OWN)
    return next((place for place, name in enumerate(known) if lane.startswith(name)), len(known))


def export_timeline(source: Any, where: str | Path) -> Export:
    """Write the whole job of a source as one trace; a file named .gz is compressed.

    Raises:
        SourceError: the file cannot be written, or the data cannot be read.
    """
    path = Path(where)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _text(path) as out:
            writer = TimelineWriter(out, float(source.first_timestamp_us or 0))
            for batch in source.batches(unsettled=True):
                writer.add_events(batch.events)
                writer.add_system(batch.system)
            return writer.finish(list(source.metadata()), source.origin)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from None


def _text(path: Path) -> TextIO:
    if path.suffix == ".gz":
        packed: TextIO = gzip.open(path, "wt", encoding="utf-8", compresslevel=4)  # noqa: SIM115 - the caller closes it
        return packed
    return path.open("w", encoding="utf-8")
