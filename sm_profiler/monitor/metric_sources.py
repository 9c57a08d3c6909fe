"""Metric sources of the machine: CPU, memory, disk and network, each of which yields rows at every tick."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from sm_profiler.formats.system_writer import Measurement
from sm_profiler.limits import Limits
from sm_profiler.monitor.procfs import ProcFile, card_counts, core_times, disk_counts, memory_bytes, real_cards

PROC = Path("/proc")
NETWORK = Path("/sys/class/net")
ALGORITHM, PLATFORM = "Algorithm", "Platform"


class MetricSource(Protocol):
    """One group of metrics; all rows of a tick have the same time."""

    name: str

    def measure(self, now: float) -> Iterable[Measurement]:
        """Return the rows of this tick; rates are absent at the first one. `now` is in monotonic seconds."""


class Cpu:
    """Utilization and I/O wait of each core that this container may use, in percent.

    Under a CPU quota the container has no cores of its own: it is reported as the number of cores that the quota amounts
    to, all equally busy, with 100 % being the quota.
    """

    name = "cpu"

    def __init__(self, limits: Limits, stat: Path = PROC / "stat") -> None:
        self._limits = limits
        self._cores = limits.cores()
        self._file = ProcFile(stat)
        self._last: dict[int, tuple[int, int, int]] = {}
        self._used: tuple[float, float] | None = None

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
        used, last = self._limits.cpu_seconds(), self._used
        if used is None:
            return []
        self._used = (now, used)
        if last is None or now <= last[0]:
            return []
        busy = 100 * max(used - last[1], 0.0) / (quota * (now - last[0]))
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
        self._file = ProcFile(diskstats)
        self._last: tuple[float, dict[str, tuple[int, int, int]]] | None = None

    def measure(self, now: float) -> list[Measurement]:
        """Return three rows, none at the first tick or without disks."""
        counts, last = disk_counts(self._file.read()), self._last
        self._last = (now, counts)
        if last is None or now <= last[0] or not counts:
            return []
        operations, read, written = _growth(last[1], counts, 3)
        seconds = now - last[0]
        return [
            Measurement("i/o", "IOPS", "", operations / seconds),
            Measurement("i/o", "ReadThroughputInBytesPerSecond", "", read / seconds),
            Measurement("i/o", "WriteThroughputInBytesPerSecond", "", written / seconds),
        ]


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
        self._last: tuple[float, dict[str, tuple[int, int]]] | None = None

    def measure(self, now: float) -> list[Measurement]:
        """Return two rows per dimension, none at the first tick."""
        counts = card_counts(self._file.read())
        if list(counts) != self._seen:
            self._seen = list(counts)
            self._real = real_cards(self._seen, self._network)
        counts, last = {name: counts[name] for name in self._real}, self._last
        self._last = (now, counts)
        if last is None or now <= last[0]:
            return []
        seconds, rows = now - last[0], []
        for dimension, names in self._dimensions().items():
            received, sent = _growth(last[1], {name: counts[name] for name in names}, 2)
            rows.append(Measurement("network", "ReceiveBytesPerSecond", dimension, received / seconds))
            rows.append(Measurement("network", "TransmitBytesPerSecond", dimension, sent / seconds))
        return rows

    def _dimensions(self) -> dict[str, list[str]]:
        others = [name for name in self._real if name != self._algorithm]
        if self._algorithm not in self._real or not others:
            return {ALGORITHM: self._real}
        return {ALGORITHM: [self._algorithm], PLATFORM: others}


def _growth(before: Mapping[str, tuple[int, ...]], after: Mapping[str, tuple[int, ...]], width: int) -> list[int]:
    """Return how much `width` counters grew over all devices; a device that is new or was reset adds nothing."""
    totals = [0] * width
    for name, counts in after.items():
        for at, (old, new) in enumerate(zip(before.get(name, counts), counts, strict=True)):
            totals[at] += max(new - old, 0)
    return totals
