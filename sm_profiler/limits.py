"""CPU and memory limits of this container, from cgroup v1, v2 or both side by side, nested or not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import attrs

UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2^63 if there is no limit
MICRO = 1e-6
NANO = 1e-9
VMSTAT = Path("/proc/vmstat")


@attrs.frozen
class MemoryUse:
    """Memory of a container in bytes: used (without page cache that can be dropped) and limit."""

    used: int
    limit: int


@attrs.define(eq=False)
class Limits:
    """The container's limits, read from the cgroups that this process is in.

    A limit applies to everything below it, so the tightest one on the way to the root counts. In a container the mounted
    root is usually the container's own cgroup, and the path in the membership file does not exist.

    Attributes:
        root: mount point of the cgroup file systems.
        membership: the file that lists this process's cgroups.
    """

    root: Path = attrs.field(default=Path("/sys/fs/cgroup"), converter=Path)
    membership: Path = attrs.field(default=Path("/proc/self/cgroup"), converter=Path)
    _paths: dict[str, str] = attrs.field(init=False)
    _memory: tuple[Path, bool] | None = attrs.field(init=False)
    _cpu: tuple[Path, float] | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._paths = self._read_membership()
        self._memory = self._tightest_memory()
        self._cpu = self._tightest_cpu()

    @property
    def cpu_quota(self) -> float | None:
        """CPU quota in cores, e.g. 2.5; None without a limit."""
        return self._cpu[1] if self._cpu else None

    def cpu_seconds(self) -> float | None:
        """Return the CPU time used under the quota, in seconds; None without a quota."""
        if self._cpu is None:
            return None
        folder = self._cpu[0]
        if (used := _field(folder / "cpu.stat", "usage_usec")) is not None:
            return used * MICRO
        for accounting in (folder, *self._same_place(folder, "cpuacct")):
            if (used := _number(accounting / "cpuacct.usage")) is not None:
                return used * NANO
        return None

    def cores(self) -> frozenset[int] | None:
        """Return the container's cores, or None if they are not listed.

        This process's affinity does not count: launchers pin ranks to fewer cores than the container has.
        """
        for folder in self._folders("cpuset"):
            for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
                text = _text(folder / name)
                if text:
                    return core_list(text)
        return None

    def memory(self) -> MemoryUse | None:
        """Return used memory and limit; None without a limit."""
        if self._memory is None:
            return None
        folder, second = self._memory
        limit = _number(folder / ("memory.max" if second else "memory.limit_in_bytes"))
        used = _number(folder / ("memory.current" if second else "memory.usage_in_bytes"))
        if limit is None or used is None:
            return None
        cache = _field(folder / "memory.stat", "inactive_file" if second else "total_inactive_file") or 0
        return MemoryUse(max(used - cache, 0), limit)

    def oom_kills(self) -> int | None:
        """Return how many processes of this process's cgroup the kernel has killed for want of memory; None if not counted."""
        for folder in self._folders("memory"):
            for name in ("memory.events", "memory.oom_control"):  # of the second and of the first version
                if (count := _field(folder / name, "oom_kill")) is not None:
                    return count
        return _field(VMSTAT, "oom_kill")

    def _read_membership(self) -> dict[str, str]:
        """Map each controller to the path of this process's cgroup; the unified hierarchy is ''."""
        paths = {}
        for line in (_text(self.membership) or "").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            for controller in controllers.split(","):
                paths[controller] = path
        return paths

    def _folders(self, controller: str) -> Iterator[Path]:
        """Yield the cgroups that apply to a controller, from this process's own up to the mounted root."""
        second = self._paths.get("", "/")
        for mount, path in (
            (self.root / controller, self._paths.get(controller, "/")),
            (self.root / "cpu,cpuacct", self._paths.get(controller, "/") if controller.startswith("cpu") else "/"),
            (self.root, second),
            (self.root / "unified", second),
        ):
            if not mount.is_dir():
                continue
            parts = [part for part in path.split("/") if part not in {"", ".", ".."}]
            for depth in range(len(parts), -1, -1):
                folder = mount.joinpath(*parts[:depth])
                if folder.is_dir():
                    yield folder

    def _same_place(self, folder: Path, controller: str) -> Iterator[Path]:
        if folder.is_relative_to(self.root / "cpu"):
            yield self.root / controller / folder.relative_to(self.root / "cpu")

    def _tightest_memory(self) -> tuple[Path, bool] | None:
        best: tuple[int, Path, bool] | None = None
        for folder in self._folders("memory"):
            for name, second in (("memory.max", True), ("memory.limit_in_bytes", False)):
                limit = _number(folder / name)
                if limit is not None and 0 < limit < UNLIMITED and (best is None or limit < best[0]):
                    best = (limit, folder, second)
        return best[1:] if best else None

    def _tightest_cpu(self) -> tuple[Path, float] | None:
        best: tuple[Path, float] | None = None
        for folder in self._folders("cpu"):
            quota = _quota(folder)
            if quota is not None and (best is None or quota < best[1]):
                best = (folder, quota)
        return best


def memory_total() -> int:
    """Return the memory limit of this container, or without one the memory of this machine, in bytes."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    allowed = Limits().memory()
    return min(machine, allowed.limit) if allowed else machine


def oom_kills() -> int | None:
    """Return the count of `Limits.oom_kills` now."""
    return Limits().oom_kills()


def core_list(text: str) -> frozenset[int]:
    """Return the numbers in a list such as `0-3,8`."""
    cores: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def _quota(folder: Path) -> float | None:
    words = (_text(folder / "cpu.max") or "").split()
    if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:  # quota and period
        return int(words[0]) / int(words[1])
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.isdigit() else None


def _field(path: Path, name: str) -> int | None:
    for line in (_text(path) or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return None
