"""The sampler of system metrics, its sources, and the rows that name the job's owner."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import attrs

from sm_profiler.container import INPUT_CONFIG, Resources, read_resources
from sm_profiler.formats.system_writer import Measurement, SystemWriter, recover_minutes
from sm_profiler.identity import (
    IDENTITY_TYPE,
    INSTANCE_TYPE,
    LABEL,
    LABEL_TYPE,
    MACHINE,
    host_id,
    identity,
    instance_type,
)
from sm_profiler.limits import Limits
from sm_profiler.monitor.board import Board
from sm_profiler.monitor.gpu import GpuSource, find_gpus
from sm_profiler.monitor.procfs import (
    Nfs,
    Pressure,
    ProcFile,
    Rates,
    Swapping,
    card_counts,
    core_times,
    disk_counts,
    memory_bytes,
    real_cards,
)
from sm_profiler.printable import logger_for
from sm_profiler.threads import StopEvent

PROC = Path("/proc")
NETWORK = Path("/sys/class/net")
ALGORITHM, PLATFORM = "Algorithm", "Platform"


class MetricSource(Protocol):
    """One group of metrics; all rows of a tick have the same time."""

    name: str

    def measure(self, now: float) -> Iterable[Measurement]:
        """Return the rows of this tick; rates are absent at the first tick. `now` is in monotonic seconds."""


class Cpu:
    """Utilization and I/O wait of each core that this container may use, in percent.

    Under a CPU quota the container owns no cores: it is reported as the number of cores that the quota amounts
    to, all equally busy, with 100 % being the quota.
    """

    name = "cpu"

    def __init__(self, limits: Limits, stat: Path = PROC / "stat") -> None:
        self._limits = limits
        self._cores = limits.cores()
        self._file = ProcFile(stat)
        self._last: dict[int, tuple[int, int, int]] = {}
        self._used = Rates()

    def measure(self, now: float) -> list[Measurement]:
        """Return two rows per core, none at the first tick."""
        times, last = core_times(self._file.read()), self._last
        self._last = times
        shown = [core for core in times if core in last and (self._cores is None or core in self._cores)]
        quota = self._limits.cpu_quota
        if quota is not None and quota < (len(self._cores) if self._cores else len(times)):
            waiting = sum(shares(last[core], times[core])[1] for core in shown)
            return self._of_quota(now, quota, waiting)
        rows = []
        for core in shown:
            busy, waiting = shares(last[core], times[core])
            rows.append(Measurement("cpu", f"cpu{core}", "CPUUtilization", busy))
            rows.append(Measurement("cpu", f"cpu{core}", "I/OWaitPercentage", waiting))
        return rows

    def _of_quota(self, now: float, quota: float, waiting: float) -> list[Measurement]:
        used = self._limits.cpu_seconds()
        rates = self._used.measure(now, {"cpu": used}) if used is not None else None
        if rates is None:
            return []
        busy = 100 * rates["cpu"] / quota
        idle = max(100.0 - busy, 0.0)  # a core that waits for I/O is otherwise idle
        rows = []
        for core in range(math.ceil(quota)):
            rows.append(Measurement("cpu", f"cpu{core}", "CPUUtilization", busy))
            rows.append(Measurement("cpu", f"cpu{core}", "I/OWaitPercentage", min(waiting / quota, idle)))
        return rows


def shares(before: tuple[int, int, int], after: tuple[int, int, int]) -> tuple[float, float]:
    """Return the percentages of time that a core was busy, and waited for I/O, between two readings."""
    total = after[0] - before[0]
    if total <= 0:
        return 0.0, 0.0
    # The kernel's idle and wait counters may decrease by a tick.
    idle, waiting = max(after[1] - before[1], 0), max(after[2] - before[2], 0)
    return 100 * max(total - idle - waiting, 0) / total, 100 * min(waiting, total) / total


class Memory:
    """Used memory in percent of this container's limit."""

    name = "memory"

    def __init__(self, limits: Limits, meminfo: Path = PROC / "meminfo") -> None:
        self._limits = limits
        self._file = ProcFile(meminfo)

    def measure(self, now: float) -> list[Measurement]:  # of the protocol
        """Return one row."""
        total, available = memory_bytes(self._file.read())
        used, limited = total - available, self._limits.memory()
        if limited is not None and limited.limit < total:
            used, total = limited.used, limited.limit
        return [Measurement("memory", "MemoryUsedPercent", "", 100 * used / total)]


