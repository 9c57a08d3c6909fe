"""Memory, file descriptors and threads of a process over time, and whether they grow."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import psutil

WARM_UP = 0.3  # of the run: caches fill, the allocator settles
MAX_GROWTH = 4 * 2**20  # bytes over the run, if the line's own error is smaller than that
BLOCKS = 20  # neighbouring samples depend on each other; means of blocks hardly do


class Usage:
    """Samples of one process.

    Attributes:
        samples: rows of seconds, private bytes, open file descriptors, threads.
    """

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)
        self.samples: list[tuple[float, float, float, float]] = []

    def sample(self) -> None:
        """Add a row; a process that has ended adds none."""
        try:
            # Private memory only: mapped files come and go with the page cache.
            memory = private_bytes(self.process.pid)
            row = (time.monotonic(), memory, self.process.num_fds(), self.process.num_threads())
        except (psutil.Error, OSError):
            return
        self.samples.append(row)

    def growth(self, column: int) -> tuple[float, float]:
        """Return the growth over the run after the warm-up, by a line through block means, and its standard error."""
        rows = np.asarray(self.samples)
        rows = rows[int(len(rows) * WARM_UP) :]
        blocks = np.array_split(rows, min(BLOCKS, len(rows)))
        times = np.array([block[:, 0].mean() for block in blocks])
        values = np.array([block[:, column].mean() for block in blocks])
        times -= times.mean()
        slope = float((times * values).sum() / (times**2).sum())
        residuals = values - values.mean() - slope * times
        error = float(np.sqrt((residuals**2).sum() / max(len(blocks) - 2, 1) / (times**2).sum()))
        length = float(times[-1] - times[0])
        return slope * length, error * length


def assert_flat(usage: Usage, what: str) -> None:
    """Fail if memory, file descriptors or threads grow by more than the error of the measurement."""
    assert len(usage.samples) > BLOCKS, f"{what}: {len(usage.samples)} samples"
    memory, memory_error = usage.growth(1)
    assert memory < max(3 * memory_error, MAX_GROWTH), f"{what}: {memory / 2**20:.1f} MB more"
    for column, name in ((2, "file descriptors"), (3, "threads")):
        growth, error = usage.growth(column)
        assert growth < max(3 * error, 0.5), f"{what}: {growth:.1f} more {name}"


def private_bytes(pid: int) -> float:
    """Return the anonymous resident memory of a process in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return float(line.split()[1]) * 1024
    raise OSError(f"no RssAnon for {pid}")


def watch(usages: Iterable[Usage], is_running: Callable[[], bool], every_s: float) -> None:
    """Sample all processes until the run ends."""
    usages = list(usages)
    while is_running():
        for usage in usages:
            usage.sample()
        time.sleep(every_s)
