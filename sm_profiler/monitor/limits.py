"""What this container may use of the machine: cgroup v1 and v2."""

from __future__ import annotations

import os
from pathlib import Path

import attrs

UNLIMITED = 1 << 60  # cgroup v1 says "no limit" with a number near 2^63


def allowed_cores() -> frozenset[int] | None:
    """The cores that this process may run on, or None where it may run on all."""
    allowed = os.sched_getaffinity(0)
    return frozenset(allowed) if len(allowed) < (os.cpu_count() or 0) else None


@attrs.define(eq=False)
class Limits:
    """The container's limits.

    Attributes:
        root: where cgroup file systems are mounted.
        cores: numbers of the cores that this process may run on; None for all of them.
    """

    root: Path = attrs.field(default=Path("/sys/fs/cgroup"), converter=Path)
    cores: frozenset[int] | None = attrs.field(factory=allowed_cores)

    def memory_percent(self) -> float | None:
        """Used memory in percent of the container's limit, page cache that can be dropped not counted; None without a limit."""
        for limit_name, used_name, stat_name, cache in (
            ("memory.max", "memory.current", "memory.stat", "inactive_file"),
            (
                "memory/memory.limit_in_bytes",
                "memory/memory.usage_in_bytes",
                "memory/memory.stat",
                "total_inactive_file",
            ),
        ):
            limit = _number(self.root / limit_name)
            used = _number(self.root / used_name)
            if limit is None or used is None or not 0 < limit < UNLIMITED:
                continue
            return 100 * max(used - _stat(self.root / stat_name, cache), 0) / limit
        return None


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _stat(path: Path, name: str) -> int:
    try:
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