class Disk:
    """Operations and bytes per second over all disks."""

    name = "i/o"

    def __init__(self, diskstats: Path = PROC / "diskstats") -> None:
        self._file, self._rates = ProcFile(diskstats), Rates()

    def measure(self, now: float) -> list[Measurement]:
        """Return three rows, none at the first tick or without disks."""
        rates = self._rates.measure(now, _by_counter(disk_counts(self._file.read())))
        names = ("IOPS", "ReadThroughputInBytesPerSecond", "WriteThroughputInBytesPerSecond")
        return [Measurement("i/o", name, "", _sum(rates, at)) for at, name in enumerate(names)] if rates else []


class Network:
    """Bytes per second of the training's network interface, and of the platform's if there are others.

    Args:
        algorithm: the interface that connects the job's nodes, from resourceconfig.json; by default all interfaces count.
        net_dev: the file with the counters.
        network: the folder that distinguishes hardware from virtual interfaces.
    """

    name = "network"

    def __init__(self, algorithm: str = "", net_dev: Path = PROC / "net/dev", network: Path = NETWORK) -> None:
        self._algorithm = algorithm
        self._file = ProcFile(net_dev)
        self._network = network
        self._seen: list[str] = []
        self._real: list[str] = []
        self._rates = Rates()

    def measure(self, now: float) -> list[Measurement]:
        """Return two rows per dimension, none at the first tick."""
        counts = card_counts(self._file.read())
        if list(counts) != self._seen:
            self._seen = list(counts)
            self._real = real_cards(self._seen, self._network)
        rates = self._rates.measure(now, _by_counter({name: counts[name] for name in self._real}))
        if rates is None:
            return []
        return [
            Measurement("network", name, dimension, _sum(rates, at, cards))
            for dimension, cards in self._dimensions().items()
            for at, name in enumerate(("ReceiveBytesPerSecond", "TransmitBytesPerSecond"))
        ]

    def _dimensions(self) -> dict[str, list[str]]:
        others = [name for name in self._real if name != self._algorithm]
        if self._algorithm not in self._real or not others:
            return {ALGORITHM: self._real}
        return {ALGORITHM: [self._algorithm], PLATFORM: others}


def _by_counter(devices: Mapping[str, Sequence[int]]) -> dict[tuple[str, int], float]:
    return {(name, at): count for name, counts in devices.items() for at, count in enumerate(counts)}


def _sum(rates: Mapping[tuple[str, int], float], counter: int, devices: Sequence[str] | None = None) -> float:
    """Return the rate of the devices' counter with this number."""
    return sum(rate for (name, at), rate in rates.items() if at == counter and (devices is None or name in devices))


EVERY_S = 60.0  # each minute's file has it, so that any part of a profile does


@attrs.define(eq=False)
class Identity:
    """Source of rows whose name and dimension are a key and its text, and whose value is 1.

    Attributes:
        who: returns the identity.
        machine: returns the id of the machine, the same in all of its jobs; "" if none is known.
        resources: returns this machine's place in its job.
        instance_type: returns the machine's type, if its place does not name it; "" if none is known.
    """

    who: Callable[[], dict[str, str]] = identity
    machine: Callable[[], str] = lambda: host_id(in_container=Path(INPUT_CONFIG).is_dir())
    resources: Callable[[], Resources] = read_resources
    instance_type: Callable[[], str] = lambda: "" if Path(INPUT_CONFIG).is_dir() else instance_type()
    name: str = "identity"
    _rows: list[Measurement] | None = attrs.field(default=None, init=False)
    _due: float = attrs.field(default=float("-inf"), init=False)

    def measure(self, now: float) -> Iterable[Measurement]:
        """Return the rows, once a minute."""
        if now < self._due:
            return ()
        self._due = now + EVERY_S
        if self._rows is None:
            self._rows = self._read()
        return self._rows

    def _read(self) -> list[Measurement]:
        kind = self.resources().instance_type or self.instance_type()
        found = {**self.who(), MACHINE: self.machine(), INSTANCE_TYPE: kind}
        return [
            Measurement(LABEL_TYPE, key.removeprefix(LABEL), text, 1.0)
            if key.startswith(LABEL)
            else Measurement(IDENTITY_TYPE, key, text, 1.0)
            for key, text in found.items()
            if text
        ]


logger = logger_for("sm_profiler")

MIN_INTERVAL_MS, MAX_INTERVAL_MS = 100, 60_000
OWN = "monitor"  # type of the rows that describe the monitor itself
OWN_EVERY_S = 60.0
MAX_FAILURES = 5  # in a row, after which a source is left out


