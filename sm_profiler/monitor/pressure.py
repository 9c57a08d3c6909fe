"""Metric sources of a machine that waits: swapping, pressure stall information, and network file systems."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from sm_profiler.formats.system_writer import Measurement

PROC = Path("/proc")
EVERY_S = 1.0  # these files are longer than a tick at 100 ms is worth
PAGE = os.sysconf("SC_PAGE_SIZE")
EXECUTION_COLUMN = 8  # of an operation in mountstats: milliseconds from its request to its end
OPERATIONS_START = "per-op statistics"


class _Rates:
    """Growth of counters a second, measured at most once a second."""

    def __init__(self, read: Callable[[], dict[str, float]]) -> None:
        self._read = read
        self._last: tuple[float, dict[str, float]] | None = None

    def measure(self, now: float) -> dict[str, float]:
        """Return the rates of counters that grew or stayed; empty at the first call, too early, or without the file."""
        if self._last is not None and now - self._last[0] < EVERY_S * 0.99:
            return {}
        try:
            counts = self._read()
        except OSError:
            return {}
        last, self._last = self._last, (now, counts)
        if last is None:
            return {}
        seconds = now - last[0]
        return {name: max(value - last[1].get(name, value), 0.0) / seconds for name, value in counts.items()}


class Swapping:
    """Memory that moves between RAM and disk, from /proc/vmstat; counters of the machine."""

    name = "swap"

    def __init__(self, vmstat: Path = PROC / "vmstat") -> None:
        self._rates = _Rates(lambda: vmstat_counters(vmstat.read_text()))

    def measure(self, now: float) -> list[Measurement]:
        """Return three rows once a second, none at the first tick."""
        return [Measurement("swap", name, "", value) for name, value in self._rates.measure(now).items()]


def vmstat_counters(text: str) -> dict[str, float]:
    """Return bytes swapped in and out, and page faults from disk, since boot."""
    fields = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    wanted = {
        "SwapInBytesPerSecond": ("pswpin", PAGE),
        "SwapOutBytesPerSecond": ("pswpout", PAGE),
        "MajorFaultsPerSecond": ("pgmajfault", 1),
    }
    return {
        name: float(fields[key]) * factor
        for name, (key, factor) in wanted.items()
        if fields.get(key, "").strip().isdigit()
    }


class Pressure:
    """Percentage of the time in which some process waits for memory or I/O, from /proc/pressure (Linux 4.20, PSI)."""

    name = "pressure"

    def __init__(self, folder: Path = PROC / "pressure") -> None:
        self._folder = folder
        self._rates = _Rates(self._read)

    def _read(self) -> dict[str, float]:
        found = {}
        for name, file in (("MemoryPressurePercent", "memory"), ("IOPressurePercent", "io")):
            words = (self._folder / file).read_text().split("\n", 1)[0].split()
            totals = [word.partition("=")[2] for word in words if word.startswith("total=")]
            if words[:1] == ["some"] and totals and totals[0].isdigit():
                found[name] = float(totals[0]) / 1e6 * 100  # microseconds
        return found

    def measure(self, now: float) -> list[Measurement]:
        """Return two rows once a second, none at the first tick or without PSI."""
        return [
            Measurement("pressure", name, "", min(value, 100.0)) for name, value in self._rates.measure(now).items()
        ]


class Nfs:
    """Operations on NFS mounts (EFS is one) and how long they take, from mountstats."""

    name = "nfs"

    def __init__(self, mountstats: Path = PROC / "self/mountstats") -> None:
        self._rates = _Rates(lambda: nfs_counters(mountstats.read_text(errors="replace")))

    def measure(self, now: float) -> list[Measurement]:
        """Return three rows once a second, none without NFS."""
        rates = self._rates.measure(now)
        if not rates:
            return []
        operations, waiting = rates["operations"], rates["milliseconds"]
        return [
            Measurement("nfs", "NFSOperationsPerSecond", "", operations),
            Measurement("nfs", "NFSOperationsInProgress", "", waiting / 1e3),
            Measurement("nfs", "NFSLatencyMilliseconds", "", waiting / operations if operations else 0.0),
        ]


def nfs_counters(text: str) -> dict[str, float]:
    """Return the operations of all NFS mounts and their milliseconds so far; empty without such a mount."""
    operations = waiting = 0.0
    is_nfs = inside = False
    mounts = 0
    for line in text.splitlines():
        if line.startswith("device "):
            is_nfs, inside = " with fstype nfs" in line, False
            mounts += is_nfs
        elif is_nfs and line.strip() == OPERATIONS_START:
            inside = True
        elif inside and ":" in line:
            words = line.partition(":")[2].split()
            if len(words) >= EXECUTION_COLUMN and all(word.isdigit() for word in words[:EXECUTION_COLUMN]):
                operations += float(words[0])
                waiting += float(words[EXECUTION_COLUMN - 1])
    return {"operations": operations, "milliseconds": waiting} if mounts else {}
