"""Kernel counters, read from /proc directly at a third of the cost of psutil."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sm_profiler.formats.system_writer import Measurement

SECTOR_BYTES = 512  # the unit of /proc/diskstats, independent of the disk's sector size
_READ = 1 << 16
Key = TypeVar("Key", bound=Hashable)
# Devices built on others or on memory: with them, bytes would count twice, or without ever reaching a disk.
_STACKED_DISK = re.compile(r"loop|ram|zram|dm-|md|sr|fd|nbd")
_VIRTUAL_CARD = re.compile(
    r"lo$|ifb|docker|br-|veth|virbr|cni|flannel|cali|dummy|tunl|sit|ip6|gre|bond.*\.|vxlan|tap|tun"
)


class ProcFile:
    """A file of /proc that stays open between reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def read(self) -> bytes:
        """Return the current content."""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        else:
            os.lseek(self._fd, 0, os.SEEK_SET)
        parts = []
        while part := os.read(self._fd, _READ):  # long files are returned page by page
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Rates:
    """Growth a second of counters that never decrease.

    Args:
        every_s: the shortest time between two measurements.
    """

    def __init__(self, every_s: float = 0.0) -> None:
        self._every_s = every_s
        self._last: tuple[float, Mapping[Any, float]] | None = None

    def is_due(self, now: float) -> bool:
        """Return whether it is time to measure; `now` is in monotonic seconds."""
        return self._last is None or now - self._last[0] >= self._every_s * 0.99

    def measure(self, now: float, counts: Mapping[Key, float]) -> dict[Key, float] | None:
        """Return the rates since the last call, None at the first; a counter that is new or was reset has grown by 0."""
        last, self._last = self._last, (now, counts)
        if last is None or now <= last[0]:
            return None
        seconds = now - last[0]
        return {key: max(count - last[1].get(key, count), 0) / seconds for key, count in counts.items()}


def core_times(stat: bytes) -> dict[int, tuple[int, int, int]]:
    """Map each core to its (total, idle, I/O wait) ticks since boot, from /proc/stat."""
    cores = {}
    at = stat.find(b"\ncpu") + 1
    end = stat.find(b"\nintr", at)
    for line in stat[at : end if end >= 0 else len(stat)].splitlines():
        if not line.startswith(b"cpu"):
            break
        name, *numbers = line.split()
        # user nice system idle iowait irq softirq steal; the guest times that follow are part of user and nice
        ticks = [int(number) for number in numbers[:8]]
        cores[int(name[3:])] = (sum(ticks), ticks[3], ticks[4] if len(ticks) > 4 else 0)  # column of iowait
    return cores


def memory_bytes(meminfo: bytes) -> tuple[int, int]:
    """Return (total, available) bytes, from /proc/meminfo."""
    fields = dict(line.split(b":", 1) for line in meminfo.splitlines()[:5] if b":" in line)
    total = int(fields[b"MemTotal"].split()[0])
    available = fields.get(b"MemAvailable") or fields[b"MemFree"]
    return 1024 * total, 1024 * int(available.split()[0])


def disk_counts(diskstats: bytes) -> dict[str, tuple[int, int, int]]:
    """Map each physical disk to its (operations, bytes read, bytes written), from /proc/diskstats."""
    found: dict[str, tuple[int, int, int]] = {}
    stacked: dict[str, tuple[int, int, int]] = {}
    whole = ""
    for line in diskstats.splitlines():
        fields = line.split()
        name = fields[2].decode()
        # Partitions follow their disk: sda1 after sda, nvme0n1p1 after nvme0n1.
        if whole and name.startswith(whole) and name[len(whole) :].lstrip("p").isdigit():
            continue
        whole = name
        counts = (
            int(fields[3]) + int(fields[7]),
            SECTOR_BYTES * int(fields[5]),
            SECTOR_BYTES * int(fields[9]),
        )
        (stacked if _STACKED_DISK.match(name) else found)[name] = counts
    return found or {name: counts for name, counts in stacked.items() if name.startswith(("dm-", "md"))}


def card_counts(net_dev: bytes) -> dict[str, tuple[int, int]]:
    """Map each network interface to its (bytes received, bytes sent), from /proc/net/dev."""
    found = {}
    for line in net_dev.splitlines()[2:]:
        name, _, rest = line.partition(b":")
        fields = rest.split()
        found[name.strip().decode()] = (int(fields[0]), int(fields[8]))
    return found


def real_cards(names: list[str], network: Path) -> list[str]:
    """Return the interfaces with hardware behind them; in a container without any, all but known virtual ones."""
    hardware = [name for name in names if (network / name / "device").exists()]
    return hardware or [name for name in names if not _VIRTUAL_CARD.match(name)]


PROC = Path("/proc")
EVERY_S = 1.0  # these files are longer than a tick at 100 ms is worth
PAGE = os.sysconf("SC_PAGE_SIZE")
EXECUTION_COLUMN = 8  # of an operation in mountstats: milliseconds from its request to its end
OPERATIONS_START = "per-op statistics"


class _FileSource:
    """Rates of counters in files that are read at most once a second."""

    def __init__(self, read: Callable[[], dict[str, float]]) -> None:
        self._read, self._rates = read, Rates(EVERY_S)

    def rates(self, now: float) -> dict[str, float]:
        """Return the rates; empty at the first call, too early, or without the file."""
        if not self._rates.is_due(now):
            return {}
        try:
            return self._rates.measure(now, self._read()) or {}
        except OSError:
            return {}


class Swapping(_FileSource):
    """Memory that moves between RAM and disk, from /proc/vmstat; counters of the machine."""

    name = "swap"

    def __init__(self, vmstat: Path = PROC / "vmstat") -> None:
        super().__init__(lambda: vmstat_counters(vmstat.read_text()))

    def measure(self, now: float) -> list[Measurement]:
        """Return three rows once a second, none at the first tick."""
        return [Measurement("swap", name, "", value) for name, value in self.rates(now).items()]


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


class Pressure(_FileSource):
    """Percentage of the time in which some process waits for memory or I/O, from /proc/pressure (Linux 4.20, PSI)."""

    name = "pressure"

    def __init__(self, folder: Path = PROC / "pressure") -> None:
        super().__init__(lambda: pressure_counters(folder))

    def measure(self, now: float) -> list[Measurement]:
        """Return two rows once a second, none at the first tick or without PSI."""
        return [Measurement("pressure", name, "", min(value, 100.0)) for name, value in self.rates(now).items()]


def pressure_counters(folder: Path) -> dict[str, float]:
    """Return the time so far in which some process waited, as percentages of a second."""
    found = {}
    for name, file in (("MemoryPressurePercent", "memory"), ("IOPressurePercent", "io")):
        words = (folder / file).read_text().split("\n", 1)[0].split()
        totals = [word.partition("=")[2] for word in words if word.startswith("total=")]
        if words[:1] == ["some"] and totals and totals[0].isdigit():
            found[name] = float(totals[0]) / 1e6 * 100  # microseconds
    return found


class Nfs(_FileSource):
    """Operations on NFS mounts (EFS is one) and how long they take, from mountstats."""

    name = "nfs"

    def __init__(self, mountstats: Path = PROC / "self/mountstats") -> None:
        super().__init__(lambda: nfs_counters(mountstats.read_text(errors="replace")))

    def measure(self, now: float) -> list[Measurement]:
        """Return three rows once a second, none without NFS."""
        rates = self.rates(now)
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