@attrs.define(eq=False)
class Ticker:
    """Ticks every `interval` seconds of a monotonic clock; a late tick does not delay the next.

    Attributes:
        interval: seconds.
        late: ticks that were late by more than half an interval.
        missed: ticks that were skipped because the next was due already.
    """

    interval: float
    clock: Callable[[], float] = time.monotonic
    late: int = 0
    missed: int = 0
    _due: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._due = self.clock() + self.interval

    def wait_seconds(self) -> float:
        """Return the time until the next tick; 0 if it is due."""
        return max(self._due - self.clock(), 0.0)

    def advance(self) -> None:
        """Finish a tick; the next is due a whole number of intervals later, in the future."""
        behind = self.clock() - self._due
        if behind > self.interval / 2:
            self.late += 1
        skipped = max(int(behind // self.interval), 0)
        self.missed += skipped
        self._due += self.interval * (skipped + 1)


def machine_sources(interface: str = "") -> list[MetricSource]:
    """Return all metric sources of this machine."""
    limits = Limits()
    return [
        Cpu(limits), GpuSource(find_gpus), Memory(limits), Disk(), Network(interface), Swapping(), Pressure(), Nfs(),
        Identity(),
    ]  # fmt: skip


@attrs.define(eq=False)
class Sampler:
    """Samples one node.

    Attributes:
        root: the `profiler-output` folder on this machine.
        node: `algo-1`.
        interval_s: seconds between ticks.
        sources: what is measured; a source that keeps failing is reported once and left out.
        wall: clock in seconds since the epoch.
        monotonic: monotonic clock in seconds.
        cpu_seconds: CPU time of this thread, for the monitor's own cost.
        board: gets the newest values, too.
        ticks: number of ticks so far.
    """

    root: Path
    node: str
    interval_s: float
    sources: Sequence[MetricSource] = attrs.field(factory=machine_sources)
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    cpu_seconds: Callable[[], float] = time.thread_time
    board: Board | None = None
    ticks: int = 0
    _writer: SystemWriter = attrs.field(init=False)
    _ticker: Ticker | None = attrs.field(default=None, init=False)
    _failures: dict[str, int] = attrs.field(factory=dict, init=False)
    _reported_disk: bool = attrs.field(default=False, init=False)
    _last_own: tuple[float, float, int, int] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._writer = SystemWriter(self.root, self.node)

    def run(self, stop: StopEvent) -> None:
        """Sample until `stop` is set, then close the open minute."""
        recover_minutes(self.root, self.node)
        self._ticker = ticker = Ticker(self.interval_s, self.monotonic)
        self.tick()
        while not stop.wait(ticker.wait_seconds()):
            self.tick()
            ticker.advance()
        self._write_own_rows(self.monotonic())
        self._writer.finish()
        if self._writer.dropped:
            logger.warning(
                "sm-profiler: %d rows of system metrics are lost: %s", self._writer.dropped, self._writer.error
            )

    def tick(self) -> None:
        """Read and write each source once."""
        self.ticks += 1
        for source in self.sources:
            failures = self._failures.get(source.name, 0)
            if failures >= MAX_FAILURES:
                continue
            try:
                rows = source.measure(self.monotonic())
            except Exception as error:  # the other sources must go on
                self._failures[source.name] = failures + 1
                if failures + 1 == MAX_FAILURES or isinstance(error, ImportError):
                    self._failures[source.name] = MAX_FAILURES
                    reason = f"{type(error).__name__}: {error}"
                    logger.warning("sm-profiler: no %s metrics: %s", source.name, reason)
                continue
            if failures:
                self._failures[source.name] = 0
            self._writer.write(self.wall(), rows)
            if self.board is not None:
                self.board.update(rows)
        now = self.monotonic()
        if self._last_own is None or now - self._last_own[0] >= OWN_EVERY_S:
            self._write_own_rows(now)
        self._writer.tick(self.wall())
        if self._writer.error and not self._reported_disk:
            self._reported_disk = True
            logger.warning("sm-profiler: system metrics cannot be written: %s", self._writer.error)

    def _write_own_rows(self, now: float) -> None:
        """Write this thread's share of a core, and the ticks that were late or missed, since the last call."""
        ticker, last = self._ticker, self._last_own
        late, missed = (ticker.late, ticker.missed) if ticker else (0, 0)
        self._last_own = (now, self.cpu_seconds(), late, missed)
        if last is None or now <= last[0]:
            return
        rows = [
            Measurement(OWN, "MonitorCPUPercent", "", 100 * (self._last_own[1] - last[1]) / (now - last[0])),
            Measurement(OWN, "MonitorLateTicks", "", late - last[2]),
            Measurement(OWN, "MonitorMissedTicks", "", missed - last[3]),
        ]
        self._writer.write(self.wall(), rows)
