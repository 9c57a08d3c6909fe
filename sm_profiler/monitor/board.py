"""The newest values that the monitor has measured, to be scraped or pushed while a job runs.

Among them is the progress of the node's processes, found by searching what was appended to their trace files.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import attrs

from sm_profiler._version import __version__
from sm_profiler.formats.event_names import DATALOADER_WAIT, STEP_EVAL, STEP_PREDICT, STEP_TRAIN
from sm_profiler.formats.layout import LOADING_FOLDER, PYTHON_TIMELINE, TEMPORARY, TRACE_FOLDER
from sm_profiler.formats.system_writer import Measurement
from sm_profiler.identity import host_id, identity
from sm_profiler.monitor.place import read_claim
from sm_profiler.settings import RUN_ID

MAX_BYTES = 64 << 20  # of a file at one time; the rest follows
MAX_FILES = 100_000
MAX_RANKS = 64  # of a node; the steps of more are counted as those of a process without a rank
RECENT_S = 60
STEP_MODES = {"train": STEP_TRAIN, "eval": STEP_EVAL, "predict": STEP_PREDICT}
_MODE = {name.rpartition(".")[2].encode(): mode for mode, name in STEP_MODES.items()}
_STEP = re.compile(rb'"name": "Step:ModeKeys\.(TRAIN|EVAL|PREDICT)", "[^}]{0,80}?"ts": (-?\d{1,18})')
_ANY_STEP = re.compile(rb'"name": "Step:ModeKeys\.(TRAIN|EVAL|PREDICT)", ')  # not the record that names the phase
_BASE = re.compile(rb'"start_time_since_epoch_in_micros": (\d{1,18})')
_PROCESS = re.compile(rb'"name": "sm_profiler/process", [^\n]{0,400}?"rank": (\d{1,6}|null)')
_OFF = re.compile(rb'"name": "sm_profiler/process", (?:[^\n]*?("hook": "failed: ))?')
_BATCH = re.compile(
    rb'"name": "sm_profiler/process", [^\n]{0,4000}?"phases_every": (\d{1,9})[^\n]{0,2000}?"batch_size": (\d{1,9}|null)'
)
_WAITS = re.compile(rb'"name": "process_name", "ph": "M", "pid": (\d{1,6}), "args": \{"name": "' + re.escape(DATALOADER_WAIT.encode()) + rb'"\}')  # fmt: skip
_SPAN = rb'"pid": %d, "ph": "X", "ts": (-?\d{1,18}), "dur": (\d{1,18})'
_HANG = re.compile(rb'"name": "hang", "pid": \d{1,6}, [^\n]{0,300}?"state": "(\w{1,20})"([^\n]*)')
_COMPLETE = re.compile(rb'.*"steps": (\d{1,12})', re.DOTALL)  # the last: names of threads come before it


@attrs.define
class Progress:
    """Progress of the processes with one rank on this node.

    Attributes:
        steps: steps so far by mode.
        step_s: time from step to step in the last minute of training; None if that is too long ago.
        wait_share: part of that time in which it waited for data; None if unknown.
        samples: samples a second; None if the batch size is unknown.
        hanging: the hook found that the steps have stopped.
    """

    steps: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(STEP_MODES, 0))
    step_s: float | None = None
    wait_share: float | None = None
    samples: float | None = None
    hanging: bool = False


@attrs.define
class _Process:
    """Numbers of one process, as far as its files were read."""

    rank: str = ""
    batch: int | None = None
    every: int = 1
    steps: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(STEP_MODES, 0))
    starts: dict[int, tuple[int, int, int]] = attrs.field(factory=dict)  # second → train steps, first and last start
    waits: dict[int, int] = attrs.field(factory=dict)  # second → microseconds
    has_waits: bool = False
    hanging: bool = False
    complete: int = 0  # training steps when it stopped, of which the latest may not be written before the next
    off: bool = False  # an internal error has switched the hook off: it counts no more steps

    def step(self, start_us: int) -> None:
        second = start_us // 1_000_000
        count, first, last = self.starts.get(second, (0, start_us, start_us))
        self.starts[second] = count + 1, min(first, start_us), max(last, start_us)

    def forget(self) -> None:
        """Keep the last minute only."""
        newest = max(self.starts, default=0)
        for kept in (self.starts, self.waits):
            for second in [second for second in kept if second < newest - RECENT_S]:
                del kept[second]

    def recent(self, now: float) -> tuple[float, float | None] | None:
        """Return the time from step to step, and the share of waiting for data; None if both are old or unknown."""
        if not self.starts or now - max(self.starts) > RECENT_S:
            return None
        count = sum(row[0] for row in self.starts.values())
        span = max(row[2] for row in self.starts.values()) - min(row[1] for row in self.starts.values())
        if count < 2 or span <= 0:  # between two steps
            return None
        wait = min(sum(self.waits.values()) / span, 1.0) if self.has_waits and self.every == 1 else None
        return span / (count - 1) / 1e6, wait


@attrs.define(eq=False)
class StepCounter:
    """Follows the trace files of one node, closed and open; safe to use from several threads.

    Only complete lines count. A file keeps its count when it gets its final name.

    Attributes:
        root: the `profiler-output` folder on this machine.
        node: `algo-1`.
        now: the time, seconds since the epoch.
        of_job: a training has started the counter; if not, one must have imported a framework to have 0 steps.
    """

    root: Path
    node: str
    now: Callable[[], float] = time.time
    of_job: bool = True
    _processes: dict[str, _Process] = attrs.field(factory=dict)  # source of a file → its process
    _read: dict[int, int] = attrs.field(factory=dict)  # inode → bytes searched
    _heads: dict[int, tuple[int, int | None]] = attrs.field(factory=dict)  # inode → base, phase of waits
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def count(self) -> Mapping[str, Progress]:
        """Return the progress by rank, "" for processes without a rank; a job without a process has 0 steps.

        A rank has none whose hook an internal error has switched off: it must not look like one that has stopped.
        """
        with self._lock:
            for path, source in self._files():
                with contextlib.suppress(OSError):
                    self._search(path, self._processes.setdefault(source, _Process()))
            found: dict[str, Progress] = {}
            now = self.now()
            off = {process.rank for process in self._processes.values() if process.off}
            for process in self._processes.values():
                if process.rank in off:
                    continue
                rank = process.rank if process.rank in found or len(found) < MAX_RANKS else ""
                _add(found.setdefault(rank, Progress()), process, now)
            return found or ({"": Progress()} if not off and (self.of_job or self._is_loading()) else {})

    def _is_loading(self) -> bool:
        return any((self.root / LOADING_FOLDER).glob(f"*-{self.node}_*"))

    def _files(self) -> list[tuple[Path, str]]:
        """Return this node's trace files and their sources, without following links."""
        found = []
        part = f"-{self.node}_{PYTHON_TIMELINE}"
        for folder, folders, files in os.walk(self.root / TRACE_FOLDER):
            folders.sort()
            for name in files:
                before, separator, after = name.partition(part)
                if separator and (after == ".json" or (after.endswith(f".json{TEMPORARY}") and after[:1] in "_.")):
                    found.append((Path(folder, name), before.rpartition("_")[2]))
            if len(found) > MAX_FILES:
                break
        return found

    def _search(self, path: Path, process: _Process) -> None:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            state = os.fstat(file.fileno())
            first = self._read.get(state.st_ino, 0)
            if state.st_size <= first:
                return
            file.seek(first)
            data = file.read(MAX_BYTES)
        data = _whole_lines(data)
        self._read[state.st_ino] = first + len(data)
        base, waits = self._heads.get(state.st_ino, (0, None))
        if not base and (found := _BASE.search(data)):
            base = int(found[1])
        if waits is None and (found := _WAITS.search(data)):
            waits = int(found[1])
        self._heads[state.st_ino] = base, waits
        _read_process(data, process)
        _read_steps(data, base, process)
        if waits is not None:
            process.has_waits = True
            for start, length in re.findall(_SPAN % waits, data):
                second = (base + int(start)) // 1_000_000
                process.waits[second] = process.waits.get(second, 0) + int(length)
        process.forget()


