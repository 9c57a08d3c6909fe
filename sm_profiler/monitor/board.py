"""The newest values that the monitor has measured, to be scraped or pushed while a job runs."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Mapping

import attrs

from sm_profiler._version import __version__
from sm_profiler.formats.system_writer import Measurement
from sm_profiler.identity import identity
from sm_profiler.monitor.host import host_id
from sm_profiler.monitor.step_counter import StepCounter

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
    """Return the labels that distinguish a job's series from those of others: its name, the machine, and the user if known.

    The label is not `job`: Prometheus gives that name to what it scrapes.

    Args:
        name: of the job; "" to take that of the scheduler.
        environment: the job's variables.
        otherwise: name of a job that neither a variable nor a scheduler names.
    """
    known = identity(environment)
    scheduled = "-".join(known[key] for key in ("job", "job_id") if key in known)
    host = known.get("host") or host_id(in_container=True) or socket.gethostname()
    job = name or scheduled or known.get("pod") or otherwise
    found = {"training_job": job, "host": host, "user": known.get("user", "")}
    return tuple((key, value) for key, value in found.items() if value)


@attrs.define(eq=False)
class Board:
    """Newest values by series. The sampler writes, other threads read.

    Attributes:
        node: `algo-1`.
        steps: counts steps when the board is read; None without a training.
        clock: monotonic clock in seconds.
        labels: further labels of all series; see `job_labels`.
        withdraw: undoes what announced the board.
    """

    node: str
    clock: Callable[[], float]
    steps: StepCounter | None = None
    labels: tuple[tuple[str, str], ...] = ()
    withdraw: Callable[[], object] = lambda: None
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
            found = [value for at, value in self._values.values() if now - at <= STALE_S]
        found.append(Value(BUILD, (*self.common, ("version", __version__)), 1.0))
        ranks = self.steps.count() if self.steps is not None else {}
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
