"""What is measured of the machine: one small class a family, each a source of rows at a tick."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import psutil

from sm_profiler.formats.system_writer import Measurement
from sm_profiler.monitor.limits import Limits

VIRTUAL_INTERFACES = ("lo",)


class Family(Protocol):
    """One family of metrics; all its rows of a tick share a time."""

    name: str

    def measure(self, now: float) -> Iterable[Measurement]:
        """The rows of this tick; rates are absent at the first one.  `now` in seconds, never running backwards."""


class Cpu:
    """Use and I/O wait of each core that this container may run on, in percent."""

    name = "cpu"

    def __init__(self, limits: Limits) -> None:
        self._cores = limits.cores
        self._last: list[Any] | None = None

    def measure(self, now: float) -> list[Measurement]:  # noqa: ARG002 - the protocol's
        """Two rows a core."""
        times, last = psutil.cpu_times(percpu=True), self._last
        self._last = times
        if last is None or len(last) != len(times):
            return []
        rows = []
        for number, (before, after) in enumerate(zip(last, times, strict=True)):
            if self._cores is not None and number not in self._cores:
                continue
            busy, waiting = shares(before, after)
            rows.append(Measurement("cpu", f"cpu{number}", "CPUUtilization", busy))
            rows.append(Measurement("cpu", f"cpu{number}", "I/OWaitPercentage", waiting))
        return rows


def shares(before: Any, after: Any) -> tuple[float, float]:
    """Percent of the time between two readings of a core that it was busy, and that it waited for I/O."""
    passed = {name: max(getattr(after, name) - getattr(before, name), 0.0) for name in after._fields}
    # Guests' time is part of user and nice already.
    total = sum(seconds for name, seconds in passed.items() if name not in {"guest", "guest_nice"})
    if total <= 0:
        return 0.0, 0.0
    waiting = passed.get("iowait", 0.0)
    busy = total - passed.get("idle", 0.0) - waiting
    return 100 * busy / total, 100 * waiting / total


class Memory:
    """Used memory in percent of what this container may use."""

    name = "memory"

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def measure(self, now: float) -> list[Measurement]:  # noqa: ARG002 - the protocol's
        """One row."""
        limited = self._limits.memory_percent()
        percent = psutil.virtual_memory().percent if limited is None else limited
        return [Measurement("memory", "MemoryUsedPercent", "", percent)]


class Disk:
    """Operations and bytes a second over all disks."""

    name = "i/o"

    def __init__(self) -> None:
        self._last: tuple[float, Any] | None = None

    def measure(self, now: float) -> list[Measurement]:
        """Three rows, none at the first tick or without disks."""
        counters, last = psutil.disk_io_counters(), self._last
        if counters is None:
            return []
        self._last = (now, counters)
        if last is None or now <= last[0]:
            return []
        seconds, before = now - last[0], last[1]
        operations = counters.read_count + counters.write_count - before.read_count - before.write_count
        rates = (
            ("IOPS", operations),
            ("ReadThroughputInBytesPerSecond", counters.read_bytes - before.read_bytes),
            ("WriteThroughputInBytesPerSecond", counters.write_bytes - before.write_bytes),
        )
        return [Measurement("i/o", name, "", max(count, 0) / seconds) for name, count in rates]


class Network:
    """Bytes a second over all interfaces but the loopback."""

    name = "network"

    def __init__(self) -> None:
        self._last: tuple[float, int, int] | None = None

    def measure(self, now: float) -> list[Measurement]:
        """Two rows, none at the first tick."""
        cards = [card for name, card in psutil.net_io_counters(pernic=True).items() if name not in VIRTUAL_INTERFACES]
        received, sent = sum(card.bytes_recv for card in cards), sum(card.bytes_sent for card in cards)
        last, self._last = self._last, (now, received, sent)
        if last is None or now <= last[0]:
            return []
        seconds = now - last[0]
        return [
            Measurement("network", "ReceiveBytesPerSecond", "Algorithm", max(received - last[1], 0) / seconds),
            Measurement("network", "TransmitBytesPerSecond", "Algorithm", max(sent - last[2], 0) / seconds),
        ]