def _whole_lines(data: bytes) -> bytes:
    """Drop the last line if it is not complete; the writer ends a line when it writes the next."""
    end = data.rfind(b"\n") + 1
    try:
        json.loads(data[end:])
    except (ValueError, RecursionError):
        return data[:end]
    return data


def _read_process(data: bytes, process: _Process) -> None:
    if found := _PROCESS.search(data):
        process.rank = "" if found[1] == b"null" else found[1].decode()
    for found in _OFF.finditer(data):
        process.off = found[1] is not None
    if found := _BATCH.search(data):
        process.every = int(found[1])
        process.batch = None if found[2] == b"null" else int(found[2])


def _read_steps(data: bytes, base: int, process: _Process) -> None:
    last = -1
    for found in _ANY_STEP.finditer(data):
        process.steps[_MODE[found[1]]] += 1
        last = found.start()
    for found in _STEP.finditer(data):
        if found[1] == b"TRAIN":
            process.step(base + int(found[2]))
    hangs = list(_HANG.finditer(data))
    if hangs:
        process.hanging = hangs[-1][1] == b"hanging" and hangs[-1].start() > last
        if found_steps := _COMPLETE.match(hangs[-1][2]):
            process.complete = max(process.complete, int(found_steps[1]))
    elif last >= 0:
        process.hanging = False


def _add(found: Progress, process: _Process, now: float) -> None:
    """Add a process to the progress of its rank."""
    for mode, count in process.steps.items():
        found.steps[mode] += max(count, process.complete) if mode == "train" else count
    found.hanging = found.hanging or process.hanging
    recent = process.recent(now)
    if recent is not None and (found.step_s is None or recent[0] > found.step_s):
        found.step_s, found.wait_share = recent
        found.samples = process.batch / recent[0] if process.batch else None


MAX_DEVICES = 64  # GPUs of a node; more share no series of their own
STALE_S = 90.0  # a value that has not been measured for so long is left out


@attrs.frozen
class Instrument:
    """A metric as OpenTelemetry's conventions name it.

    Attributes:
        name: with dots; ours begin with `sm_profiler.`.
        unit: UCUM code: `1` for a share, `By/s`, `W`, `Cel`, `{step}`.
        text: one sentence.
        scale: factor from the monitor's value.
        attributes: that all its series have.
        counts: a counter, not a gauge.
    """

    name: str
    unit: str
    text: str
    scale: float = 1.0
    attributes: tuple[tuple[str, str], ...] = ()
    counts: bool = False


_GPU = (("hw.type", "gpu"),)
CPU = Instrument("system.cpu.utilization", "1", "CPU time in use, mean over the container's cores.", 0.01)
STEPS = Instrument("sm_profiler.steps", "{step}", "Steps that the processes of this node have finished.", counts=True)
STEP_TIME = Instrument(
    "sm_profiler.step.time", "s", "Time from one training step to the next, mean of the last minute."
)
DATA_WAIT = Instrument(
    "sm_profiler.data.wait", "1", "Part of the last minute of training that was spent waiting for data."
)
SAMPLES = Instrument(
    "sm_profiler.samples", "{sample}/s", "Samples a second of a process, by the batch size of its loader."
)
HANGING = Instrument(
    "sm_profiler.hanging", "{bool}", "1 if the hook found that the steps of a process have stopped, else 0."
)
BUILD = Instrument("sm_profiler.build.info", "{info}", "Always 1; the version of sm-profiler is a label.")
OF_STEPS = (STEPS, STEP_TIME, DATA_WAIT, SAMPLES, HANGING)
# Name or dimension of a row → its metric.
GAUGES: Mapping[str, Instrument] = {
    "MemoryUsedPercent": Instrument("system.memory.utilization", "1", "Memory in use.", 0.01),
    "GPUUtilization": Instrument("hw.gpu.utilization", "1", "Time in which the GPU ran a kernel.", 0.01, _GPU),
    "GPUMemoryUtilization": Instrument("hw.gpu.memory.utilization", "1", "GPU memory in use.", 0.01, _GPU),
    "GPUPowerWatts": Instrument("hw.power", "W", "Power that the GPU draws.", 1.0, _GPU),
    "GPUTemperatureCelsius": Instrument("hw.temperature", "Cel", "Temperature of the GPU.", 1.0, _GPU),
    "ReadThroughputInBytesPerSecond": Instrument("sm_profiler.disk.read", "By/s", "Bytes read from disks."),
    "WriteThroughputInBytesPerSecond": Instrument("sm_profiler.disk.write", "By/s", "Bytes written to disks."),
    "ReceiveBytesPerSecond": Instrument("sm_profiler.network.receive", "By/s", "Bytes received."),
    "TransmitBytesPerSecond": Instrument("sm_profiler.network.transmit", "By/s", "Bytes sent."),
    "MemoryPressurePercent": Instrument("sm_profiler.memory.pressure", "1", "Time in which a process waited for memory.", 0.01),
    "IOPressurePercent": Instrument("sm_profiler.io.pressure", "1", "Time in which a process waited for I/O.", 0.01),
}  # fmt: skip


@attrs.frozen
class Value:
    """The newest value of a series."""

    instrument: Instrument
    labels: tuple[tuple[str, str], ...]
    value: float


def job_labels(
    name: str, environment: Mapping[str, str] = os.environ, otherwise: str = ""
) -> tuple[tuple[str, str], ...]:
    """Return the labels that distinguish a job's series from those of others: its name, the machine, and who it belongs to if known.

    The label is not `job`: Prometheus gives that name to what it scrapes.

    Args:
        name: of the job; "" to take that of the scheduler.
        environment: the job's variables.
        otherwise: name of a job that neither a variable nor a scheduler names; "" for that of the run, or of the machine.
    """
    known = identity(environment)
    scheduled = "-".join(known[key] for key in ("job", "job_id") if key in known)
    host = known.get("host") or host_id(in_container=True) or socket.gethostname()
    job = name or scheduled or known.get("pod") or otherwise or RUN_ID.text(environment) or host
    found = {"training_job": job, "host": host, "user": known.get("user", ""), "account": known.get("account", "")}
    return tuple((key, value) for key, value in found.items() if value)


def name_of_folder(root: Path) -> str:
    """Return the name of the job that writes to a folder, which nothing else names; "" if no job has claimed it."""
    try:
        owner = read_claim(root)
    except OSError:
        return ""
    return owner.job if owner is not None else ""


@attrs.define(eq=False)
class Board:
    """Newest values by series. The sampler writes, other threads read.

    Attributes:
        node: `algo-1`.
        steps: counts steps when the board is read; None without a training.
        clock: monotonic clock in seconds.
        labels: further labels of all series; see `job_labels`.
        ends: what ends showing it, once the job is over.
        has: whether a metric is measured; the configuration of a running job may switch it off.
    """

    node: str
    clock: Callable[[], float]
    steps: StepCounter | None = None
    labels: tuple[tuple[str, str], ...] = ()
    ends: tuple[Callable[[], object], ...] = ()
    has: Callable[[Instrument], bool] = lambda _: True
    _values: dict[tuple[str, str], tuple[float, Value]] = attrs.field(factory=dict)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def update(self, rows: Iterable[Measurement]) -> None:
        """Take the rows of one source at one tick."""
        cores = []
        now = self.clock()
        sums: dict[str, float] = {}
        with self._lock:
            for row in rows:
                if row.dimension == "CPUUtilization":
                    cores.append(row.value)
                elif (instrument := GAUGES.get(row.dimension) or GAUGES.get(row.name)) is not None:
                    device = row.name if re.fullmatch(r"gpu\d{1,4}", row.name) else ""
                    if device:
                        self._put(instrument, device, row.value, now)
                    else:  # disks, and networks of several dimensions, add up
                        sums[instrument.name] = sums.get(instrument.name, 0.0) + row.value
                        self._put(instrument, "", sums[instrument.name], now)
            if cores:
                self._put(CPU, "", sum(cores) / len(cores), now)

    def _put(self, instrument: Instrument, device: str, value: float, now: float) -> None:
        key = instrument.name, device
        if key in self._values or sum(name == instrument.name for name, _ in self._values) < MAX_DEVICES:
            labels = (*self.common, *instrument.attributes, *((("hw.id", device),) if device else ()))
            self._values[key] = now, Value(instrument, labels, value * instrument.scale)

    def values(self) -> list[Value]:
        """Return the newest value of each series."""
        now = self.clock()
        with self._lock:
            found = [value for at, value in self._values.values() if now - at <= STALE_S and self.has(value.instrument)]
        found.append(Value(BUILD, (*self.common, ("version", __version__)), 1.0))
        ranks = self.steps.count() if self.steps is not None and self.has(STEPS) else {}
        for rank, progress in ranks.items():
            labels = (*self.common, *((("rank", rank),) if rank else ()))
            found += [Value(STEPS, (*labels, ("mode", mode)), float(count)) for mode, count in progress.steps.items()]
            found.append(Value(HANGING, labels, float(progress.hanging)))
            recent = ((STEP_TIME, progress.step_s), (DATA_WAIT, progress.wait_share), (SAMPLES, progress.samples))
            found += [Value(instrument, labels, value) for instrument, value in recent if value is not None]
        return found

    @property
    def common(self) -> tuple[tuple[str, str], ...]:
        """Labels of all series."""
        return (*self.labels, ("node", self.node))
